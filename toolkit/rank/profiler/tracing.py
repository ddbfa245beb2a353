"""Decides at the end of each step whether a window opens or ends, and has it written.

Windows are opened for the job (TOOLKIT_PROFILE), for a request while the job runs (`toolkit profile`, the monitor: the
request page of the status folder), and for the script (smppy). No failure here reaches the script: it is one line.
"""

import os
import sys
from _thread import get_ident

from ...status_pages import layout as layout
from ..mesh import measuring
from . import trace_plan
from .archive import Archive
from .log import log_line
from .step_timer import KERAS, StepTimer, timer
from .trace_place import WINDOW, TracePlace, is_launcher

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from mmap import mmap
    from typing import Any

    from .tensorflow_window import TensorFlowWindow
    from .window import TorchWindow

MOST_REQUESTS = 32  # Windows on request: each takes disk space and the rank's time.
NEVER = 1 << 62


class Tracer:
    """The windows of this process. Its methods are for the thread that trains."""

    def __init__(self, steps: StepTimer) -> None:
        self._timer = steps
        self._environ = os.environ
        self._window: TorchWindow | TensorFlowWindow | None = None
        self._used: Any = None  # The module whose window was opened, in this process or in one that forked it.
        self._barred = False
        self.callbacks: list[Any] = []  # Of clock.py: they must live until the main thread has called them.
        self._restart()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """Begin anew in a forked child. It traces on its own account, unless a window was open before the fork."""
        window, self._window = self._window, None
        if window is not None:
            window.forget()
        self._restart()
        self._map()
        if self._used is not None:
            self._barred = True
            self._used.forked()

    def _restart(self) -> None:
        self._until = NEVER
        self._windows: list[tuple[int, int]] = []
        self._next = NEVER  # The last step before one with which a window opens.
        self._is_late = False  # Steps have passed in which none could open.
        self._reason, self._request = trace_plan.SETTING, 0
        self._samples = False  # smppy has started.
        self._sample_cuda = True
        self._sampled, self._sample_from = 0, 0
        self._requests = 0
        self._archive = Archive(self._timer, self._failed)
        self._page: mmap | None = None
        self._answered = b""
        self._pid = os.getpid()
        self._closes_at_exit = False
        window = trace_plan.parse_window(self._environ.get(WINDOW, ""))
        if window is not None and window[0] == "steps":
            self._windows = trace_plan.windows(window[1], window[2])
            self._next = self._windows[0][0] - 1

    def watch(self) -> None:
        """Begin to follow the steps of this process; open a window at once if it begins with the first step."""
        self._map()
        if self._timer.on_step is None:
            self._timer.on_step = self.step_ended
        if self._next <= self._timer.steps:
            self._timer.on_start = self._begins

    def _begins(self) -> None:
        """The first step has begun, as far as can be seen."""
        self._timer.on_start = None
        if self._window is None and self._next == self._timer.steps:
            self._open_or_close(self._timer.steps)

    def step_ended(self, step: int) -> None:
        """Step number *step* has ended. This is called at each step: it must cost almost nothing."""
        if measuring.is_under_way() and self._window is None:
            self._is_late = True
        elif self._window is not None or step >= self._next:
            self._open_or_close(step)
        elif self._page is not None and self._page[8:16] != self._answered:
            self._answer_request(step)

    def _open_or_close(self, step: int) -> None:
        window = self._window
        if window is not None:
            if window.thread != get_ident():
                return
            ends = step >= self._until
            window.step_ends(goes_on=not ends)
            if not ends:
                return
            self.close()
        if step < self._next:
            return
        self._next = NEVER
        if self._is_late:
            self._shift(step)
        while self._windows and self._windows[0][1] <= step:
            self._windows.pop(0)  # Passed while another window was open.
        if self._windows:
            first, last = self._windows[0]
            if first <= step + 1:
                self._windows.pop(0)
                self.open(trace_plan.SETTING, step + 1, last)
            else:
                self._next = first - 1
        elif self._samples:
            self._sampled += 1
            self.open(trace_plan.SMPPY, step + 1, step + trace_plan.MOST_STEPS, cuda=self._sample_cuda)

    def _shift(self, step: int) -> None:
        """Move the windows that step times were compared in (rank/mesh/measuring.py) behind *step*, at full length."""
        self._is_late = False
        late = step + 1 - self._windows[0][0] if self._windows else 0
        if late > 0:
            self._windows = [(first + late, last + late) for first, last in self._windows]
            log_line("the trace begins %d steps late, with step %d: the compiler compared steps" % (late, step + 1))

    def _plan_next(self, step: int) -> None:
        """Set when the next window opens, after one has closed."""
        self._next = NEVER
        if self._windows:
            self._next = max(step, self._windows[0][0] - 1)
        elif self._samples:
            start = trace_plan.next_start(self._sample_from, self._sampled, step)
            self._next = NEVER if start is None else start - 1

    def _map(self) -> None:
        folder = self._environ.get(layout.VARIABLE, "")
        if not folder or self._page is not None:
            return
        try:
            from mmap import ACCESS_READ, mmap

            fd = os.open(os.path.join(folder, layout.PROFILE_NAME), os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._page = mmap(fd, layout.PAGE_BYTES, access=ACCESS_READ)
            finally:
                os.close(fd)
        except (OSError, ValueError, ImportError):
            return  # No trace can be requested in this job.
        self._answered = self._page[8:16]

    def _answer_request(self, step: int) -> None:
        """Answer the request that is on the page."""
        page = self._page
        assert page is not None
        fields = layout.read_consistent(lambda: page[: layout.PROFILE_BODY.size], layout.PROFILE_BODY)
        if fields is None:
            return  # It is being written: at the next step.
        self._answered = page[8:16]
        request, steps, rank, other = fields
        if rank >= 0 and TracePlace(self._environ).rank not in (rank, other):
            return
        self._requests += 1
        if self._requests > MOST_REQUESTS:
            log_line("request %d is not traced: %d were, and each takes disk space" % (request, MOST_REQUESTS))
            return
        self._request = request
        self.open(trace_plan.REQUEST, step + 1, step + max(1, min(steps, trace_plan.MOST_STEPS)))

    def open(self, reason: str, first: "int | None", last: "int | None", *, cuda: bool = True) -> bool:
        """Open a window for the steps *first* to *last*, None if there are none; return True if it is open."""
        if self._window is not None or is_launcher() or not TracePlace(self._environ).folder:
            return False
        if measuring.is_under_way():
            log_line("no trace from here on: the compiler compares steps")
            return False
        if self._barred:
            self._windows, self._samples, self._next, self._page = [], False, NEVER, None
            log_line("no traces in this process: it was forked after a trace of its parent had begun")
            return False
        try:
            window = _backend(self._timer)
            if window is None:
                return False
            if window.is_taken():
                log_line("no trace of steps from %s on: the script's own profiler is running" % (first or "now"))
                self._plan_next(self._timer.steps)
                return False
            self._used = window
            self._window = window.open_window(first, cuda=cuda, give_way=self._give_way)
        except Exception as error:  # noqa: BLE001 - the script goes on whatever torch says
            self._failed(error)
            return False
        self._reason = reason
        self._until = NEVER if last is None else last
        if not self._closes_at_exit:
            import atexit

            self._closes_at_exit = True
            atexit.register(self._at_exit)
        return True

    def _give_way(self) -> None:
        window = self._window
        if window is not None and window.thread == get_ident():
            log_line("the trace ends here: the script starts its own profiler")
            self.close()

    def close(self, *, now: bool = False) -> None:
        """End the open window, if there is one, and write it: gzipped in another thread, or *now*."""
        window, self._window = self._window, None
        if window is None:
            return
        self._plan_next(self._timer.steps)
        try:
            self._archive.write(
                window, self._reason, self._request if self._reason == trace_plan.REQUEST else None, now=now
            )
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    def _at_exit(self) -> None:
        """Write what is open when the interpreter ends, also by an exception, and the final share."""
        if self._pid != os.getpid():
            return
        try:
            if self._window is not None and self._window.thread == get_ident():
                self.close(now=True)
            self._archive.finish()
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Log it once, and trace no more in this process."""
        self._windows, self._samples, self._next, self._page = [], False, NEVER, None
        log_line("no more traces in this process: %s: %s" % (type(error).__name__, error))

    def open_timed(self) -> None:
        """Open a window at its time: of the next steps, if the script has steps that can be counted."""
        step = self._timer.steps
        # A step that is under way is counted as the first one: when it began, nobody knew.
        self.open(trace_plan.SETTING, step + 1 if step else None, step + trace_plan.MOST_STEPS if step else None)

    def end_timed(self) -> None:
        """The time is over: write the window, if it has not ended after its last step."""
        if self._window is not None and self._reason == trace_plan.SETTING:
            self.close()

    def start_samples(self, *, cuda: bool) -> None:
        """smppy starts: trace 20 steps from here on, and then again after ever longer gaps."""
        if self._samples or not TracePlace(self._environ).folder:
            return
        self._samples, self._sample_cuda, self._sampled = True, cuda, 1
        self._sample_from = self._timer.steps + 1
        self.watch()
        if not self.open(trace_plan.SMPPY, self._timer.steps + 1, self._timer.steps + trace_plan.MOST_STEPS, cuda=cuda):
            self._sampled, self._next = 0, self._timer.steps  # At the next step's end.

    def stop_samples(self) -> None:
        """smppy stops: write the window that it has open."""
        if not self._samples:
            return
        self._samples = False
        self._next = NEVER if not self._windows else self._windows[0][0] - 1
        if self._window is not None and self._reason == trace_plan.SMPPY and self._window.thread == get_ident():
            self.close()

    def annotation(self, name: str) -> "Any":
        """Return a context manager that writes *name* into the window that is open, None if none is."""
        return None if self._window is None else self._window.annotation(name)


def _backend(steps: StepTimer) -> "Any":
    """Return the module whose Window records this process: TensorFlow's where Keras trains with it, else torch's; None
    if neither was imported."""
    keras = sys.modules.get("keras")
    with_tensorflow = keras is not None and keras.backend.backend() == "tensorflow"
    if "tensorflow" in sys.modules and ("torch" not in sys.modules or (steps.source == KERAS and with_tensorflow)):
        from . import tensorflow_window

        return tensorflow_window
    if "torch" not in sys.modules:
        return None
    from . import window

    return window


_tracer: "Tracer | None" = None


def tracer() -> Tracer:
    """Return the tracer of this process, made at the first call."""
    global _tracer
    if _tracer is None:
        _tracer = Tracer(timer())
    return _tracer


def exists() -> bool:
    """True if this process has a tracer."""
    return _tracer is not None
