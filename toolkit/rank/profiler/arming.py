"""Arms this process, once a framework is imported, for what the job or somebody while it runs asks for."""

import os

from . import plan, tracing
from .clock import Clock
from .place import WINDOW


def arm() -> None:
    """Follow the steps of this process, and wait for the seconds that are to be traced. It may be called again."""
    is_new = not tracing.exists()
    tracer = tracing.tracer()
    tracer.watch()
    wanted = plan.parsed(os.environ.get(WINDOW, ""))
    if is_new and wanted is not None and wanted[0] == "seconds":
        Clock(tracer, wanted[1], wanted[2]).start()
