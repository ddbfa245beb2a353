"""The module form of releases 1.0 to 1.3: torch.distributed's functions, over backend "smddp"."""

from toolkit.rank.dataparallel.backend import register
from toolkit.rank.dataparallel.module import (
    ReduceOp,
    all_gather,
    all_reduce,
    all_to_all_single,
    barrier,
    broadcast,
    get_local_rank,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_initialized,
    start_profiler,
    stop_profiler,
    warn_of_deprecation,
)

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_initialized",
    "start_profiler",
    "stop_profiler",
]

register()
warn_of_deprecation()
