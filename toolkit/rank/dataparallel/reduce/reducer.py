"""The reducer: decides by size whether an all-reduce is hierarchical, and runs hierarchical ones in its own thread.

The thread lets DDP's backward continue while gradients are reduced, as gloo's threads do. It holds the GIL only
between calls into C, about ten for each chunk of 2 MiB.
"""

import atexit
import os
import queue
import sys
import threading
import time
import weakref
from typing import Any

from toolkit.rank.dataparallel.reduce.arithmetic import TorchArithmetic
from toolkit.rank.dataparallel.reduce.benchmark import (
    BETWEEN_HOSTS,
    ON_ONE_HOST,
    SIZES_BYTES,
    Timing,
    choose_threshold,
    measure,
)
from toolkit.rank.dataparallel.reduce.hierarchical import HierarchicalAllReduce, bytes_needed
from toolkit.rank.dataparallel.reduce.registry import MAX_GROUPS, GroupRegistry
from toolkit.rank.dataparallel.reduce.shared_memory import MAX_RANKS_PER_HOST, SharedMemoryGroup
from toolkit.rank.dataparallel.reduce.strides import check_writable, write
from toolkit.rank.dataparallel.reduce.tcp import TcpGroup
from toolkit.rank.dataparallel.reduce.topology import Topology, find_topology
from toolkit.rank.dataparallel.reduce.work import make_work_class
from toolkit.rank.mesh.host import HostIdentity

FIRST_BYTES = SIZES_BYTES[0]  # Smaller all-reduces always go to the native backend.
CONNECT_WITHIN_S = 30.0
END_WITHIN_S = 1.0
POLL_S = 0.002


class Reducer:
    """The hierarchical all-reduce of one process group; *native* is its gloo backend. See the package's docstring.

    Only one thread at a time may call it: torch demands the same of a group's collectives.
    """

    def __init__(
        self,
        native: Any,
        store: Any,
        rank: int,
        size: int,
        timeout_s: float,
        host: HostIdentity,
        registry: GroupRegistry,
    ) -> None:
        self._native = native
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._host = host
        self._registry = registry
        self._is_registered = False
        self._number = 0  # of the group's all-reduces, hierarchical and native: equal on all ranks
        self._from_bytes: int | None = FIRST_BYTES
        self._has_chosen = False
        self._work: Any = None
        self._shared_memory: SharedMemoryGroup | None = None
        self._tcp: TcpGroup | None = None
        self._hierarchical: HierarchicalAllReduce | None = None
        self._thread: threading.Thread | None = None
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._name = ""
        self._calls = self._tensor_bytes = self._sent_bytes = 0
        self.measured: tuple[Timing, ...] = ()
        self.reason = "no all-reduce was large enough to measure"

    def allreduce(self, tensors: list[Any], *arguments: Any) -> Any:
        """Return the Work of reducing *tensors* in place; None if the native backend is to reduce them.

        *arguments* as ProcessGroup.allreduce has them: AllreduceOptions, or a ReduceOp, or nothing (a sum).

        Raises:
            ValueError: a tensor stores several elements in one place (expand). The group remains usable.
        """
        for tensor in tensors:
            check_writable(tensor)
        size_bytes = sum(tensor.nbytes for tensor in tensors)
        self._number += 1
        if self._shared_memory is not None:
            self._shared_memory.announce(self._number, size_bytes)
        return self._reduce_hierarchically(tensors, size_bytes, *arguments)

    def _reduce_hierarchically(self, tensors: list[Any], size_bytes: int, *arguments: Any) -> Any:
        if self._from_bytes is None or size_bytes < self._from_bytes:
            return None
        average = _is_average(arguments)
        if average is None or not _is_reducible(tensors):
            return None
        if not self._has_chosen:
            self._has_chosen = True
            self._choose()
            if self._shared_memory is not None:
                self._shared_memory.announce(self._number, size_bytes)
            return self._reduce_hierarchically(tensors, size_bytes, *arguments)
        self._calls += 1
        return self._start(tensors, average)

    def by_path(self) -> dict[str, tuple[int, int, int]]:
        """Return {name of the path: (calls, bytes of tensors, bytes sent)}, empty before the first hierarchical call.

        The bytes sent are those that this rank wrote into shared memory for others and sent to other hosts.
        """
        return {self._name: (self._calls, self._tensor_bytes, self._sent_bytes)} if self._calls else {}

    def close(self) -> None:
        """End hierarchical all-reduces on this rank. A running one is given up, so that peers that wait for it fail."""
        self._from_bytes = None
        thread, self._thread = self._thread, None
        if thread is None or self._shared_memory is None:
            return
        atexit.unregister(self.close)
        self._close_groups()
        self._jobs.put(None)
        thread.join(END_WITHIN_S)

    def _start(self, tensors: list[Any], average: bool) -> Any:
        work = self._work(tensors)
        self._jobs.put((tensors, average, work, self._number))
        return work

    def _serve(self) -> None:
        hierarchical = self._hierarchical
        assert hierarchical is not None
        while (job := self._jobs.get()) is not None:
            tensors, average, work, number = job
            failure = None
            try:
                if self._error is not None:
                    raise self._error
                self._reduce(hierarchical, tensors, average, number)
            except Exception as error:  # noqa: BLE001 - any error belongs to the caller that waits for this all-reduce
                self._error = failure = error
                self._close_groups()
            work.end(failure)
            del tensors, work, job, failure
        self._release()
        self._hierarchical = None  # This also frees the memory.

    def _reduce(self, hierarchical: HierarchicalAllReduce, tensors: list[Any], average: bool, number: int) -> None:
        contiguous = [tensor if tensor.is_contiguous() else tensor.detach().contiguous() for tensor in tensors]
        self._sent_bytes += hierarchical.allreduce(contiguous, average, number)
        for tensor, reduced in zip(tensors, contiguous, strict=True):
            if reduced is not tensor:
                write(reduced, tensor)
        self._tensor_bytes += sum(tensor.nbytes for tensor in tensors)

    def _choose(self) -> None:
        """Connect, measure, and set _from_bytes. All ranks call this at the same all-reduce."""
        import torch

        began_s = time.monotonic()
        self._from_bytes = None
        topology = find_topology(
            _gather_host_numbers(self._native, self._host.host_id, self._size), self._rank, MAX_RANKS_PER_HOST
        )
        if isinstance(topology, str):
            self.reason = topology
            return
        layout = (len(topology.local_peers), len(topology.cross_host_peers))
        decision = self._registry.agree(self._native, layout)
        if not decision.has_room:
            self.reason = f"{MAX_GROUPS} groups of this process reduce hierarchically already"
            return
        if decision.is_known and decision.from_bytes is None:
            self.reason = "it was not faster for an earlier group of as many ranks and hosts"
            return
        self._is_registered = True
        # TCP groups connect only after every host's group has: their ranks wait for each other.
        failure = self._connect_host(topology)
        if not (failed := _any_rank_failed(self._native, failure)):
            failure = self._connect_hosts(topology)
            failed = _any_rank_failed(self._native, failure)
        if failed:
            self.reason = f"not every rank could connect{f': {failure}' if failure else ''}"
            self._log(f"all-reduce stays with {self._native.name()}: {self.reason}")
            self._abandon()
            return
        self._work = make_work_class()
        self._thread = threading.Thread(target=self._serve, name="toolkit-reducer", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        _close_in_children(self)
        if decision.is_known:
            self._from_bytes = decision.from_bytes
            self.reason = f"{self._name} from {self._from_bytes >> 10} KiB, as for an earlier group"  # type: ignore[operator]
            return
        self.measured = measure(
            lambda size_bytes: [torch.zeros(size_bytes // 4)],
            lambda tensors: self._native.allreduce(tensors).wait(),
            lambda tensors: self._start(tensors, False).wait(),
            lambda times_s: _slowest(self._native, times_s),
        )
        margin = ON_ONE_HOST if len(topology.cross_host_peers) == 1 else BETWEEN_HOSTS
        self._from_bytes = choose_threshold(self.measured, margin)
        self._registry.remember(layout, self._from_bytes)
        self._tensor_bytes = self._sent_bytes = 0
        times = ", ".join(
            f"{m.size_bytes >> 10} KiB {m.hierarchical_s * 1e3:.2f}/{m.native_s * 1e3:.2f}" for m in self.measured
        )
        outcome = "is not faster" if self._from_bytes is None else f"from {self._from_bytes >> 10} KiB"
        self.reason = f"{self._name} {outcome} (ms, hierarchical/{self._native.name()}: {times})"
        self._log(f"all-reduce: {self.reason}; measured in {(time.monotonic() - began_s) * 1e3:.0f} ms")
        if self._from_bytes is None:
            self.close()

    def _connect_host(self, topology: Topology) -> Exception | None:
        """Connect to the ranks of this host; return the error."""
        from torch.distributed.distributed_c10d import PrefixStore

        keys = PrefixStore(f"reduce/host/{topology.local_peers[0]}/", self._store)
        names = tuple(f"rank {rank}" for rank in topology.local_peers)
        try:
            self._shared_memory = SharedMemoryGroup(topology.local_peers.index(self._rank), names, self._timeout_s)
            self._shared_memory.connect(
                keys.set, lambda key: _wait_for_key(keys, key), bytes_needed(len(names)), CONNECT_WITHIN_S
            )
        except (OSError, RuntimeError) as error:
            return error
        return None

    def _connect_hosts(self, topology: Topology) -> Exception | None:
        """Connect to the ranks with this local rank on other hosts; return the error."""
        from torch.distributed.distributed_c10d import PrefixStore

        assert self._shared_memory is not None
        peers = topology.cross_host_peers
        if len(peers) > 1:
            keys = PrefixStore(f"reduce/rail/{peers[0]}/", self._store)
            names = tuple(f"rank {rank}" for rank in peers)
            self._tcp = TcpGroup(peers.index(self._rank), names, self._timeout_s)
            try:
                addresses = self._host.addresses()
                self._tcp.connect(keys.set, lambda key: _wait_for_key(keys, key), addresses, CONNECT_WITHIN_S)
            except (OSError, RuntimeError) as error:
                return error
        self._hierarchical = HierarchicalAllReduce(self._shared_memory, self._tcp, TorchArithmetic())
        self._name = "shared memory" if len(peers) == 1 else "shared memory and TCP between hosts"
        return None

    def _abandon(self) -> None:
        """Close all descriptors; also the copies in a forked child."""
        self._from_bytes = None
        self._thread = None
        self._release()

    def _close_groups(self) -> None:
        """Leave the groups, so that peers stop waiting for this rank."""
        for group in (self._shared_memory, self._tcp):
            if group is not None:
                group.close()

    def _release(self) -> None:
        if self._is_registered:
            self._is_registered = False
            self._registry.release()
        for group in (self._shared_memory, self._tcp):
            if group is not None:
                group.release()

    def _log(self, text: str) -> None:
        if self._rank == 0:
            sys.stderr.write(f"[toolkit] smddp: {text}\n")


def _is_average(arguments: tuple[Any, ...]) -> bool | None:
    """Return whether *arguments* ask for a mean, False for a sum, None for anything else."""
    from torch.distributed import ReduceOp

    operation = getattr(arguments[0], "reduceOp", arguments[0]) if arguments else ReduceOp.SUM
    return False if operation == ReduceOp.SUM else True if operation == ReduceOp.AVG else None


def _is_reducible(tensors: list[Any]) -> bool:
    """Return whether *tensors* can be reduced hierarchically: dense, on the CPU, all of one floating type."""
    import torch

    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    first = tensors[0].dtype
    return first in kinds and all(
        tensor.dtype == first and tensor.device.type == "cpu" and tensor.layout == torch.strided for tensor in tensors
    )


def _gather_host_numbers(native: Any, host_id: str, size: int) -> list[int]:
    """Return a number for each rank's *host_id*, 0 if it is unknown."""
    import hashlib

    import torch

    own_number = int.from_bytes(hashlib.sha256(host_id.encode()).digest()[:8], "little", signed=True) if host_id else 0
    host_numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    native.allgather([host_numbers], [torch.tensor([own_number])]).wait()
    return [int(host_number) for host_number in host_numbers]


def _slowest(native: Any, times_s: list[float]) -> list[float]:
    """Return the largest of each of *times_s* over all ranks."""
    import torch
    from torch.distributed import AllreduceOptions, ReduceOp

    times = torch.tensor(times_s, dtype=torch.float64)
    options = AllreduceOptions()
    options.reduceOp = ReduceOp.MAX  # type: ignore[assignment]
    native.allreduce([times], options).wait()
    return [float(time_s) for time_s in times]


def _any_rank_failed(native: Any, failure: Exception | None) -> bool:
    """Return whether any rank has a *failure*."""
    import torch

    failures = torch.tensor([float(failure is not None)])
    native.allreduce([failures]).wait()
    return bool(failures)


def _wait_for_key(store: Any, key: str) -> str:
    """Return the value that another rank sets for *key*, by polling.

    A store's own wait blocks its only connection: then another thread of this process could not set the key for which
    the other rank waits.
    """
    deadline_s = time.monotonic() + CONNECT_WITHIN_S
    while not store.check([key]):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no rank set {key} in the store within {CONNECT_WITHIN_S:g} s")
        time.sleep(POLL_S)
    content: bytes = store.get(key)
    return content.decode()


def _close_in_children(reducer: Reducer) -> None:
    # If a child (a DataLoader's worker) kept the sockets open, peers would not see this rank end.
    reference = weakref.ref(reducer)

    def close_descriptors() -> None:
        live_reducer = reference()
        if live_reducer is not None:
            live_reducer._abandon()

    os.register_at_fork(after_in_child=close_descriptors)
