"""Which part of a parameter a tensor parallel rank has, and whole tensors from the parts of all ranks.

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
    """How a parameter is divided: along `axis`, which has `size` elements in the whole."""

    axis: int
    size: int


class Group(NamedTuple):
    """The tensor parallel ranks of this rank: torch's process group, their number, and this one's among them."""

    process_group: Any
    size: int
    rank: int


def group() -> Group:
    """Return this rank's tensor parallel group.

    Raises:
        NotInitialized: smp.init() was not called.
    """
    here = world.current()
    return Group(state.process_groups["tp"], len(here.group("tp")), here.rank_in("tp"))


def sizes(whole: int, parts: int) -> list[int]:
    """Return the sizes of *parts* runs of *whole* elements."""
    each, more = divmod(whole, parts)
    return [each + (number < more) for number in range(parts)]


def own_size(whole: int, what: str) -> int:
    """Return the size of this rank's run of *whole* elements; *what* names them in errors.

    Raises:
        SMPError: there are fewer elements than ranks.
    """
    its = group()
    if whole < its.size:
        raise SMPError(
            f"expected at least {its.size} {what}, one for each tensor parallel rank, found {whole}: lower "
            "tensor_parallel_degree, or set smp.set_tensor_parallelism(module, False)"
        )
    return sizes(whole, its.size)[its.rank]


def own(tensor: Tensor, axis: int) -> Tensor:
    """Return this rank's part of *tensor*, as a view."""
    its = group()
    found = sizes(tensor.shape[axis], its.size)
    return tensor.narrow(axis, sum(found[: its.rank]), found[its.rank])


@torch.no_grad()
def divide(parameter: Tensor, axis: int) -> None:
    """Keep of *parameter* this rank's part along *axis*; of one that is divided already, nothing more.

    Raises:
        SMPError: it is divided along another axis (two modules share it).
    """
    if group().size == 1:
        return
    split: Split | None = getattr(parameter, MARK, None)
    if split is None:
        size = parameter.shape[axis]
        own_size(size, f"elements along axis {axis} of a parameter of shape {tuple(parameter.shape)}")
        parameter.data = own(parameter.data, axis).clone()
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


def whole(part: Tensor, split: Split) -> Tensor:
    """Return the whole tensor of which this rank has *part*; all ranks of the group call this together."""
    its = group()
    runs = sizes(split.size, its.size)
    # Parts are gathered at equal sizes, the longest one's.
    lying = part.detach().movedim(split.axis, 0)
    padded = lying.new_zeros((max(runs), *lying.shape[1:]))
    padded[: lying.shape[0]] = lying
    found = [torch.empty_like(padded) for _ in runs]
    dist.all_gather(found, padded, group=its.process_group)
    joined = torch.cat([each[:size] for each, size in zip(found, runs, strict=True)])
    return joined.movedim(0, split.axis).contiguous()


def fitted(value: Any, parameter: Tensor) -> Any:
    """Return this rank's part of *value*, if it is a tensor shaped as the whole of *parameter*, else *value*."""
    split: Split | None = getattr(parameter, MARK, None)
    if split is None or not isinstance(value, Tensor) or tuple(value.shape) != whole_shape(parameter):
        return value
    return own(value, split.axis).clone()


def gathered(value: Any, parameter: Tensor) -> Any:
    """Return the whole of *value*, if it is a tensor shaped as this rank's part of *parameter*, else *value*."""
    split: Split | None = getattr(parameter, MARK, None)
    if split is None or not isinstance(value, Tensor) or value.shape != parameter.shape or value.is_meta:
        return value
    return whole(value, split)


def _divided(module: nn.Module) -> dict[str, nn.Parameter]:
    named = module.named_parameters(remove_duplicate=False)
    return {name: one for name, one in named if hasattr(one, MARK) and not one.is_meta}


def whole_state(module: nn.Module, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return *given*, a state of *module*, with whole tensors; all ranks of the group call this together."""
    divided = _divided(module)
    return {name: gathered(value, divided[name]) if name in divided else value for name, value in given.items()}


def own_state(module: nn.Module, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return *given*, a state of *module* whole or this rank's, with this rank's parts."""
    divided = _divided(module)
    return {name: fitted(value, divided[name]) if name in divided else value for name, value in given.items()}


def whole_optimizer_state(given: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Return *given*, what an optimizer keeps of *parameter*, whole; all ranks of the group call this together.

    Raises:
        SMPError: it has tensors of other shapes than the parameter's.
    """
    tensors = {name: each for name, each in given.items() if isinstance(each, Tensor) and each.numel() > 1}
    for name, value in tensors.items():
        if hasattr(parameter, MARK) and value.shape != parameter.shape:
            raise SMPError(
                f"expected an optimizer whose state is shaped as its parameters, found {name} of shape "
                f"{tuple(value.shape)} for a parameter of shape {tuple(parameter.shape)}: save partial states "
                "(partial=True), which keep the tensor parallel degree"
            )
    return {name: gathered(value, parameter) for name, value in given.items()}


def exchange(parts: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Give part n of *parts* to rank n of the group, and return what each gave, of *shapes*."""
    its = group()
    out = torch.cat([each.reshape(-1) for each in parts])
    counts = [torch.Size(shape).numel() for shape in shapes]
    back = out.new_empty(sum(counts))
    dist.all_to_all_single(back, out, counts, [each.numel() for each in parts], group=its.process_group)
    return [each.view(*shape) for each, shape in zip(torch.split(back, counts), shapes, strict=True)]
