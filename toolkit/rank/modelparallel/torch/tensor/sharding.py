"""Divides parameters among tensor parallel ranks, and gathers whole tensors from the parts of all ranks.

A divided parameter carries `smp_split`. The part of a tensor parallel rank is a run along one axis; the first ranks'
runs are one longer where the degree does not divide the axis.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.api import state

MARK = "smp_split"


class Split(NamedTuple):
    """The division of a parameter along `axis`, which has `size` elements in the whole."""

    axis: int
    size: int


class TensorParallelGroup(NamedTuple):
    """The tensor parallel ranks of this rank: torch's process group, their number, and this one's among them."""

    process_group: Any
    size: int
    rank: int


def get_group() -> TensorParallelGroup:
    """Return this rank's tensor parallel group.

    Raises:
        NotInitialized: smp.init() was not called.
    """
    this_world = world.current()
    return TensorParallelGroup(state.process_groups["tp"], len(this_world.group("tp")), this_world.rank_in("tp"))


def split_sizes(length: int, parts: int) -> list[int]:
    """Return the sizes of *parts* runs of *length* elements."""
    base, more = divmod(length, parts)
    return [base + (number < more) for number in range(parts)]


def local_size(length: int, description: str) -> int:
    """Return the size of this rank's run of *length* elements; *description* names them in errors.

    Raises:
        SMPError: there are fewer elements than ranks.
    """
    group = get_group()
    if length < group.size:
        raise SMPError(
            f"expected at least {group.size} {description}, one for each tensor parallel rank, found {length}: lower "
            "tensor_parallel_degree, or set smp.set_tensor_parallelism(module, False)"
        )
    return split_sizes(length, group.size)[group.rank]


def slice_local(tensor: Tensor, axis: int) -> Tensor:
    """Return this rank's part of *tensor*, as a view."""
    group = get_group()
    lengths = split_sizes(tensor.shape[axis], group.size)
    return tensor.narrow(axis, sum(lengths[: group.rank]), lengths[group.rank])


@torch.no_grad()
def divide(parameter: Tensor, axis: int) -> None:
    """Keep this rank's part of *parameter* along *axis*; a parameter that is divided already stays as it is.

    Raises:
        SMPError: it is divided along another axis (two modules share it).
    """
    if get_group().size == 1:
        return
    split: Split | None = getattr(parameter, MARK, None)
    if split is None:
        size = parameter.shape[axis]
        local_size(size, f"elements along axis {axis} of a parameter of shape {tuple(parameter.shape)}")
        parameter.data = slice_local(parameter.data, axis).clone()
        setattr(parameter, MARK, Split(axis, size))
    elif split.axis != axis:
        raise SMPError(
            f"expected modules that share a parameter to divide it along one axis, found {split.axis} and {axis}: "
            "distribute one of them alone, with a parameter of its own"
        )


def whole_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of *tensor*, of a divided parameter that of the whole one."""
    shape, split = list(tensor.shape), getattr(tensor, MARK, None)
    if split is not None:
        shape[split.axis] = split.size
    return tuple(shape)


def gather_whole(part: Tensor, split: Split) -> Tensor:
    """Return the whole tensor of which this rank has *part*; all ranks of the group call this together."""
    group = get_group()
    runs = split_sizes(split.size, group.size)
    # Parts are gathered at equal sizes, the longest one's.
    lying = part.detach().movedim(split.axis, 0)
    padded = lying.new_zeros((max(runs), *lying.shape[1:]))
    padded[: lying.shape[0]] = lying
    parts = [torch.empty_like(padded) for _ in runs]
    dist.all_gather(parts, padded, group=group.process_group)
    joined = torch.cat([part_tensor[:size] for part_tensor, size in zip(parts, runs, strict=True)])
    return joined.movedim(0, split.axis).contiguous()


def slice_to_fit(value: Any, parameter: Tensor) -> Any:
    """Return this rank's part of *value*, if it is a tensor shaped as the whole of *parameter*, else *value*."""
    split: Split | None = getattr(parameter, MARK, None)
    if split is None or not isinstance(value, Tensor) or tuple(value.shape) != whole_shape(parameter):
        return value
    return slice_local(value, split.axis).clone()


def gather_to_whole(value: Any, parameter: Tensor) -> Any:
    """Return the whole of *value*, if it is a tensor shaped as this rank's part of *parameter*, else *value*."""
    split: Split | None = getattr(parameter, MARK, None)
    if split is None or not isinstance(value, Tensor) or value.shape != parameter.shape or value.is_meta:
        return value
    return gather_whole(value, split)


def _divided(module: nn.Module) -> dict[str, nn.Parameter]:
    named_parameters = module.named_parameters(remove_duplicate=False)
    return {
        name: parameter for name, parameter in named_parameters if hasattr(parameter, MARK) and not parameter.is_meta
    }


def whole_state(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return *state*, a state of *module*, with whole tensors; all ranks of the group call this together."""
    divided = _divided(module)
    return {name: gather_to_whole(value, divided[name]) if name in divided else value for name, value in state.items()}


def local_state(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return *state*, a state of *module* whole or this rank's, with this rank's parts."""
    divided = _divided(module)
    return {name: slice_to_fit(value, divided[name]) if name in divided else value for name, value in state.items()}


def whole_optimizer_state(state: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Return *state*, an optimizer's of *parameter*, whole; all ranks of the group call this together.

    Raises:
        SMPError: it has tensors of other shapes than the parameter's.
    """
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor) and value.numel() > 1}
    for name, value in tensors.items():
        if hasattr(parameter, MARK) and value.shape != parameter.shape:
            raise SMPError(
                f"expected an optimizer whose state is shaped as its parameters, found {name} of shape "
                f"{tuple(value.shape)} for a parameter of shape {tuple(parameter.shape)}: save partial states "
                "(partial=True), which keep the tensor parallel degree"
            )
    return {name: gather_to_whole(value, parameter) for name, value in state.items()}


def exchange_parts(parts: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Send part n of *parts* to rank n of the group, and return the parts from all ranks, of *shapes*."""
    group = get_group()
    out = torch.cat([part.reshape(-1) for part in parts])
    counts = [torch.Size(shape).numel() for shape in shapes]
    back = out.new_empty(sum(counts))
    dist.all_to_all_single(back, out, counts, [part.numel() for part in parts], group=group.process_group)
    return [chunk.view(*shape) for chunk, shape in zip(torch.split(back, counts), shapes, strict=True)]
