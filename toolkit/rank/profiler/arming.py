"""Arms this process, once a framework is imported, for the traces that the job or a request while it runs asks for."""

import os

from . import trace_plan, tracing
from .clock import WindowClock
from .trace_place import WINDOW


def arm() -> None:
    """Follow the steps of this process, and wait for the seconds that are to be traced. It may be called again."""
    is_new = not tracing.exists()
    tracer = tracing.tracer()
    tracer.watch()
    window = trace_plan.parse_window(os.environ.get(WINDOW, ""))
    if is_new and window is not None and window[0] == "seconds":
        WindowClock(tracer, window[1], window[2]).start()
