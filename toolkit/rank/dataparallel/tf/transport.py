"""Transports for NumPy arrays between ranks: MPI under mpirun, torch.distributed under torchrun, none for one rank."""

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from toolkit.rank.dataparallel.exceptions import SMDDPError
from toolkit.rank.dataparallel.statistics import CollectiveStatistics, line
from toolkit.rank.dataparallel.tf.shared import SharedMemoryReducer
from toolkit.rank.mesh.position import RankPosition, rank_position

# MPI and gloo do not add these types (float16, bfloat16): they are sent as float32.
WIDE = {"e": "f4", "V": "f4"}


class Transport(Protocol):
    """What the library needs of a transport. Arrays are flat and of one type; results are written into them."""

    place: RankPosition

    def allreduce(self, array: Any, op: str) -> None:
        """Put the sum, min or max over all ranks into every rank's *array*."""

    def reduce(self, arrays: list[Any], into: list[Any], average: bool) -> bool:
        """Put the sums (means) over all ranks of *arrays*, of one type, into *into*; False: only allreduce can."""

    def broadcast(self, array: Any, root: int) -> None:
        """Put rank *root*'s *array* into every rank's."""

    def is_equal(self, number: int) -> bool:
        """Return whether *number* is the same on every rank; 0 <= *number* < 2**63. It is not counted as a call."""

    def ends_alone(self, by_exception: bool) -> bool:
        """Return whether this process, which ends, has failed so that the other ranks wait for it no longer."""

    def leave(self) -> None:
        """Disconnect; nothing else is called after it."""


def connect(environ: Any = os.environ) -> Transport:
    """Return the transport for this rank's launcher.

    Raises:
        SMDDPError: the package that it needs is missing.
    """
    here = rank_position(environ)
    kinds: dict[str, tuple[str, Callable[[RankPosition], Transport]]] = {
        "mpirun": ("mpi4py", Mpi),
        "torchrun": ("torch", Gloo),
    }
    if here.size == 1 or here.launcher not in kinds:
        return Alone()
    package, kind = kinds[here.launcher]
    try:
        return kind(here)
    except ImportError as error:
        raise SMDDPError(
            f"expected the package {package}, over which ranks under {here.launcher} communicate; found: {error}"
        ) from error


class Alone:
    """One rank."""

    place = RankPosition()

    def allreduce(self, array: Any, op: str) -> None:
        return

    def reduce(self, arrays: list[Any], into: list[Any], average: bool) -> bool:
        return False

    def broadcast(self, array: Any, root: int) -> None:
        return

    def is_equal(self, number: int) -> bool:
        return True

    def ends_alone(self, by_exception: bool) -> bool:
        return True

    def leave(self) -> None:
        return


class Mpi:
    """The ranks of the mpirun that started this one."""

    def __init__(self, here: RankPosition) -> None:
        from mpi4py import MPI

        self._ops = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}
        self._in_place: Any = MPI.IN_PLACE
        self._comm = MPI.COMM_WORLD.Dup()
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.place = RankPosition(self._comm.rank, self._comm.size, local.rank, local.size, here.launcher)
        self._statistics = CollectiveStatistics()
        self._statistics.native = "MPI"
        self._aborts = False
        self._watch_aborts(MPI)
        self._shared: SharedMemoryReducer | None = None
        if local.size == self._comm.size:
            self._shared = SharedMemoryReducer(self._comm)
            self._statistics.reducers.append(self._shared)

    def allreduce(self, array: Any, op: str) -> None:
        self._statistics.count_native(array.nbytes, self.place.size)
        self._comm.Allreduce(self._in_place, array, self._ops[op])

    def reduce(self, arrays: list[Any], into: list[Any], average: bool) -> bool:
        return self._shared is not None and self._shared.allreduce(arrays, into, average)

    def broadcast(self, array: Any, root: int) -> None:
        self._statistics.others += 1
        self._comm.Bcast(array, root)

    def is_equal(self, number: int) -> bool:
        import numpy as np

        both = np.array([number, -number], "i8")
        self._comm.Allreduce(self._in_place, both, self._ops["min"])
        return bool(both[0] == -both[1])

    def ends_alone(self, by_exception: bool) -> bool:
        """Only if all ranks are aborted: MPI_Finalize, in which this one ends otherwise, waits for all."""
        return self._aborts

    def _watch_aborts(self, module: Any) -> None:
        """Note when `python -m mpi4py` (4.1.2) decides, before the functions of atexit, to abort all ranks at the end:
        after an exception, or sys.exit with another code than 0."""
        set_status = getattr(module, "_set_abort_status", None)
        if set_status is None:
            return

        def set_abort_status(status: int) -> None:
            self._aborts = status != 0
            set_status(status)

        module._set_abort_status = set_abort_status

    def leave(self) -> None:
        """Print the statistics on rank 0, unless an exception ended the script."""
        if self._shared is not None:
            self._shared.close()
        if self.place.rank == 0 and not hasattr(sys, "last_value"):
            summary = line(self.place.size, self._statistics.by_path(), self._statistics.others, [])
            sys.stderr.write(f"[toolkit] smddp: {summary}\n")


class Gloo:
    """The ranks of the torchrun that started this one, over backend "smddp"."""

    def __init__(self, here: RankPosition) -> None:
        import torch
        import torch.distributed as dist

        from toolkit.rank.dataparallel.backend import NAME, register

        register()
        self._torch, self._dist = torch, dist
        self._joined = not dist.is_initialized()
        if self._joined:
            dist.init_process_group(NAME)
        self._ops = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
        self.place = here

    def allreduce(self, array: Any, op: str) -> None:
        self._dist.all_reduce(self._torch.from_numpy(array), op=self._ops[op])

    def reduce(self, arrays: list[Any], into: list[Any], average: bool) -> bool:
        return False

    def broadcast(self, array: Any, root: int) -> None:
        self._dist.broadcast(self._torch.from_numpy(array), src=root)

    def is_equal(self, number: int) -> bool:
        both = self._torch.tensor([number, -number])
        self._dist.all_reduce(both, op=self._ops["min"])
        return bool(both[0] == -both[1])

    def ends_alone(self, by_exception: bool) -> bool:
        return by_exception  # Whoever waits for it sees its connections close.

    def leave(self) -> None:
        if self._joined and self._dist.is_initialized():
            self._dist.destroy_process_group()


def wide(array: Any) -> str | None:
    """Return the type as which *array* is sent, None if its own."""
    return WIDE.get(array.dtype.char) if array.dtype.kind != "V" else WIDE["V"]
