"""The process group behind backend "smddp", and its registration with torch.

A subclass of torch's ProcessGroup with the native backends registered inside: gloo for CPU tensors, NCCL for CUDA.
Calls that are not named here go from torch straight to them, in C++. All-reduce, DDP's collective, comes through
`allreduce` below: it counts the call and passes it to the group's reducer (reduce/), or to the native backend if
the reducer declines. Other collectives are counted where torch's call passes through Python.

barrier, send and others are overridden only to be passed on. torch's C++ side of a Python subclass
(PyProcessGroup.hpp of torch 2.13) takes the GIL to look for an override. If there is none, it runs the collective and
still holds the GIL. Gloo's worker thread takes the GIL while it holds its queue's mutex, to release the tensors of
the previous collective. The two threads then deadlock (seen in `barrier` after `all_reduce`). So every method that
torch looks up has an override here. Overrides without work of their own call a plain ProcessGroup over the same
native backends, which looks nothing up.

Alternatives that do not work with torch 2.13 (they fail silently or late):
- a subclass of ProcessGroupGloo: DDP, in C++, never calls the override;
- a group without a registered backend inside: FSDP2 fails ("ProcessGroup name not set");
- `super().allreduce(...)`: calls the override again and hangs; so the native backend is called directly.
"""

import atexit
import functools
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from toolkit.rank.dataparallel.reduce.registry import GroupRegistry
from toolkit.rank.dataparallel.reduce.strides import is_strided, with_copies
from toolkit.rank.dataparallel.statistics import CollectiveStatistics
from toolkit.rank.dataparallel.timeline import Timeline
from toolkit.rank.frameworks.torch.distributed import (
    COUNTED,
    PASSED,
    PASSED_AS,
    add_native_backends,
    begin_sequence,
    exclude_from_compiling,
    get_backend_creator,
    require_backend_names,
    set_timeout,
)
from toolkit.rank.frameworks.torch.tensors import get_parts
from toolkit.rank.mesh.position import RankPosition, ignored_variables, missing_variables, rank_position

NAME = "smddp"


def register() -> "BackendFactory":
    """Register backend "smddp" with torch, once per process, and return the factory of its groups.

    Under mpirun, also set the variables that init_process_group reads (RANK, WORLD_SIZE, ...).
    """
    from torch.distributed import Backend

    require_backend_names()
    creator = get_backend_creator(NAME)
    if isinstance(creator, BackendFactory):
        return creator
    os.environ.update(missing_variables(os.environ))
    factory = BackendFactory(rank_position(os.environ))
    Backend.register_backend(NAME, factory, extended_api=True, devices=["cpu", "cuda"])
    atexit.register(factory.end)
    _accept_monitored_barrier(factory)
    ignored = ignored_variables(os.environ)
    if ignored and factory.position.rank == 0:
        sys.stderr.write(f"[toolkit] smddp: ignored, they are for AWS's own library: {', '.join(ignored)}\n")
    return factory


def _accept_monitored_barrier(factory: "BackendFactory") -> None:
    """Let `torch.distributed.monitored_barrier` take groups of this backend: torch's refuses all but gloo groups, by
    name."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    of_torch = distributed_c10d.monitored_barrier

    @functools.wraps(of_torch)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        process_group: Any = dist.group.WORLD if group is None else group
        if not factory.is_own_group(process_group):
            of_torch(group, timeout, wait_all_ranks)
            return
        if isinstance(timeout, int | float):
            timeout = timedelta(seconds=timeout)
        process_group.monitored_barrier(timeout, wait_all_ranks)

    distributed_c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier


class BackendFactory:
    """Makes process groups for torch; holds the process's statistics and registry."""

    def __init__(self, position: RankPosition) -> None:
        self.position = position
        self.statistics = CollectiveStatistics()
        self.registry = GroupRegistry()
        self.timeline: Timeline | None = None
        self._group_class = _make_group_class(self)

    def __call__(self, options: Any, backend_options: Any) -> Any:
        """Return a new group (torch calls this from init_process_group and new_group, extended_api=True)."""
        return self._group_class(options, backend_options)

    def is_own_group(self, group: Any) -> bool:
        """True if *group* is one of this backend's."""
        return isinstance(group, self._group_class)

    def start_profiler(self, file: str, append_rank: bool = False) -> None:
        """Begin a timeline that `stop_profiler`, or the process's end, writes to *file* (or *file*.RANK)."""
        self.stop_profiler()
        rank = self.position.rank
        self.timeline = Timeline(Path(f"{file}.{rank}" if append_rank else file), rank)

    def stop_profiler(self) -> None:
        """Write the timeline, if there is one."""
        timeline, self.timeline = self.timeline, None
        if timeline is not None:
            timeline.write()

    def end(self) -> None:
        """Print the statistics and write the timeline, when the process ends."""
        self.statistics.end()
        self.stop_profiler()


def _make_group_class(factory: BackendFactory) -> type:
    import torch.distributed as dist

    statistics = factory.statistics

    class SmddpGroup(dist.ProcessGroup):
        """One group of ranks."""

        def __init__(self, options: Any, backend_options: Any) -> None:
            # The one constructor that can be subclassed.
            super().__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
            self._natives = native_backends(options, backend_options)
            self._plain = dist.ProcessGroup(options.group_rank, options.group_size)  # type: ignore[call-arg]
            kind, native = self._natives.get("cuda", self._natives["cpu"])
            for group in (self, self._plain):
                add_native_backends(group, self._natives, kind)
            self._size = options.group_size
            self._timeout = options.timeout
            self._reducer = _make_reducer(options, self._natives["cpu"][1], factory.registry)
            statistics.begin(options.store, options.group_rank, options.group_size, native.name())
            statistics.reducers.append(self._reducer)

        def getBackendName(self) -> str:  # noqa: N802 - torch's
            return NAME

        @exclude_from_compiling
        def allreduce(self, tensors: Any, *arguments: Any, **options: Any) -> Any:
            reduced = tensors if isinstance(tensors, list) else [tensors]
            native = self._natives[reduced[0].device.type][1]
            size_bytes = sum(bytes_of(tensor) for tensor in reduced)
            work = None
            if not options and reduced[0].device.type == "cpu" and not any(tensor.is_sparse for tensor in reduced):
                work = self._reducer.allreduce(reduced, *arguments)
            if work is None:
                statistics.count_native(size_bytes, self._size)
                work = with_copies(native.allreduce, (tensors, *arguments), options)
            if factory.timeline is not None:
                factory.timeline.watch("allreduce", size_bytes, work)
            return work

        @exclude_from_compiling
        def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
            self._natives["cpu"][1].monitored_barrier(timeout or self._timeout, wait_all_ranks)

        def shutdown(self) -> None:
            self._reducer.close()
            for _, native in self._natives.values():
                native.shutdown()

    for name, native_name in COUNTED.items():
        setattr(SmddpGroup, name, _counted(name, native_name, factory))
    for name in PASSED:
        if hasattr(dist.ProcessGroup, name):  # The coalesced methods have other names in older versions of torch.
            setattr(SmddpGroup, name, _passed(name, name))
    for name, method in PASSED_AS.items():
        setattr(SmddpGroup, name, _passed(name, method))
    return SmddpGroup


def _make_reducer(options: Any, gloo: Any, registry: GroupRegistry) -> Any:
    from torch.distributed.distributed_c10d import PrefixStore

    from toolkit.rank.dataparallel.reduce.reducer import Reducer
    from toolkit.rank.mesh.host import identify_host

    store, within_s = PrefixStore("reduce/", options.store), options.timeout.total_seconds()
    return Reducer(gloo, store, options.group_rank, options.group_size, within_s, identify_host(os.environ), registry)


def _counted(name: str, native_name: str, factory: BackendFactory) -> Callable[..., Any]:
    def counted_call(self: Any, *arguments: Any, **options: Any) -> Any:
        factory.statistics.others += 1
        tensors = list(_tensors(arguments[:2]))
        call = getattr(self._natives[tensors[0].device.type][1], native_name)
        if any(is_strided(tensor) for tensor in tensors):
            work = with_copies(call, arguments, options)
        else:
            work = call(*arguments, **options)
        if factory.timeline is not None:
            factory.timeline.watch(native_name.strip("_"), sum(bytes_of(tensor) for tensor in tensors), work)
        return work

    counted_call.__name__ = name
    return exclude_from_compiling(counted_call)


def _passed(name: str, method: str) -> Callable[..., Any]:
    """Return the override *name*, which calls *method* of the plain group."""

    def passed_on(self: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self._plain, method)(*arguments, **options)

    passed_on.__name__ = name
    return exclude_from_compiling(passed_on)


def _tensors(nested: Any) -> Any:
    """Yield the tensors in *nested*, a tensor or nested lists of tensors."""
    from torch import Tensor

    if isinstance(nested, list | tuple):
        for part in nested:
            yield from _tensors(part)
    elif isinstance(nested, Tensor):
        yield nested


def bytes_of(tensor: Any) -> int:
    """Return the bytes of *tensor*'s values; of a sparse one also those of its indices (it has no `nbytes`)."""
    if tensor.is_sparse:
        return sum(int(part.nbytes) for part in get_parts(tensor))
    return int(tensor.nbytes)


def native_backends(options: Any, backend_options: Any) -> dict[str, tuple[Any, Any]]:
    """Return (torch's type, backend) by kind of device: gloo for "cpu", NCCL for "cuda" if CUDA is available.

    Made as torch does (distributed_c10d.py of torch 2.13, _new_process_group_helper).
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import PrefixStore

    store, rank, size = options.store, options.group_rank, options.group_size
    gloo = dist.ProcessGroupGloo(PrefixStore("cpu/", store), rank, size, timeout=options.timeout)
    gloo.options.global_ranks_in_group = options.global_ranks_in_group
    gloo.options.group_name = options.group_id
    begin_sequence(gloo)
    backends: dict[str, tuple[Any, Any]] = {"cpu": (ProcessGroup.BackendType.GLOO, gloo)}
    if torch.cuda.is_available() and dist.is_nccl_available():
        nccl_options = backend_options
        if not isinstance(nccl_options, dist.ProcessGroupNCCL.Options):
            nccl_options = dist.ProcessGroupNCCL.Options()
            nccl_options.is_high_priority_stream = False
        set_timeout(nccl_options, options.timeout)
        nccl_options.global_ranks_in_group = options.global_ranks_in_group
        nccl_options.group_name = options.group_id
        nccl = dist.ProcessGroupNCCL(PrefixStore("cuda/", store), rank, size, nccl_options)
        begin_sequence(nccl)
        backends["cuda"] = (ProcessGroup.BackendType.NCCL, nccl)
    return backends
