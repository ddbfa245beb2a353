"""Finds the position of this process in its job, and the names of the files that it writes (docs/profiler.md)."""

import os
import sys

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Mapping

WINDOW = "TOOLKIT_PROFILE_WINDOW"
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.multiprocessing")


class TracePlace:
    """Host, rank and world size of this process, and the folder for traces, "" outside of a job."""

    __slots__ = ("folder", "host", "is_rank", "rank", "size")

    def __init__(self, environ: "Mapping[str, str]") -> None:
        output = environ.get("TOOLKIT_OUTPUT") or environ.get("SM_OUTPUT_DIR", "")
        self.folder = os.path.join(output, "profiler", "framework") if output else ""
        self.host = environ.get("TOOLKIT_HOST_NAME") or environ.get("SM_CURRENT_HOST") or os.uname().nodename
        self.rank = _number(environ, _RANKS, 0)
        self.size = _number(environ, _SIZES, 1)
        self.is_rank = os.getsid(0) == os.getpid() or any(name in environ for name in _RANKS)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self.rank, self.size, self.is_rank = distributed.get_rank(), distributed.get_world_size(), True

    def stem(self, restart: int) -> str:
        """Return the start of the names of this rank's files; those of a restarted attempt differ."""
        name = "%s_rank-%d" % (self.host, self.rank)
        if not self.is_rank:  # A child that the script has started.
            name += "_pid-%d" % os.getpid()
        return "%s_attempt-%d" % (name, restart) if restart else name


def is_launcher() -> bool:
    """True in torchrun's own process, which imports torch and is no rank."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    return getattr(spec, "name", "") in _LAUNCHERS or program == "torchrun"


def restart_count(environ: "Mapping[str, str]") -> int:
    """Return how many attempts of the job there were before this one."""
    text = environ.get("TOOLKIT_RESTART_COUNT", "")
    return int(text) if text.isdigit() else 0


def _number(environ: "Mapping[str, str]", names: "tuple[str, ...]", default: int) -> int:
    for name in names:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return default
