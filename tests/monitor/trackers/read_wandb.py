"""Prints what W&B's offline files hold, as JSON: a program for the bed's interpreter, by W&B's own messages.

The files are logs of records as LevelDB writes them (7 bytes of header, then blocks of 32 KiB).
"""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK_BYTES = 32_768
HEADER = struct.Struct("<IHB")  # Checksum, size, kind.
WHOLE, LAST = 1, 4


def records(content: bytes) -> Iterator[Any]:
    """Yield the records of a file."""
    whole, at = b"", 7
    while at + HEADER.size <= len(content):
        if BLOCK_BYTES - at % BLOCK_BYTES < HEADER.size:
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        _, size, kind = HEADER.unpack_from(content, at)
        at += HEADER.size
        whole += content[at : at + size]
        at += size
        if kind in (WHOLE, LAST):
            yield Record.FromString(whole)
            whole = b""


def values(items: Any) -> dict[str, Any]:
    """Return keys and values."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


found: dict[str, Any] = {"runs": [], "labels": [], "history": [], "summary": {}, "exits": []}
for path in sorted(sys.argv[1:]):
    for record in records(Path(path).read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found["runs"].append([record.run.run_id, record.run.project])
        elif kind == "history":
            found["history"].append(values(record.history.item))
        elif kind == "summary":
            found["summary"] |= values(record.summary.update)
        elif kind == "exit":
            found["exits"].append(record.exit.exit_code)
print(json.dumps(found))
