"""Makes torch_xla work across processes on CPU: XLA computes, gloo transfers.

Only torch_xla's basic functions are replaced, in the modules where torch_xla itself looks them up, with the same names,
arguments and results. All code that is built on them (optimizer_step, broadcast_master_param, save, do_on_ordinals,
ZeRO, FSDP, MpDeviceLoader) stays torch_xla's own.
"""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch import Tensor

from toolkit.rank.frameworks.torch.distributed import (
    get_process_group,
    replace_backend,
    replace_rendezvous,
    require_xla_names,
)
from toolkit.rank.xla.live.collectives import C10D, OPS, Collectives
from toolkit.rank.xla.live.group import HostGroup
from toolkit.rank.xla.live.staging import HostStaging, to_host
from toolkit.rank.xla.position import XlaPosition


def install(position: XlaPosition) -> None:
    """Replace torch_xla's basic functions by those of this package."""
    require_xla_names()
    importlib.import_module("torch_xla.distributed.xla_backend")  # Registers "xla", which is replaced below.
    collectives = Collectives(position, HostStaging())
    for name in Collectives.NAMES:
        _replace(xm, name, getattr(collectives, name))
    for name, value in _runtime_functions(position).items():
        _replace(xr, name, value)
    replace_backend("xla", HostGroup)
    C10D.Backend.backend_capability["xla"] = ["xla", "cpu"]
    replace_rendezvous("xla")
    _replace_functional()


def _replace(module: Any, name: str, value: Any) -> None:
    if not hasattr(module, name):
        raise ImportError(f"torch_xla: expected {module.__name__}.{name}, found none: this release is not known here")
    setattr(module, name, value)


def _runtime_functions(position: XlaPosition) -> dict[str, Callable[..., Any]]:
    """Return torch_xla.runtime's functions about ranks. Every process has one device."""

    def refuse_spmd(auto: bool | None = False) -> None:
        raise NotImplementedError(
            "use_spmd: on CPU an SPMD mesh cannot reach over processes. Set one process per host and "
            "CPU_NUM_DEVICES for its devices, or leave SPMD out."
        )

    return {
        "world_size": lambda: position.size,
        "global_ordinal": lambda: position.rank,
        "local_ordinal": lambda: position.local_rank,
        "process_count": lambda: position.size,
        "process_index": lambda: position.rank,
        "local_process_count": lambda: position.local_size,
        "global_device_count": lambda: position.size,
        "local_device_count": lambda: position.local_size,
        "host_index": lambda: position.host,
        "get_master_ip": lambda: position.master,
        "use_spmd": refuse_spmd,
    }


def _replace_functional() -> None:
    """Replace torch's functional collectives (DTensor, tensor parallelism) on XLA tensors.

    torch_xla's own become part of the rank's graph, and never reach another process.
    """

    def all_reduce(value: Tensor, reduce_op: str, group_name: str) -> Tensor:
        (host,) = to_host([value])
        options = C10D.AllreduceOptions()
        group = get_process_group(group_name)
        options.reduceOp = OPS["sum" if reduce_op == "avg" else reduce_op]
        group.allreduce([host], options).wait()
        if reduce_op == "avg":
            host.div_(group.size())
        return host.to(value.device)

    def all_gather_into_tensor(value: Tensor, group_size: int, group_name: str) -> Tensor:
        (host,) = to_host([value])
        pieces = [torch.empty_like(host) for _ in range(group_size)]
        get_process_group(group_name).allgather([pieces], [host], C10D.AllgatherOptions()).wait()
        return torch.cat(pieces).to(value.device)

    def reduce_scatter_tensor(value: Tensor, reduce_op: str, group_size: int, group_name: str) -> Tensor:
        rank: int = get_process_group(group_name).rank()
        return all_reduce(value, reduce_op, group_name).chunk(group_size)[rank].clone()

    def all_to_all_single(
        value: Tensor, output_split_sizes: list[int], input_split_sizes: list[int], group_name: str
    ) -> Tensor:
        (host,) = to_host([value])
        received = torch.empty((sum(output_split_sizes), *host.shape[1:]), dtype=host.dtype)
        group = get_process_group(group_name)
        group.alltoall_base(received, host, output_split_sizes, input_split_sizes, C10D.AllToAllOptions()).wait()
        return received.to(value.device)

    def broadcast(value: Tensor, src: int, group_name: str) -> Tensor:
        (host,) = to_host([value])
        options = C10D.BroadcastOptions()
        options.rootRank = src
        get_process_group(group_name).broadcast([host], options).wait()
        return host.to(value.device)

    library: Any = vars(torch.library)["Library"]("_c10d_functional", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns of the overridden kernel.
        for function in (all_reduce, all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single, broadcast):
            library.impl(function.__name__, function, "XLA", allow_override=True)
    vars(xm)["_toolkit_library"] = library  # Keep it: garbage collection would unregister it.
