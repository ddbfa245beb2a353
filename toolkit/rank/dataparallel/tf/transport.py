"""Transports for NumPy arrays between ranks: MPI under mpirun, torch.distributed under torchrun, none for one rank."""

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from toolkit.rank.dataparallel.exceptions import SMDDPError
from toolkit.rank.dataparallel.statistics import CollectiveStatistics, line
from toolkit.rank.dataparallel.tf.shared import SharedMemoryReducer
from toolkit.rank.frameworks import mpi4py as private_mpi4py
from toolkit.rank.mesh.position import RankPosition, rank_position

# MPI and gloo do not add these types (float16, bfloat16): they are sent as float32.
WIDER_TYPES = {"e": "f4", "V": "f4"}


class Transport(Protocol):
    """Moves arrays between ranks. Arrays are flat and of one type; results are written into them."""

    position: RankPosition

    def allreduce(self, array: Any, op: str) -> None:
        """Put the sum, min or max over all ranks into every rank's *array*."""

    def reduce(self, arrays: list[Any], into: list[Any], average: bool) -> bool:
        """Put the sums (means) over all ranks of *arrays*, of one type, into *into*; False: only allreduce can."""

    def broadcast(self, array: Any, root: int) -> None:
        """Put rank *root*'s *array* into every rank's."""

    def is_equal(self, number: int) -> bool:
        """Return whether *number* is the same on every rank; 0 <= *number* < 2**63. It is not counted as a call."""

    def ends_alone(self, by_exception: bool) -> bool:
        """Return whether this process ends without the others, which then do not wait for it."""

    def leave(self) -> None:
        """Disconnect; nothing else is called after it."""


def connect(environ: Any = os.environ) -> Transport:
    """Return the transport for this rank's launcher.

    Raises:
        SMDDPError: the package that it needs is missing.
    """
    position = rank_position(environ)
    kinds: dict[str, tuple[str, Callable[[RankPosition], Transport]]] = {
        "mpirun": ("mpi4py", MpiTransport),
        "torchrun": ("torch", GlooTransport),
    }
    if position.size == 1 or position.launcher not in kinds:
        return SingleRankTransport()
    package, kind = kinds[position.launcher]
    try:
        return kind(position)
    except ImportError as error:
        raise SMDDPError(
            f"expected the package {package}, over which ranks under {position.launcher} communicate; found: {error}"
        ) from error


class SingleRankTransport:
    """The transport of a single rank: nothing moves."""

    position = RankPosition()

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


class MpiTransport:
    """The ranks of the mpirun that started this one."""

    def __init__(self, position: RankPosition) -> None:
        from mpi4py import MPI

        self._ops = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}
        self._in_place: Any = MPI.IN_PLACE
        self._comm = MPI.COMM_WORLD.Dup()
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.position = RankPosition(self._comm.rank, self._comm.size, local.rank, local.size, position.launcher)
        self._statistics = CollectiveStatistics()
        self._statistics.native = "MPI"
        self._aborts = False
        self._watch_aborts(MPI)
        self._shared: SharedMemoryReducer | None = None
        if local.size == self._comm.size:
            self._shared = SharedMemoryReducer(self._comm)
            self._statistics.reducers.append(self._shared)

    def allreduce(self, array: Any, op: str) -> None:
        self._statistics.count_native(array.nbytes, self.position.size)
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
        """True only if all ranks are aborted: otherwise this rank ends in MPI_Finalize, which waits for all."""
        return self._aborts

    def _watch_aborts(self, module: Any) -> None:
        """Note when `python -m mpi4py` decides to abort all ranks at the end."""

        def note(status: int) -> None:
            self._aborts = status != 0

        private_mpi4py.watch_abort_status(module, note)

    def leave(self) -> None:
        """Print the statistics on rank 0, unless an exception ended the script."""
        if self._shared is not None:
            self._shared.close()
        if self.position.rank == 0 and not hasattr(sys, "last_value"):
            summary = line(self.position.size, self._statistics.by_path(), self._statistics.others, [])
            sys.stderr.write(f"[toolkit] smddp: {summary}\n")


class GlooTransport:
    """The ranks of the torchrun that started this one, over backend "smddp"."""

    def __init__(self, position: RankPosition) -> None:
        import torch
        import torch.distributed as dist

        from toolkit.rank.dataparallel.backend import NAME, register

        register()
        self._torch, self._dist = torch, dist
        self._joined = not dist.is_initialized()
        if self._joined:
            dist.init_process_group(NAME)
        self._ops = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
        self.position = position

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
        return by_exception  # Ranks that wait for it see its connections close.

    def leave(self) -> None:
        if self._joined and self._dist.is_initialized():
            self._dist.destroy_process_group()


def wider_type(array: Any) -> str | None:
    """Return the type to which *array* is converted for sending, None if it is sent unchanged."""
    return WIDER_TYPES.get(array.dtype.char) if array.dtype.kind != "V" else WIDER_TYPES["V"]
