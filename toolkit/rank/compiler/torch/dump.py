"""Keeps the files of torch's compiler in debug mode: graphs and generated code in a folder of bounded size, and why
code was compiled, or was not.

    run_.../torchinductor/MODEL/output_code.py, fx_graph_readable.py, ir_post_fusion.txt, ...   torch's own files
    compilations.json   each compilation: code, seconds, operators, the guard that failed; the reasons of graph breaks
    failure.txt         the whole traceback of a model that does not compile
"""

import json
import os
import sys
import traceback

from ...frameworks.torch import compiler as torch_compiler

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

# One graph of GPT-2 with 12 layers has 4 MB. torch writes no further graphs once there is more than this.
MOST_BYTES = 64 << 20
MOST_REASONS = 200
MOST_CHARACTERS = 2_000
MOST_OF_A_FAILURE = 100_000


class DebugDump:
    """The folder of this rank, *folder*. `is_full`: torch writes no further graphs."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.is_full = False

    def start(self) -> None:
        """Have torch write its graphs and code, and compile all anew."""
        os.makedirs(self.folder, exist_ok=True)
        torch_compiler.write_graphs(self.folder)
        torch_compiler.watch_compilations(None, self._check_size)

    def _check_size(self, *_: "Any") -> None:
        """Something was compiled: look whether the folder is full."""
        if self.is_full or size_bytes(self.folder) <= MOST_BYTES:
            return
        self.is_full = True
        torch_compiler.stop_writing_graphs()
        text = "[toolkit] compiler: %s has more than %d MiB: torch writes no further graphs\n"
        sys.stderr.write(text % (self.folder, MOST_BYTES >> 20))

    def write_failure(self, sentence: str, error: BaseException) -> None:
        """Keep the traceback of *error*, of the first model that does not compile. *sentence*: the line of the log."""
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        self._write("failure.txt", "%s\n\n%s" % (sentence, "".join(lines)[-MOST_OF_A_FAILURE:]), mode="x")

    def end(self) -> None:
        """Write what was compiled and why."""
        breaks = (torch_compiler.read_counters() or {}).get("graph_break", {})
        records = {
            "compilations": [_describe(metrics) for metrics in torch_compiler.read_metrics()][-MOST_REASONS:],
            "graph_breaks": [
                {"why": str(reason)[:MOST_CHARACTERS], "count": count}
                for reason, count in list(breaks.items())[:MOST_REASONS]
            ],
        }
        self._write("compilations.json", json.dumps(records, indent=1))

    def _write(self, name: str, text: str, mode: str = "w") -> None:
        try:
            with open(os.path.join(self.folder, name), mode, encoding="utf-8", errors="replace") as file:
                file.write(text)
        except OSError:
            pass  # Training goes on without.


def size_bytes(folder: str) -> int:
    """Return the size of all files below *folder*."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total


def _describe(metrics: "Any") -> "dict[str, Any]":
    """Return what torch (2.13) notes of one compilation, under shorter names."""
    line = "%s (%s:%s)" % (metrics.co_name, metrics.co_filename, metrics.co_firstlineno)
    return {
        "id": getattr(metrics, "compile_id", None),
        "code": line if metrics.co_name else None,
        "is_forward": getattr(metrics, "is_forward", None),
        "seconds": getattr(metrics, "entire_frame_compile_time_s", None)
        or (getattr(metrics, "duration_us", None) or 0) / 1e6,
        "operators": getattr(metrics, "graph_op_count", None),
        "guards": getattr(metrics, "guard_count", None),
        "recompile_reason": _cut(getattr(metrics, "recompile_reason", None)),
        "fail_reason": _cut(getattr(metrics, "fail_reason", None)),
    }


def _cut(text: "str | None") -> "str | None":
    return None if text is None else text[:MOST_CHARACTERS]
