"""The windows that this process has written, each a file, and the list of them with their share of the run."""

import os
import time

from ...status_pages import layout as layout
from . import trace_files
from .step_timer import StepTimer
from .trace_place import TracePlace, restart_count

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from typing import Any

    from .tensorflow_window import TensorFlowWindow
    from .window import TorchWindow


class Archive:
    """Writes windows. *failed* is called once with the error that prevents that."""

    def __init__(self, steps: StepTimer, failed: "Callable[[Exception], None]") -> None:
        self._steps = steps
        self._failed = failed
        self._windows: list[dict[str, Any]] = []
        self._names: set[str] = set()
        self._packing: list[Thread] = []
        self._traced = 0
        self._framework = ""

    def write(self, window: "TorchWindow | TensorFlowWindow", reason: str, request: "int | None", *, now: bool) -> None:
        """Close *window* and write it; gzipped in a thread of its own, or *now*: Python starts no thread at its end.

        Raises:
            Exception: the framework refuses.
        """
        place = TracePlace(os.environ)
        folder = os.environ.get(layout.VARIABLE, "")  # `train` removes it: also what a killed rank leaves there.
        raw = os.path.join(folder if os.path.isdir(folder) else "/tmp", "trace-%d-%d.json" % (os.getpid(), id(window)))
        window.close(raw, place.rank, place.size)
        self._traced += window.steps
        self._framework = window.framework
        record = self._describe(window, place)
        record.update(reason=reason, request=request)
        if now:
            self._pack(raw, place, record, window.unfinished)
            return
        import threading

        thread = threading.Thread(target=self._pack, args=(raw, place, record, window.unfinished), name="toolkit-trace")
        thread.start()
        self._packing = [*(thread for thread in self._packing if thread.is_alive()), thread]

    def finish(self) -> None:
        """Wait until all is written, and write the final share."""
        for thread in self._packing:
            thread.join()
        if self._windows:
            self._write_list(TracePlace(os.environ))

    def _describe(self, window: "TorchWindow | TensorFlowWindow", place: TracePlace) -> "dict[str, Any]":
        """Return the entry of *window* in the list, with a file name that no other window has."""
        last = None if window.first is None or not window.steps else window.first + window.steps - 1
        name = "steps-%s-%s" % (window.first, last)
        if last is None:
            name = "seconds-%.0f-%.0f" % (window.start_s - started_s(), window.end_s - started_s())
        file = place.stem(restart_count(os.environ)) + ".pt.trace.json.gz"
        path, again = os.path.join(name, file), 1
        while path in self._names or os.path.exists(os.path.join(place.folder, path)):
            again += 1
            path = os.path.join("%s_%d" % (name, again), file)
        self._names.add(path)
        return {
            "file": path,
            "first_step": None if last is None else window.first,
            "last_step": last,
            "steps": window.steps,
            "start_s": window.start_s,
            "end_s": window.end_s,
            "activities": ["cpu", "cuda"] if window.cuda else ["cpu"],
        }

    def _pack(self, raw: str, place: TracePlace, record: "dict[str, Any]", unfinished: str) -> None:
        try:
            process = "rank %d of %s" % (place.rank, place.host) if place.is_rank else "pid %d" % os.getpid()
            target = os.path.join(place.folder, record["file"])
            record["bytes"] = trace_files.pack(raw, target, unfinished, process)
            self._windows.append(record)
            self._write_list(place)
        except Exception as error:  # noqa: BLE001 - a full disk must not end the script
            self._failed(error)

    def _write_list(self, place: TracePlace) -> None:
        steps = self._steps.steps
        trace_files.write_json(
            os.path.join(place.folder, place.stem(restart_count(os.environ)) + ".json"),
            {
                "version": 1,
                "host": place.host,
                "rank": place.rank,
                "world_size": place.size,
                "pid": os.getpid(),
                "framework": self._framework,
                "steps_run": steps,
                "steps_traced": self._traced,
                "share": self._traced / steps if steps else None,
                "windows": self._windows,
            },
        )


def started_s() -> float:
    """Return when this process started, in seconds since the epoch."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    with open("/proc/uptime", "rb") as file:
        up_s = float(file.read().split()[0])
    return time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK")
