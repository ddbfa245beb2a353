"""Opens and ends windows at given times, in the main thread: for scripts without an optimizer that can be seen.

A thread waits, and then has the interpreter call a function in the main thread (Py_AddPendingCall), which needs no
signal of the script's. Kineto started in another thread records nothing of the script.
"""

import time

from . import trace_plan
from .archive import started_s
from .log import log_line
from .tracing import Tracer

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# A window without steps that can be counted ends after this time: what Kineto keeps grows with the work of the script.
MOST_S = 5.0


class WindowClock:
    """Traces the seconds *first* to *last* of this process."""

    def __init__(self, tracer: Tracer, first: int, last: int) -> None:
        self._tracer = tracer
        self._first_s, self._last_s = started_s() + first, started_s() + last

    def start(self) -> None:
        """Wait in a thread of its own, which does not keep the process alive."""
        import threading

        threading.Thread(target=self._run, name="toolkit-clock", daemon=True).start()

    def _run(self) -> None:
        if time.time() >= self._last_s:
            log_line("nothing is traced: the framework was imported after the seconds that TOOLKIT_PROFILE names")
        for _ in range(trace_plan.MOST_WINDOWS):
            _sleep_until(self._first_s)
            if time.time() >= self._last_s:
                return
            self._in_main_thread(self._tracer.open_timed)
            _sleep_until(min(time.time() + MOST_S, self._last_s))
            self._in_main_thread(self._tracer.end_timed)

    def _in_main_thread(self, function: "Callable[[], None]") -> None:
        try:
            in_main_thread(function, self._tracer.callbacks)
        except Exception as error:  # noqa: BLE001
            log_line("nothing is traced: %s: %s" % (type(error).__name__, error))


def in_main_thread(function: "Callable[[], None]", callbacks: "list[Any]") -> None:
    """Have the main thread call *function* as soon as it runs Python code. *callbacks* keeps it alive until then.

    Raises:
        ImportError, RuntimeError: the interpreter does not allow it.
    """
    import ctypes

    def call(_: "Any") -> int:
        function()
        return 0

    pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)
    callbacks.append(pending)
    for _ in range(100):
        if ctypes.pythonapi.Py_AddPendingCall(pending, None) == 0:
            return
        time.sleep(0.01)  # 32 calls of others are waiting.
    raise RuntimeError("the interpreter takes no pending calls")


def _sleep_until(time_s: float) -> None:
    while (left_s := time_s - time.time()) > 0:
        time.sleep(min(left_s, 60.0))
