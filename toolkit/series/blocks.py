"""The container of all binary series files: blocks, appended one after the other, by one writer.

A block is a head (HEAD, 20 bytes, little-endian) and its payload. The first block of a file is always a JSON header.
A reader stops at the first block that is not whole: the writer was killed, or the disk was full. docs/profiler-files.md
has every field.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from toolkit import files

MAGIC = b"TKS1"
# magic, kind, 0, columns in a group (0: not grouped), rows, bytes of the payload, CRC-32 of the payload
HEAD = struct.Struct("<4sBBHIII")
HEADER, RAW, LEVEL, STEPS = range(4)
# A block of more is no block of ours, but bytes that happen to begin like one.
LARGEST = 1 << 28


class Block(NamedTuple):
    """A block in a file."""

    kind: int
    """HEADER, RAW, LEVEL or STEPS."""
    group: int
    """Columns in a group; 0: not grouped."""
    rows: int
    offset: int
    """The first byte of the payload in the file."""
    size: int
    """Bytes of the payload."""
    crc: int
    """CRC-32 of the payload."""


class Appender:
    """Appends blocks to a new file at *path*, which begins with the JSON text *header*. Raises OSError as it comes."""

    def __init__(self, path: Path, header: bytes) -> None:
        self.path = path
        self.size = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.append(HEADER, 0, header)

    def append(self, kind: int, rows: int, payload: bytes, *, group: int = 0) -> None:
        """Write one block with one write(2), so that a reader sees all of it or an end of the file."""
        head = HEAD.pack(MAGIC, kind, 0, group, rows, len(payload), zlib.crc32(payload))
        rest = memoryview(head + payload)
        self.size += len(rest)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        """Close the file. Never raises: a network file system reports a full disk only now, when nothing is to do."""
        try:
            os.close(self._fd)
        except OSError:
            pass


def scan(fd: int, start: int = 0) -> Iterator[Block]:
    """Yield the whole blocks of the open file *fd* from the byte *start* on, the header first at 0. A block must begin
    at *start*. Payloads are not read."""
    end = os.fstat(fd).st_size
    position = start
    while position + HEAD.size <= end:
        magic, kind, _, group, rows, size, crc = HEAD.unpack(os.pread(fd, HEAD.size, position))
        position += HEAD.size
        if magic != MAGIC or size > LARGEST or position + size > end:
            return
        yield Block(kind, group, rows, position, size, crc)
        position += size


def payload(fd: int, block: Block) -> bytes | None:
    """Return the payload of *block*, None if it was damaged."""
    content = os.pread(fd, block.size, block.offset)
    return content if zlib.crc32(content) == block.crc else None


def describe_damage(path: Path) -> str:
    """Return in words what of the file at *path* cannot be read, "" if it is whole.

    Raises:
        OSError: it cannot be opened.
    """
    fd = files.descriptor(path)
    try:
        size = os.fstat(fd).st_size
        whole_blocks = list(scan(fd))
        spoilt = sum(payload(fd, block) is None for block in whole_blocks)
    finally:
        os.close(fd)
    end = whole_blocks[-1].offset + whole_blocks[-1].size if whole_blocks else 0
    if not size:
        return "it is empty"
    if not whole_blocks or whole_blocks[0].kind != HEADER:
        return "its first block cannot be read"
    parts = [f"{spoilt:,} of its {len(whole_blocks):,} blocks were changed"] if spoilt else []
    parts += [f"from byte {end:,} of {size:,} on it cannot be read"] if end < size else []
    return ", and ".join(parts)


def part(fd: int, block: Block, start: int, size: int) -> bytes:
    """Return *size* bytes of the payload of *block* from *start* on, fewer where the file was cut meanwhile."""
    return os.pread(fd, max(min(size, block.size - start), 0), block.offset + start)
