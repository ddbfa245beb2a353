"""The functions of the module form (smdistributed.dataparallel.torch.distributed, releases 1.0 to 1.3).

There is one group, of all ranks; `group` arguments are ignored. Signatures as AWS documented them
(SageMaker Python SDK's API pages, seen 2026-11).
"""

import os
import warnings
from typing import Any

from toolkit.dataparallel.backend import NAME, register
from toolkit.dataparallel.exceptions import SMDDPNotInitializedError
from toolkit.ranks.position import rank_position

DEPRECATED = (
    "smdistributed.dataparallel.torch.dist is deprecated in the SageMaker distributed data parallel library v1.4.0+."
    " Use torch.distributed with the backend: import smdistributed.dataparallel.torch.torch_smddp, then"
    " dist.init_process_group(backend='smddp') and torch.nn.parallel.DistributedDataParallel."
)


class ReduceOp:
    """How all_reduce combines the ranks' values."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


class group:  # noqa: N801 - the old name
    """The only group there is."""

    WORLD = "WORLD"


def deprecated() -> None:
    """Warn once for each line that imports the module form."""
    warnings.warn(DEPRECATED, DeprecationWarning, stacklevel=3)


def is_available() -> bool:
    """Return whether the backend can be used: wherever torch.distributed can."""
    import torch.distributed as dist

    return dist.is_available()


def is_initialized() -> bool:
    """Return whether init_process_group was called."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def init_process_group(*arguments: Any, **options: Any) -> None:
    """Join the group of all ranks; arguments are torch's; a backend is ignored."""
    import torch.distributed as dist

    register()
    options.pop("backend", None)
    dist.init_process_group(NAME, *arguments[1:], **options)


def get_world_size(group: Any = group.WORLD) -> int:
    """Return the number of ranks."""
    return int(_torch().get_world_size())


def get_rank(group: Any = group.WORLD) -> int:
    """Return this rank, from 0."""
    return int(_torch().get_rank())


def get_local_rank() -> int:
    """Return this rank among those of its host, from 0."""
    _torch()
    return rank_position(os.environ).local_rank


def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Put the sum (average, least, greatest) over all ranks into every rank's *tensor*."""
    dist = _torch()
    native = {ReduceOp.MIN: dist.ReduceOp.MIN, ReduceOp.MAX: dist.ReduceOp.MAX}.get(op, dist.ReduceOp.SUM)
    work = dist.all_reduce(tensor, op=native, async_op=async_op)
    if op != ReduceOp.AVERAGE:
        return work
    if async_op:
        return Averaging(work, tensor, dist.get_world_size())
    tensor.div_(dist.get_world_size())
    return None


def broadcast(tensor: Any, src: int = 0, group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Put rank *src*'s *tensor* into every rank's."""
    return _torch().broadcast(tensor, src=src, async_op=async_op)


def all_gather(tensor_list: Any, tensor: Any, group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Put every rank's *tensor* into every rank's *tensor_list*, in the order of ranks."""
    return _torch().all_gather(tensor_list, tensor, async_op=async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = group.WORLD,
    async_op: bool = False,
) -> Any:
    """Split *input* along its first dimension, one piece per rank, and put the received pieces into *output*."""
    return _torch().all_to_all_single(output, input, output_split_sizes, input_split_sizes, async_op=async_op)


def barrier(group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Wait until every rank is here."""
    return _torch().barrier(async_op=async_op)


def start_profiler(file: str, append_rank: bool = False) -> None:
    """Begin a timeline of this rank's collectives, written to *file* as a Chrome trace; see stop_profiler."""
    register().start_profiler(file, append_rank)


def stop_profiler() -> None:
    """Write the timeline that start_profiler began; nothing without one."""
    register().stop_profiler()


class Averaging:
    """The handle of a running average: `wait` divides the sum."""

    def __init__(self, work: Any, tensor: Any, size: int) -> None:
        self._work, self._tensor, self._size = work, tensor, size

    def wait(self, *arguments: Any) -> bool:
        """Wait for the sum, then divide; a second call does nothing more."""
        done = bool(self._work.wait(*arguments))
        if self._size:
            self._tensor.div_(self._size)
            self._size = 0
        return done

    def is_completed(self) -> bool:
        """Return whether the sum is complete; only `wait` makes it the average."""
        return bool(self._work.is_completed())


def parallel_class() -> type:
    """Return a DistributedDataParallel with the old arguments, over torch's own.

    `no_sync()` is torch's.
    """
    import torch.nn.parallel as parallel

    class DistributedDataParallel(parallel.DistributedDataParallel):
        """torch's DistributedDataParallel with the old class's arguments, and any other of torch's."""

        def __init__(
            self,
            module: Any,
            device_ids: Any = None,
            output_device: Any = None,
            broadcast_buffers: bool = True,
            process_group: Any = None,
            bucket_cap_mb: float = 25,
            **more: Any,
        ) -> None:
            given = {
                "device_ids": device_ids,
                "output_device": output_device,
                "broadcast_buffers": None if broadcast_buffers else False,  # torch rejects its own default here.
                "process_group": None if process_group == group.WORLD else process_group,
            }
            more.update((name, value) for name, value in given.items() if value is not None)
            super().__init__(module, bucket_cap_mb=bucket_cap_mb, **more)

    return DistributedDataParallel


def _torch() -> Any:
    """Return torch.distributed, initialized.

    Raises:
        SMDDPNotInitializedError: it is not.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        raise SMDDPNotInitializedError(
            "smdistributed.dataparallel is not initialized: expected init_process_group() before this call"
        )
    return dist
