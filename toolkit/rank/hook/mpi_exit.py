"""Detects that a rank of MPI leaves by os._exit(0) before MPI_Finalize. The rank hook loads it by its path (site/)."""

import os

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def watch(record: "Callable[[], None]") -> None:
    """Call *record* when this process, and no child of it, leaves in such a way."""
    leave, rank = os._exit, os.getpid()

    def _exit(status: int) -> "NoReturn":
        if status == 0 and rank == os.getpid() and is_unfinished():
            record()
        leave(status)

    os._exit = _exit


def is_unfinished() -> bool:
    """True if this process has called MPI_Init, whoever's code did, and not MPI_Finalize."""
    try:
        import ctypes

        with open("/proc/self/maps", errors="replace") as maps:
            paths = {line.split(None, 5)[5].strip() for line in maps if "/libmpi" in line and ".so" in line}
        for path in paths:
            library, begun, finished = ctypes.CDLL(path), ctypes.c_int(0), ctypes.c_int(0)
            if hasattr(library, "MPI_Initialized") and hasattr(library, "MPI_Finalized"):
                library.MPI_Initialized(ctypes.byref(begun))
                library.MPI_Finalized(ctypes.byref(finished))
                if begun.value:
                    return not finished.value
    except Exception:  # noqa: BLE001
        pass  # Not known: the rank's end is what counts.
    return False
