"""One window of tf.profiler, written as the same kind of trace as torch's (Chrome's JSON).

TensorFlow writes a protocol buffer, `plugins/profile/<time>/<host>.xplane.pb`, which only TensorBoard's plug-in reads.
It is converted here, and kept beside the trace. The format: xplane.proto of tensorflow/tsl/profiler/protobuf.
"""

import os
import sys
import time
from _thread import get_ident

from ..frameworks import tensorflow as private
from .log import log_line

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from typing import Any

RUNTIME = "runtime"
EAGER = "EagerLocalExecute: "


class TensorFlowWindow:
    """A window that is open; it is used as window.py's."""

    framework = "tensorflow"

    def __init__(self, first: "int | None", *, cuda: bool, give_way: "Callable[[], None]") -> None:  # noqa: ARG002
        """Open it. TensorFlow itself refuses a second session: the script's own fails while this one is open, so
        *give_way* is called before.

        Raises:
            Exception: TensorFlow refuses.
        """
        import tempfile

        self.first = first
        self.steps = 0
        self.unfinished = ""
        self.thread = get_ident()
        self._tensorflow = sys.modules["tensorflow"]
        self.cuda = bool(self._tensorflow.config.list_physical_devices("GPU"))
        self._folder = tempfile.mkdtemp(prefix="toolkit-trace-")
        self._ends: list[float] = []
        self._annotations: set[str] = set()
        self._profiler = self._tensorflow.profiler.experimental
        self._start = self._profiler.start
        self.start_s = time.time()
        self._start(self._folder)

        def start(*arguments: "Any", **keywords: "Any") -> "Any":
            give_way()
            return self._start(*arguments, **keywords)

        private.replace_profiler_start(self._tensorflow, start)

    def _unguard(self) -> None:
        private.replace_profiler_start(self._tensorflow, self._start)

    def forget(self) -> None:
        """Give up, in a forked child, the window of the parent."""
        self._unguard()

    def annotation(self, name: str) -> "Any":
        """Return a context manager that writes *name* into the trace."""
        self._annotations.add(name)
        return self._profiler.Trace(name)

    def step_ends(self, *, goes_on: bool) -> None:  # noqa: ARG002
        """A step of the script has ended."""
        self.steps += 1
        self._ends.append(time.time())

    def close(self, path: str, rank: int, size: int) -> None:
        """End the window and write it to *path* as JSON, with this process's *rank* of *size*.

        Raises:
            Exception: TensorFlow refuses, or its file cannot be read.
        """
        import glob
        import json
        import shutil

        self._unguard()
        self._profiler.stop()
        self.end_s = time.time()
        try:
            events: list[dict[str, Any]] = []
            for name in glob.glob(os.path.join(self._folder, "plugins/profile/*/*.xplane.pb")):
                with open(name, "rb") as file:
                    events += convert(file.read(), self._annotations)
            events += self._steps()
            process = {"ph": "M", "name": "process_name", "pid": os.getpid(), "tid": 0, "ts": 0}
            events.append({**process, "args": {"name": "python"}})  # trace_files.py puts the rank there.
            distributed = {"backend": "none", "rank": rank, "world_size": size}
            with open(path, "w") as file:
                json.dump({"schemaVersion": 1, "distributedInfo": distributed, "traceEvents": events}, file)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _steps(self) -> "Iterator[dict[str, Any]]":
        start_s = self.start_s
        for index, end_s in enumerate(self._ends):
            yield {
                "ph": "X",
                "cat": "user_annotation",
                "name": "ProfilerStep#%d" % ((self.first or 0) + index),
                "pid": os.getpid(),
                "tid": "steps",
                "ts": start_s * 1e6,
                "dur": (end_s - start_s) * 1e6,
            }
            start_s = end_s


def forked() -> None:
    """Nothing is to be done in a child that was forked after a window."""


def open_window(first: "int | None", *, cuda: bool, give_way: "Callable[[], None]") -> TensorFlowWindow:
    """Return an open window.

    Raises:
        Exception: TensorFlow refuses.
    """
    return TensorFlowWindow(first, cuda=cuda, give_way=give_way)


def is_taken() -> bool:
    """True if a session is open in this process: the script's own."""
    return private.is_profiling()


def convert(text: bytes, annotations: "Container[str]" = ()) -> "Iterator[dict[str, Any]]":
    """Yield the events of the XSpace *text*. Planes are processes, lines are threads; times in us.

    *annotations*: names of annotations of the script. The category "runtime" is TensorFlow's own work around operators,
    most of it waiting: a caller for its function, tf.data's iterators for each other.
    """
    from google.protobuf.message import DecodeError

    space = private.import_xplane().XSpace()
    try:
        space.ParseFromString(text)
    except DecodeError as error:
        log_line("a trace of TensorFlow cannot be read: %s" % error)
        return
    pid = os.getpid()
    start_ns = max((_start_ns(plane) for plane in space.planes), default=0)  # Lines count from it.
    for plane in space.planes:
        on_device = plane.name.startswith("/device:") and "CPU" not in plane.name
        process = plane.name if on_device else pid
        names = {key: _name(value) for key, value in plane.event_metadata.items()}
        categories = {key: _category(value, annotations) for key, value in plane.event_metadata.items()}
        compiled = {key for key, value in plane.stat_metadata.items() if value.name == "hlo_op"}  # XLA's operators.
        for line in plane.lines:
            for event in line.events:
                category = categories.get(event.metadata_id, RUNTIME)
                if category == RUNTIME and any(stat.metadata_id in compiled for stat in event.stats):
                    category = "cpu_op"
                yield {
                    "ph": "X",
                    "cat": "kernel" if on_device else category,
                    "name": names.get(event.metadata_id, "?"),
                    "pid": process,
                    "tid": line.display_name or line.name or line.id,
                    "ts": (start_ns + line.timestamp_ns) / 1e3 + event.offset_ps / 1e6,
                    "dur": event.duration_ps / 1e6,
                }


def _name(event: "Any") -> str:
    """Return the operator's type, if the XEventMetadata *event* describes an operator, else its name."""
    if event.name.startswith(EAGER):
        return str(event.name[len(EAGER) :])
    return str(event.display_name or event.name)


def _category(event: "Any", annotations: "Container[str]") -> str:
    """Return what kind of event the XEventMetadata *event* describes. Operators of a graph have a display name; a
    function that is called eagerly has a name with underscores."""
    if event.name in annotations:
        return "user_annotation"
    is_eager = event.name.startswith(EAGER) and not event.name.startswith(EAGER + "__")
    is_operator = event.display_name and not event.name.startswith("Iterator::")  # tf.data's have one as well.
    return "cpu_op" if is_operator or is_eager else RUNTIME


def _start_ns(plane: "Any") -> int:
    for stat in plane.stats:
        if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
            return int(stat.uint64_value)
    return 0
