"""Has toolkit.status report heartbeats, and checkpoints that are held open, to the step timer."""

from .step_timer import timer

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import ModuleType


def attach(status: "ModuleType") -> None:
    """Attach the step timer of this process to *status*, the module toolkit.status."""
    status._listener = timer()  # type: ignore[attr-defined]
