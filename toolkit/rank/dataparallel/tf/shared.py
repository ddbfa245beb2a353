"""The all-reduce of NumPy arrays through memory that the ranks of a host share, if it is faster than MPI.

MPI copies each rank's arrays for every other rank, and its waiting ranks keep their cores busy, which TensorFlow's
threads then lack. The ranks connect at the first all-reduce of FIRST_BYTES or more, and measure both (as
reduce/reducer.py does with gloo). Afterwards the size and type of a call alone decide, so all ranks decide alike.
"""

import os
import sys
import time
import weakref
from typing import Any

from toolkit.rank.dataparallel.reduce.arithmetic import NumpyArithmetic
from toolkit.rank.dataparallel.reduce.benchmark import ON_ONE_HOST, SIZES_BYTES, choose_threshold, measure
from toolkit.rank.dataparallel.reduce.hierarchical import HierarchicalAllReduce, bytes_needed
from toolkit.rank.dataparallel.reduce.shared_memory import MAX_RANKS_PER_HOST, SharedMemoryGroup

FIRST_BYTES = SIZES_BYTES[0]
CONNECT_WITHIN_S = 30.0
NAME = "shared memory"


class SharedMemoryReducer:
    """The all-reduce of this rank with those of *comm*, all on one host. One thread at a time may call it."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._number = 0  # of the all-reduces offered to it: equal on all ranks
        self._from_bytes: int | None = FIRST_BYTES if 1 < comm.size <= MAX_RANKS_PER_HOST else None
        self._group: SharedMemoryGroup | None = None
        self._reduce: HierarchicalAllReduce | None = None
        self._calls = self._tensor_bytes = self._sent_bytes = 0

    def allreduce(self, arrays: list[Any], into: list[Any], average: bool) -> bool:
        """Put the sums (means) of *arrays*, contiguous and of one type, into *into*; False if MPI is to reduce them.

        Raises:
            PeerLost, SizeMismatch: see reduce/shared_memory.py.
        """
        size_bytes = sum(array.nbytes for array in arrays)
        self._number += 1
        if self._group is not None:
            self._group.announce(self._number, size_bytes)
        if self._from_bytes is None or size_bytes < self._from_bytes or arrays[0].dtype.char not in "fd":
            return False
        if self._reduce is None:
            self._choose()
            return self.allreduce(arrays, into, average)
        self._sent_bytes += self._reduce.allreduce(arrays, average, self._number, into)
        self._calls += 1
        self._tensor_bytes += size_bytes
        return True

    def by_path(self) -> dict[str, tuple[int, int, int]]:
        """Return {name of the path: (calls, bytes of arrays, bytes sent)}, empty before the first call."""
        return {NAME: (self._calls, self._tensor_bytes, self._sent_bytes)} if self._calls else {}

    def close(self) -> None:
        """Leave the group: peers that wait for this rank raise PeerLost."""
        self._from_bytes, self._reduce = None, None
        if self._group is not None:
            self._group.close()
            self._group.release()
            self._group = None

    def _choose(self) -> None:
        """Connect, measure, and set _from_bytes. All ranks call this at the same all-reduce."""
        began_s = time.monotonic()
        failure = self._connect()
        failures = [failure_of_rank for failure_of_rank in self._comm.allgather(failure) if failure_of_rank]
        if failures:
            self.close()
            self._log(f"all-reduce stays with MPI: not every rank could connect: {failures[0]}")
            return
        assert self._group is not None
        reduce = self._reduce = HierarchicalAllReduce(self._group, None, NumpyArithmetic())
        import numpy
        from mpi4py import MPI

        def reduce_through_memory(array: Any) -> None:
            reduce.allreduce([array], False, self._number)

        def slowest(times_s: list[float]) -> list[float]:
            times = numpy.array(times_s)
            self._comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
            return [float(slowest_s) for slowest_s in times]

        measured = measure(
            lambda size_bytes: numpy.zeros(size_bytes // 4, "f4"),
            lambda array: self._comm.Allreduce(MPI.IN_PLACE, array, MPI.SUM),
            reduce_through_memory,
            slowest,
        )
        self._from_bytes = choose_threshold(measured, ON_ONE_HOST)
        outcome = "is not faster" if self._from_bytes is None else f"from {self._from_bytes >> 10} KiB"
        times = ", ".join(
            f"{m.size_bytes >> 10} KiB {m.hierarchical_s * 1e3:.2f}/{m.native_s * 1e3:.2f}" for m in measured
        )
        took_ms = (time.monotonic() - began_s) * 1e3
        self._log(f"all-reduce: {NAME} {outcome} (ms, {NAME}/MPI: {times}); measured in {took_ms:.0f} ms")
        if self._from_bytes is None:
            self.close()

    def _connect(self) -> str:
        """Connect to the other ranks; return the error, "" if there is none."""
        socket_names: list[str] = []

        def put(_key: str, name: str) -> None:  # Called once on each rank, also if connecting fails.
            socket_names.extend(self._comm.allgather(name))

        def get(key: str) -> str:
            return socket_names[int(key.rpartition("/")[2])]

        names = tuple(f"rank {rank}" for rank in range(self._comm.size))
        # Without a limit, as MPI waits. A peer that has ended is noticed at once.
        self._group = SharedMemoryGroup(self._comm.rank, names, float("inf"))
        try:
            self._group.connect(put, get, bytes_needed(len(names)), CONNECT_WITHIN_S)
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        _close_in_children(self)
        return ""

    def _log(self, text: str) -> None:
        if self._comm.rank == 0:
            sys.stderr.write(f"[toolkit] smddp: {text}\n")


def _close_in_children(reducer: SharedMemoryReducer) -> None:
    # If a child kept the sockets open, peers would not see this rank end.
    reference = weakref.ref(reducer)

    def close_group() -> None:
        live_reducer = reference()
        if live_reducer is not None and live_reducer._group is not None:
            live_reducer._group.release()
            live_reducer._group, live_reducer._reduce, live_reducer._from_bytes = None, None, None

    os.register_at_fork(after_in_child=close_group)
