"""Sharded data parallelism: each of sharded_data_parallel_degree ranks holds a part of every parameter.

torch's fully_shard does it, over the replicas of a model of one partition: the ranks of a shard group are neighbours,
and the groups are replicas of each other. A unit is gathered and its gradients reduced at once; it has at most
sdp_max_live_parameters and sdp_reduce_bucket_size elements, where the tree of modules allows it. A parameter of fewer
than sdp_param_persistence_threshold elements stays whole on every rank. Which algorithm gathers
(sdp_hierarchical_allgather) is the backend's choice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from toolkit.parallelism.parameters import Parameters
from toolkit.rank.frameworks.torch.modules import get_own_parameters
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.replicas import equalise, is_spread


def shard(module: nn.Module, cfg: Parameters, group: Any, device: torch.device) -> None:
    """Spread the parameters of *module* over *group*, the process group of all replicas.

    Raises:
        SMPError: the degree does not divide the number of replicas.
    """
    # Takes seconds, with what it imports.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    ranks, degree = torch.distributed.get_process_group_ranks(group), cfg.sharded_data_parallel_degree
    if len(ranks) % degree:
        raise SMPError(
            f"expected a sharded_data_parallel_degree that divides the number of ranks, found {degree} for "
            f"{len(ranks)}: change the parameter or the number of ranks"
        )
    equalise((*module.parameters(), *module.buffers()), group)
    grid = torch.tensor(ranks).view(-1, degree)
    names = ("replicate", "shard")
    mesh = DeviceMesh(device.type, grid, mesh_dim_names=names) if len(grid) > 1 else DeviceMesh(device.type, grid[0])
    unsharded = {
        parameter for parameter in module.parameters() if parameter.numel() < cfg.sdp_param_persistence_threshold
    }
    max_elements = min(cfg.sdp_max_live_parameters, cfg.sdp_reduce_bucket_size)
    for unit in _units(module, max_elements, unsharded):
        fully_shard(unit, mesh=mesh, ignored_params=unsharded)
    fully_shard(module, mesh=mesh, ignored_params=unsharded)
    for parameter in module.parameters():
        # The names under which AWS's scripts find this rank's part, and the size of the whole.
        parameter.__dict__ |= {
            "ds_tensor": _local_part_of(parameter),
            "ds_shape": parameter.shape,
            "ds_numel": parameter.numel(),
        }


def _local_part_of(parameter: nn.Parameter) -> torch.Tensor:
    """Return this rank's part of *parameter*, with the same data; `ds_numel`: its number of elements."""
    part = local_part(parameter.detach()).detach()
    part.ds_numel = part.numel()  # type: ignore[attr-defined]
    return part


def get_shard_group(parameters: Iterable[nn.Parameter]) -> Any:
    """Return torch's process group of the ranks that share *parameters*.

    Raises:
        SMPError: none of them is shared.
    """
    for parameter in parameters:
        if is_spread(parameter):
            mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
            return mesh.get_group(mesh.ndim - 1)
    raise SMPError(
        "expected parameters that ranks share (sharded_data_parallel_degree above 1, and a "
        "sdp_param_persistence_threshold below their size), found none"
    )


def local_part(tensor: Any) -> torch.Tensor:
    """Return this rank's part of *tensor*, itself if it is whole."""
    part: torch.Tensor = tensor.to_local() if is_spread(tensor) else tensor
    return part


def local_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return *state* with this rank's parts of tensors; dictionaries inside it, too."""
    return _map_tensors(state, local_part)


def whole_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return *state* with whole tensors; all ranks of the mesh call it together."""
    return _map_tensors(state, lambda tensor: tensor.full_tensor() if is_spread(tensor) else tensor)


def distribute_as(value: Any, parameter: Any, name: object) -> Any:
    """Return *value*, a whole tensor or this rank's part of one, distributed as *parameter*; other values as they are.

    Raises:
        SMPError: it is neither.
    """
    if not is_spread(parameter) or not torch.is_tensor(value) or not value.dim():
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements
    if value.shape == parameter.shape:
        return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)
    if value.shape != parameter.to_local().shape:
        raise SMPError(
            f"expected {name} whole, {tuple(parameter.shape)}, or this rank's part, "
            f"{tuple(parameter.to_local().shape)}, found the shape {tuple(value.shape)}: a partial checkpoint fits the "
            "sharded_data_parallel_degree that saved it; use a full one (partial=False)"
        )
    return DTensor.from_local(
        value.to(parameter.device), mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def _units(module: nn.Module, max_elements: float, unsharded: set[nn.Parameter]) -> Iterator[nn.Module]:
    """Yield the largest modules in *module* of at most *max_elements* elements outside *unsharded*, then their owners.

    A module with a tied parameter is not a unit: the root gathers that parameter.
    """
    tied = {parameter for parameter, count in Counter(_occurrences(module)).items() if count > 1}

    def below(owner: nn.Module) -> Iterator[nn.Module]:
        for child in owner.children():
            inside = set(child.parameters()) - unsharded
            is_unit = not isinstance(child, nn.ModuleList | nn.ModuleDict) and not inside & tied
            if not is_unit or sum(parameter.numel() for parameter in inside) > max_elements:
                yield from below(child)
            if is_unit and inside:
                yield child

    return below(module)


def _occurrences(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for owner in module.modules() for parameter in get_own_parameters(owner).values()]


def _map_tensors(state: Mapping[Any, Any], change: Any) -> dict[Any, Any]:
    return {
        name: _map_tensors(value, change)
        if isinstance(value, dict)
        else change(value)
        if torch.is_tensor(value)
        else value
        for name, value in state.items()
    }
