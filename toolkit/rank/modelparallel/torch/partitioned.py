"""A model cut into partitions: each rank keeps the parameters of its own, and calls the other ranks for the rest.

Every rank has the whole tree of modules. Parameters and buffers of other partitions become meta tensors (the Parameter
objects stay), and a call of a module of another partition becomes a request to its rank.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils._pytree import tree_leaves

from toolkit.parallelism.decision import Decision
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.marking import created_modules

MARK = "_smp_partition"
# The attribute of a module that holds its partition once it has one; a copy of the module has it, too.
PLACED = "_smp_placed"
Call = Callable[[int, nn.Module, str, Any, Any], Any]


@contextlib.contextmanager
def partition(index: int) -> Iterator[None]:
    """Put modules that are created within the block into partition *index* (0 to partitions - 1)."""
    _check_index(index)
    with created_modules(MARK, index):
        yield


def set_partition(module: nn.Module, index: int) -> None:
    """Put *module*, with everything below it, into partition *index* (0 to partitions - 1)."""
    _check_index(index)
    for below in module.modules():
        below.__dict__.pop(MARK, None)
    module.__dict__[MARK] = index


def _check_index(index: int) -> None:
    if not isinstance(index, int) or index < 0:
        raise SMPError(f"expected a partition from 0 on, found {index!r}")


def marks(module: nn.Module) -> dict[str, int]:
    """Return the partitions that the script has given, by path."""
    return {path: each.__dict__[MARK] for path, each in module.named_modules() if MARK in each.__dict__}


def manual(module: nn.Module, partitions: int, default: int) -> dict[str, int]:
    """Return the assignment of a model whose partitions the script has given; the rest is in *default*.

    Raises:
        SMPError: a partition that does not exist, or one without modules.
    """
    given = marks(module)
    for path, index in given.items():
        if index >= partitions:
            raise SMPError(
                f"expected a partition from 0 to {partitions - 1} for module {path or 'the model'}, found {index}: "
                "change smp.partition or smp.set_partition, or the parameter partitions"
            )
    assignment = {"": default, **given}
    if empty := sorted(set(range(partitions)) - set(assignment.values())):
        raise SMPError(
            f"expected modules in each of {partitions} partitions, found none in {', '.join(map(str, empty))}: place "
            "some with smp.partition or smp.set_partition"
        )
    return assignment


def merge_tied(module: nn.Module, assignment: Mapping[str, int]) -> dict[str, int]:
    """Return *assignment* with modules that hold the same parameter or buffer in the first one's partition."""
    first: dict[int, int] = {}
    found = dict(assignment)
    for path, each in module.named_modules(remove_duplicate=False):
        partition = _partition_of(path, found)
        for one in (*each._parameters.values(), *each._buffers.values()):
            if one is not None:
                known = first.setdefault(id(one), partition)
                if known != partition:
                    partition = _move(module, path, known, found)
    return found


def partitions_of(module: nn.Module, decision: Decision) -> dict[str, int]:
    """Return the partition of every module of *module* by path."""
    assignment = merge_tied(module, decision.assignment)
    return {path: _partition_of(path, assignment) for path, _ in module.named_modules()}


def extended(module: nn.Module, before: Mapping[str, int], partitions: int) -> dict[str, int]:
    """Return the partition of every module of *module* by path, where *before* is that of an earlier time.

    A module that has none yet gets that of the one that it replaces, else its parent's. If it holds a parameter of
    another module, it gets that one's.
    """
    found: dict[str, int] = {}
    holders: dict[int, int] = {}
    new: list[tuple[str, nn.Module]] = []
    for path, each in module.named_modules():
        known = each.__dict__.get(PLACED, partitions)
        if known < partitions:
            found[path] = known
            holders |= {id(one): known for one in each._parameters.values() if one is not None}
        else:
            found[path] = before.get(path, found.get(path.rpartition(".")[0], 0))
            new.append((path, each))
    for path, each in new:
        own = [id(one) for one in each._parameters.values() if one is not None]
        found[path] = next((holders[one] for one in own if one in holders), found[path])
        holders |= dict.fromkeys(own, found[path])
    return found


def apply(module: nn.Module, partitions: Mapping[str, int], mine: int, device: torch.device, call: Call) -> None:
    """Keep of *module* what is on partition *mine*, on *device*; *partitions*: of every module by path.

    *call* is called as call(partition, module, path, args, kwargs) for modules of other partitions. May be called
    again, when the model has more or other modules.

    Raises:
        SMPError: a module of this partition has parameters without values.
    """
    places: dict[int, torch.Tensor] = {}
    for path, each in module.named_modules():
        is_mine = partitions[path] == mine
        each.__dict__[PLACED] = partitions[path]
        if not is_mine and isinstance(each, nn.RNNBase):  # Its own weak references would hold its parameters.
            each._flat_weight_refs = [None] * len(each._flat_weight_refs)
        for name, parameter in each._parameters.items():
            if parameter is not None and id(parameter) not in places:
                places[id(parameter)] = parameter
                full_name = f"{path}.{name}" if path else name
                if not is_mine and parameter.device.type != "meta":
                    _empty(parameter, full_name)
                elif is_mine and parameter.device.type == "meta":
                    raise SMPError(
                        f"expected parameter {full_name} of partition {mine} to have values on this rank, found it on "
                        "the meta device: a module that the script adds to a partitioned model must be made alike on "
                        "all ranks, and not of parameters of another partition"
                    )
                elif is_mine:
                    parameter.data = parameter.data.to(device)
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = buffer.to(device) if is_mine else buffer.to("meta")
        if not is_mine:
            each._compiled_call_impl = _stub(call, partitions[path], each, path)


class Addition(NamedTuple):
    """A module or parameter that came, perhaps in place of another one. `in_step`: a module's forward pass added it,
    which other ranks do not run. `has_state`: a state lists it, or what it replaces."""

    in_step: bool
    has_state: bool


class Additions:
    """Notes where modules of this process got a module or parameter. *is_in_step*: whether a step is under way."""

    def __init__(self, is_in_step: Callable[[], bool]) -> None:
        self._is_in_step = is_in_step
        self._noted: list[tuple[weakref.ref[nn.Module], str, Addition]] = []
        for register in (register_module_module_registration_hook, register_module_parameter_registration_hook):
            register(self._note)

    def take(self, wrapper: nn.Module) -> dict[str, Addition]:
        """Return what the module in *wrapper* has got since the last call, by path in *wrapper*."""
        noted, self._noted = self._noted, []
        # Those of nn.Module: the wrapper's own names are the inner module's.
        paths = {id(each): path for path, each in nn.Module.named_modules(wrapper)} if noted else {}
        return {
            ".".join(filter(None, (paths[id(module)], name))): addition
            for reference, name, addition in noted
            if (module := reference()) is not None and id(module) in paths
        }

    def _note(self, module: nn.Module, name: str, added: Any) -> None:
        holders: tuple[Any, ...] = (module._modules, module._parameters)
        before = [each[name] for each in holders if name in each]
        if not any(each is added for each in before):
            has_state = any(map(_has_state, (added, *before)))
            self._noted.append((weakref.ref(module), name, Addition(self._is_in_step(), has_state)))


def _has_state(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return any(True for each in (value.parameters(), value.buffers()) for _ in each)
    return value is not None


def _stub(call: Call, partition: int, module: nn.Module, path: str) -> Callable[..., Any]:
    # nn.Module.__call__ looks for _compiled_call_impl first; hooks run where the module is.
    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        return call(partition, module, path, args, kwargs)

    return elsewhere


# What may be asked of a parameter without data, besides its properties.
WITHOUT_DATA = frozenset(["detach", "requires_grad_", "clone", "empty_like", "zeros_like", "type", "to"])


class Elsewhere(nn.Parameter):
    """A parameter of another partition: it has a shape, and no data to compute with. `smp_name`: its path."""

    smp_name: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # torch computes shapes with meta tensors, and would give one out where a number is expected.
        failure: RuntimeError | None = None
        with torch._C.DisableTorchFunctionSubclass():
            try:
                found = func(*args, **(kwargs or {}))
            except RuntimeError as error:
                failure = error
        name = getattr(func, "__name__", str(func))
        if failure is None and (not isinstance(found, torch.Tensor) or name.startswith("__") or name in WITHOUT_DATA):
            return found
        whose = next((one.smp_name for one in tree_leaves((args, kwargs)) if isinstance(one, Elsewhere)), "a parameter")
        raise SMPError(
            f"expected code of this rank to compute with its own parameters, found {name} with {whose} of another "
            "partition: use model.local_parameters(); call the module that has it; or put both modules into one "
            "partition (smp.set_partition, with auto_partition false)"
        ) from failure


def _empty(parameter: nn.Parameter, name: str) -> None:
    """Make *parameter* a meta tensor in place."""
    parameter.grad = None
    empty = Elsewhere(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
    empty.__dict__.update(parameter.__dict__)
    empty.smp_name = name
    if parameter._use_count() > 1 and parameter.requires_grad:  # type: ignore[attr-defined]
        # The script keeps an output of the run that measured the model (a list of losses).
        get_gradient_edge(parameter).node.register_prehook(functools.partial(_too_late, name))
    # torch.utils.swap_tensors does the same, and refuses a parameter that a graph or a weak reference holds.
    parameter.__class__, empty.__class__ = empty.__class__, parameter.__class__
    parameter.__dict__, empty.__dict__ = empty.__dict__, parameter.__dict__
    torch._C._swap_tensor_impl(parameter, empty)


def _too_late(name: str, _gradients: Any) -> None:
    raise SMPError(
        f"expected a backward pass from an output of a present step, found one that reaches parameter {name} as it was "
        "before the model was partitioned: keep no output of the first call of the step function, which is made once "
        "more to measure the model (smp.is_tracing() is then True)"
    )


def _partition_of(path: str, assignment: Mapping[str, int]) -> int:
    while path and path not in assignment:
        path = path.rpartition(".")[0]
    return assignment.get(path, 0)


def _move(module: nn.Module, path: str, to: int, assignment: dict[str, int]) -> int:
    """Put the module at *path* into partition *to*, without its children."""
    for name, _ in module.get_submodule(path).named_children():
        below = f"{path}.{name}" if path else name
        assignment.setdefault(below, _partition_of(below, assignment))
    assignment[path] = to
    return to
