"""Samples where the thread that trains is while its step has not begun its forward pass: what the pause is spent on.

A daemon thread looks every INTERVAL_S, and more often until it has seen FIRST_SAMPLES: what the first pauses are is
then known while they last. It takes a stack only where the pause has lasted LEAST_NS. A stack with a generator in it,
which the loop calls, is data that the script makes itself. The counts go into a file of the status folder
(layout.PAUSES_NAME, read by series/pauses.py), at most every WRITE_S; at the end with what was saved and evaluated
after the last step.
"""

import json
import linecache
import os
import re
import sys
import threading
from time import monotonic, monotonic_ns

from ...status_pages import layout as layout
from ..frameworks.cpython import get_frame
from .step_timer import StepTimer

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

INTERVAL_S = 0.05
FIRST_INTERVAL_S, FIRST_SAMPLES, FIRST_S = 0.005, 10, 5.0
LEAST_NS = 5_000_000
WRITE_S = 5.0
MOST_FRAMES = 12
MOST_STACKS = 50
KEPT_STACKS = 10
GENERATOR = 0x20  # inspect.CO_GENERATOR, without importing inspect.
# A line's first call: its name alone is kept, as its arguments may hold secrets.
CALL = re.compile(r"[A-Za-z_][\w.]*(?=\()")
# Files below these folders are not the script's own.
TOOLKIT = os.path.abspath(os.path.join(__file__, "../../.."))
INSTALLED = (os.path.dirname(os.__file__) + os.sep, TOOLKIT + os.sep, "<frozen")


class PauseSampler:
    """Counts stacks of the thread that trains in pauses."""

    def __init__(self, timer: StepTimer, folder: str) -> None:
        self._timer = timer
        self._path = os.path.join(folder, layout.PAUSES_NAME % os.getpid())
        self._of_loop: set[CodeType] = set()  # A loop may be in a generator itself.
        # By the kernel's function in which the thread sleeps, and file, line and function of each frame.
        self._counts: dict[tuple[str, tuple[tuple[str, int, str], ...]], int] = {}
        self._written_samples = 0
        self._written_s = 0.0
        self._pid = os.getpid()
        self._wait_path = "/proc/self/task/%d/wchan" % threading.get_native_id()

    def start(self) -> None:
        """Sample until the process ends. It is called by the thread that trains, within the loop."""
        import atexit

        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            self._of_loop.add(frame.f_code)
            frame = frame.f_back
        try:
            atexit.register(self.write, is_over=True)
            threading.Thread(target=self._run, name="toolkit-pauses", daemon=True).start()
        except RuntimeError:
            pass  # No more threads are allowed, or the process ends: pauses have no place then.

    def _run(self) -> None:
        wait = threading.Event().wait
        began_s = monotonic()
        interval_s = FIRST_INTERVAL_S
        while not wait(interval_s):
            if self._timer.pause_samples >= FIRST_SAMPLES or monotonic() > began_s + FIRST_S:
                interval_s = INTERVAL_S
            since_ns = self._timer.pause_since_ns
            if not since_ns or monotonic_ns() - since_ns < LEAST_NS:
                continue
            sleeps_in = self._read_wait()
            frame = get_frame(self._timer.thread)
            if frame is None or self._timer.pause_since_ns != since_ns:
                continue  # It has ended while the stack was taken.
            self._count(frame, sleeps_in)
            del frame
            if monotonic() > self._written_s + WRITE_S:
                self.write()

    def _read_wait(self) -> str:
        """Return the kernel's function in which the thread that trains sleeps, "" if it runs or is not known."""
        try:
            with open(self._wait_path) as file:
                return file.read().strip("0\n")
        except OSError:
            return ""

    def _count(self, frame: "FrameType | None", sleeps_in: str) -> None:
        stack: list[tuple[str, int, str]] = []
        makes_data = False
        while frame is not None and len(stack) < MOST_FRAMES:
            code = frame.f_code
            stack.append((code.co_filename, frame.f_lineno, code.co_name))
            makes_data = makes_data or (bool(code.co_flags & GENERATOR) and code not in self._of_loop)
            frame = frame.f_back
        key = sleeps_in, tuple(stack)
        if key in self._counts or len(self._counts) < MOST_STACKS:
            self._counts[key] = self._counts.get(key, 0) + 1
        self._timer.pause_samples += 1
        self._timer.data_samples += makes_data

    def write(self, *, is_over: bool = False) -> None:
        """Write the counts, if there are new ones. *is_over*: the process ends."""
        self._written_s = monotonic()
        samples = self._timer.pause_samples
        late_ns = self._timer.since_step_ns if is_over else (0, 0)
        if (samples == self._written_samples and not any(late_ns)) or self._pid != os.getpid():
            return
        self._written_samples = samples
        stacks = sorted(self._counts.items(), key=lambda item: -item[1])[:KEPT_STACKS]
        document: dict[str, Any] = {
            "samples": samples,
            "data_samples": self._timer.data_samples,
            "late_saving_s": late_ns[0] / 1e9,
            "late_evaluation_s": late_ns[1] / 1e9,
            "stacks": [_describe(count, sleeps_in, frames) for (sleeps_in, frames), count in stacks],
        }
        try:
            with open(self._path + ".new", "w") as file:
                json.dump(document, file)
            os.replace(self._path + ".new", self._path)
        except OSError:
            pass  # The disk is full: what is known from the steps remains.


def _describe(count: int, sleeps_in: str, frames: "tuple[tuple[str, int, str], ...]") -> "dict[str, Any]":
    own = [frame for frame in frames if not frame[0].startswith(INSTALLED) and "-packages" + os.sep not in frame[0]]
    file, line, _ = (own or frames)[0]
    call = CALL.search(linecache.getline(file, line))
    return {
        "count": count,
        "wait": sleeps_in,
        "frames": ["%s:%d in %s" % frame for frame in frames],
        "place": "%s:%d" % (os.path.basename(file), line),
        "call": call.group() if call else "",
    }
