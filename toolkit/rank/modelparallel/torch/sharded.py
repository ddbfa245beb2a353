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
    whole = {each for each in module.parameters() if each.numel() < cfg.sdp_param_persistence_threshold}
    most = min(cfg.sdp_max_live_parameters, cfg.sdp_reduce_bucket_size)
    for unit in _units(module, most, whole):
        fully_shard(unit, mesh=mesh, ignored_params=whole)
    fully_shard(module, mesh=mesh, ignored_params=whole)
    for each in module.parameters():
        # The names under which AWS's scripts find this rank's part, and the size of the whole.
        each.__dict__ |= {"ds_tensor": _part(each), "ds_shape": each.shape, "ds_numel": each.numel()}


def _part(parameter: nn.Parameter) -> torch.Tensor:
    """Return this rank's part of *parameter*, with the same data; `ds_numel`: how many elements it has."""
    part: Any = local(parameter.detach()).detach()
    part.ds_numel = part.numel()
    found: torch.Tensor = part
    return found


def group_of(parameters: Iterable[nn.Parameter]) -> Any:
    """Return torch's process group of the ranks that share *parameters*.

    Raises:
        SMPError: none of them is shared.
    """
    for each in parameters:
        if is_spread(each):
            mesh: Any = each.device_mesh  # type: ignore[attr-defined]
            return mesh.get_group(mesh.ndim - 1)
    raise SMPError(
        "expected parameters that ranks share (sharded_data_parallel_degree above 1, and a "
        "sdp_param_persistence_threshold below their size), found none"
    )


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's part of *tensor*, itself if it is whole."""
    found: torch.Tensor = tensor.to_local() if is_spread(tensor) else tensor
    return found


def pieces(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return *state* with this rank's parts of tensors; dictionaries inside it, too."""
    return _mapped(state, local)


def whole(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return *state* with whole tensors; all ranks of the mesh call it together."""
    return _mapped(state, lambda each: each.full_tensor() if is_spread(each) else each)


def fitting(value: Any, parameter: Any, name: object) -> Any:
    """Return *value*, a whole tensor or this rank's part of one, spread as *parameter*; others as they are.

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


def _units(module: nn.Module, most: float, whole: set[nn.Parameter]) -> Iterator[nn.Module]:
    """Yield the largest modules in *module* with at most *most* elements outside *whole*, then what owns them.

    A module with a tied parameter is none: the root gathers that.
    """
    tied = {each for each, times in Counter(_occurrences(module)).items() if times > 1}

    def below(owner: nn.Module) -> Iterator[nn.Module]:
        for child in owner.children():
            inside = set(child.parameters()) - whole
            is_unit = not isinstance(child, nn.ModuleList | nn.ModuleDict) and not inside & tied
            if not is_unit or sum(each.numel() for each in inside) > most:
                yield from below(child)
            if is_unit and inside:
                yield child

    return below(module)


def _occurrences(module: nn.Module) -> list[nn.Parameter]:
    return [each for owner in module.modules() for each in owner._parameters.values() if each is not None]


def _mapped(state: Mapping[Any, Any], change: Any) -> dict[Any, Any]:
    return {
        name: _mapped(value, change) if isinstance(value, dict) else change(value) if torch.is_tensor(value) else value
        for name, value in state.items()
    }
