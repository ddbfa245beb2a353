"""The functions of the module form (smdistributed.dataparallel.torch.distributed, releases 1.0 to 1.3).

Each is torch.distributed's function of the same name. It takes the old names of operations and of the group of all
ranks, and torch's own operations and groups. Signatures as AWS documented them (SageMaker Python SDK's API pages, seen
2026-11).

The functions import the backend, which needs torch: TensorFlow's ranks import this file, too (the package
smdistributed.dataparallel does), and their image may have no torch.
"""

import os
import warnings
from typing import Any

from toolkit.rank.dataparallel.exceptions import SMDDPNotInitializedError
from toolkit.rank.mesh.position import rank_position

DEPRECATED = (
    "smdistributed.dataparallel.torch.dist is deprecated in the SageMaker distributed data parallel library v1.4.0+."
    " Use torch.distributed with the backend: import smdistributed.dataparallel.torch.torch_smddp, then"
    " dist.init_process_group(backend='smddp') and torch.nn.parallel.DistributedDataParallel."
)


class ReduceOp:
    """The operations of all_reduce."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


class group:  # noqa: N801 - the old name
    """The group of all ranks, the only one of the old library. Every function takes torch's groups as well."""

    WORLD = "WORLD"


def warn_of_deprecation() -> None:
    """Warn once for each line that imports the module form."""
    warnings.warn(DEPRECATED, DeprecationWarning, stacklevel=3)


def is_available() -> bool:
    """Return whether the backend, and so torch.distributed, can be used."""
    import torch.distributed as dist

    return dist.is_available()


def is_initialized() -> bool:
    """Return whether init_process_group was called."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def init_process_group(*arguments: Any, **options: Any) -> None:
    """Join the group of all ranks. Arguments are torch's; a backend is ignored."""
    import torch.distributed as dist

    from toolkit.rank.dataparallel.backend import NAME, register

    register()
    options.pop("backend", None)
    dist.init_process_group(NAME, *arguments[1:], **options)


def get_world_size(group: Any = group.WORLD) -> int:
    """Return the number of ranks in *group*, -1 if this rank is not one of them."""
    return int(_initialized_torch().get_world_size(_to_torch_group(group)))


def get_rank(group: Any = group.WORLD) -> int:
    """Return this rank's number in *group*, from 0; -1 if it is not a member."""
    return int(_initialized_torch().get_rank(_to_torch_group(group)))


def get_local_rank() -> int:
    """Return this rank among those of its host, from 0."""
    _initialized_torch()
    return rank_position(os.environ).local_rank


def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Put the reduction of all ranks' *tensor* into every rank's *tensor*; *op* is one of `ReduceOp`, or torch's
    ReduceOp.

    Raises:
        ValueError: *op* or *group* is none of them.
        RuntimeError: torch has no such operation for the type, such as the average of integers.
    """
    return _initialized_torch().all_reduce(
        tensor, op=_to_torch_operation(op), group=_to_torch_group(group), async_op=async_op
    )


def broadcast(tensor: Any, src: int = 0, group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Put rank *src*'s *tensor* into that of every rank in *group*. *src* is a rank of the job, as in torch."""
    return _initialized_torch().broadcast(tensor, src=src, group=_to_torch_group(group), async_op=async_op)


def all_gather(tensor_list: Any, tensor: Any, group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Put every rank's *tensor* into every rank's *tensor_list*, in the order of ranks."""
    return _initialized_torch().all_gather(tensor_list, tensor, group=_to_torch_group(group), async_op=async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = group.WORLD,
    async_op: bool = False,
) -> Any:
    """Split *input* along its first dimension, one piece per rank, and put the received pieces into *output*."""
    return _initialized_torch().all_to_all_single(
        output, input, output_split_sizes, input_split_sizes, group=_to_torch_group(group), async_op=async_op
    )


def barrier(group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Wait until every rank of *group* has called this."""
    return _initialized_torch().barrier(group=_to_torch_group(group), async_op=async_op)


def start_profiler(file: str, append_rank: bool = False) -> None:
    """Begin a timeline of this rank's collectives, written to *file* as a Chrome trace; see stop_profiler."""
    from toolkit.rank.dataparallel.backend import register

    register().start_profiler(file, append_rank)


def stop_profiler() -> None:
    """Write the timeline that start_profiler began, if there is one."""
    from toolkit.rank.dataparallel.backend import register

    register().stop_profiler()


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
            **other_options: Any,
        ) -> None:
            old_arguments = {
                "device_ids": device_ids,
                "output_device": output_device,
                "broadcast_buffers": None if broadcast_buffers else False,  # torch rejects its own default here.
                "process_group": _to_torch_group(process_group),
            }
            other_options.update((name, value) for name, value in old_arguments.items() if value is not None)
            super().__init__(module, bucket_cap_mb=bucket_cap_mb, **other_options)

    return DistributedDataParallel


def _to_torch_operation(op: Any) -> Any:
    """Return torch's operation for *op*.

    Raises:
        ValueError: it is neither one of `ReduceOp` nor torch's.
    """
    import torch.distributed as dist

    operations = {
        ReduceOp.AVERAGE: dist.ReduceOp.AVG,
        ReduceOp.SUM: dist.ReduceOp.SUM,
        ReduceOp.MIN: dist.ReduceOp.MIN,
        ReduceOp.MAX: dist.ReduceOp.MAX,
    }
    if isinstance(op, str) and op in operations:
        return operations[op]
    if isinstance(op, dist.ReduceOp | dist.ReduceOp.RedOpType):
        return op
    raise ValueError(
        f"smdistributed.dataparallel.torch.distributed: op: expected ReduceOp.AVERAGE, SUM, MIN or MAX, or an operation"
        f" of torch.distributed.ReduceOp, got {op!r}"
    )


def _to_torch_group(chosen: Any) -> Any:
    """Return torch's group for *chosen*: None, the group of all ranks, for the old name.

    Raises:
        ValueError: it is neither the old name nor a group of torch's.
    """
    import torch.distributed as dist

    if chosen is None or chosen is group or chosen == group.WORLD:
        return None
    if isinstance(chosen, dist.ProcessGroup) or chosen is dist.GroupMember.NON_GROUP_MEMBER:
        return chosen
    raise ValueError(
        f"smdistributed.dataparallel.torch.distributed: group: expected group.WORLD or a group of"
        f" torch.distributed.new_group(), got {chosen!r}"
    )


def _initialized_torch() -> Any:
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
