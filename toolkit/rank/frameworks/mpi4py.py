"""mpi4py's private names, read in mpi4py 4.1.2."""

from .private_names import find_or_report

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def watch_abort_status(module: "ModuleType", note: "Callable[[int], None]") -> None:
    """Call *note*(status) when `python -m mpi4py` decides, before the functions of atexit, how this rank ends: with
    another status than 0 it aborts all ranks. It does so after an exception, or after sys.exit with another code than
    0. *module*: mpi4py.MPI."""
    set_status = find_or_report(module, "_set_abort_status", "a rank that fails waits for the others before it ends")
    if set_status is None:
        return

    def set_abort_status(status: int) -> None:
        note(status)
        set_status(status)

    module._set_abort_status = set_abort_status  # type: ignore[attr-defined]
