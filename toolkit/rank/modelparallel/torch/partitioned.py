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

from toolkit.parallelism.decision import PartitionDecision
from toolkit.rank.frameworks.private_names import MissingNameError
from toolkit.rank.frameworks.torch.modules import (
    drop_weight_references,
    get_own_buffers,
    get_own_parameters,
    get_own_values,
    require_partitioning_names,
    set_buffer,
    set_call_impl,
)
from toolkit.rank.frameworks.torch.tensors import disable_torch_function, is_used, pytree, swap_tensors
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


def get_marked_partitions(module: nn.Module) -> dict[str, int]:
    """Return the partitions that the script has set, by path."""
    return {path: submodule.__dict__[MARK] for path, submodule in module.named_modules() if MARK in submodule.__dict__}


def assign_manually(module: nn.Module, partitions: int, default: int) -> dict[str, int]:
    """Return the assignment of a model whose partitions the script has set; the rest is in *default*.

    Raises:
        SMPError: a partition that does not exist, or one without modules.
    """
    marked = get_marked_partitions(module)
    for path, index in marked.items():
        if index >= partitions:
            raise SMPError(
                f"expected a partition from 0 to {partitions - 1} for module {path or 'the model'}, found {index}: "
                "change smp.partition or smp.set_partition, or the parameter partitions"
            )
    assignment = {"": default, **marked}
    if empty := sorted(set(range(partitions)) - set(assignment.values())):
        raise SMPError(
            f"expected modules in each of {partitions} partitions, found none in {', '.join(map(str, empty))}: place "
            "some with smp.partition or smp.set_partition"
        )
    return assignment


def merge_tied(module: nn.Module, assignment: Mapping[str, int]) -> dict[str, int]:
    """Return *assignment* with modules that hold the same parameter or buffer in the first one's partition."""
    first: dict[int, int] = {}
    merged = dict(assignment)
    for path, submodule in module.named_modules(remove_duplicate=False):
        partition = _partition_of(path, merged)
        for tensor in (*get_own_parameters(submodule).values(), *get_own_buffers(submodule).values()):
            first_partition = first.setdefault(id(tensor), partition)
            if first_partition != partition:
                partition = _move(module, path, first_partition, merged)
    return merged


def get_partitions(module: nn.Module, decision: PartitionDecision) -> dict[str, int]:
    """Return the partition of every module of *module* by path."""
    assignment = merge_tied(module, decision.assignment)
    return {path: _partition_of(path, assignment) for path, _ in module.named_modules()}


def extend_assignment(module: nn.Module, old_assignment: Mapping[str, int], partitions: int) -> dict[str, int]:
    """Return the partition of every module of *module* by path, after *old_assignment* was made.

    A module that has none yet gets that of the one that it replaces, else its parent's. If it holds a parameter of
    another module, it gets that one's.
    """
    assignment: dict[str, int] = {}
    holders: dict[int, int] = {}
    new: list[tuple[str, nn.Module]] = []
    for path, submodule in module.named_modules():
        partition = submodule.__dict__.get(PLACED, partitions)
        if partition < partitions:
            assignment[path] = partition
            holders |= {id(parameter): partition for parameter in get_own_parameters(submodule).values()}
        else:
            assignment[path] = old_assignment.get(path, assignment.get(path.rpartition(".")[0], 0))
            new.append((path, submodule))
    for path, submodule in new:
        ids = [id(parameter) for parameter in get_own_parameters(submodule).values()]
        assignment[path] = next((holders[key] for key in ids if key in holders), assignment[path])
        holders |= dict.fromkeys(ids, assignment[path])
    return assignment


def apply_partitions(
    module: nn.Module, partitions: Mapping[str, int], own_partition: int, device: torch.device, call: Call
) -> None:
    """Keep the parts of *module* on *own_partition*, on *device*; *partitions*: of every module by path.

    *call* is called as call(partition, module, path, args, kwargs) for modules of other partitions. May be called
    again, when the model has more or other modules.

    Raises:
        SMPError: a module of this partition has parameters without values, or torch is not one in which a model can be
            partitioned.
    """
    if any(partition != own_partition for partition in partitions.values()):
        _check_torch()
    visited: dict[int, torch.Tensor] = {}
    for path, submodule in module.named_modules():
        is_local = partitions[path] == own_partition
        submodule.__dict__[PLACED] = partitions[path]
        if not is_local and isinstance(submodule, nn.RNNBase):
            drop_weight_references(submodule)
        for name, parameter in get_own_parameters(submodule).items():
            if id(parameter) not in visited:
                visited[id(parameter)] = parameter
                full_name = f"{path}.{name}" if path else name
                if not is_local and parameter.device.type != "meta":
                    _empty(parameter, full_name)
                elif is_local and parameter.device.type == "meta":
                    raise SMPError(
                        f"expected parameter {full_name} of partition {own_partition} to have values on this rank, "
                        "found it on the meta device: a module that the script adds to a partitioned model must be "
                        "made alike on all ranks, and not of parameters of another partition"
                    )
                elif is_local:
                    parameter.data = parameter.data.to(device)
        for name, buffer in get_own_buffers(submodule).items():
            set_buffer(submodule, name, buffer.to(device) if is_local else buffer.to("meta"))
        if not is_local:
            set_call_impl(submodule, _stub(call, partitions[path], submodule, path))


def _check_torch() -> None:
    try:
        require_partitioning_names()
    except MissingNameError as error:
        raise SMPError(
            f"expected a torch in which a model can be partitioned (2.9 to 2.14), found that {error}: install one of "
            "these releases, or set the parameter partitions to 1"
        ) from None


class Addition(NamedTuple):
    """A module or parameter that was added, perhaps in place of another one.

    `in_step`: a module's forward pass added it, which other ranks do not run. `has_state`: a state lists it, or the
    one that it replaces.
    """

    in_step: bool
    has_state: bool


class Additions:
    """Records modules and parameters that modules of this process get. *is_in_step*: returns True during a step."""

    def __init__(self, is_in_step: Callable[[], bool]) -> None:
        self._is_in_step = is_in_step
        self._noted: list[tuple[weakref.ref[nn.Module], str, Addition]] = []
        for register in (register_module_module_registration_hook, register_module_parameter_registration_hook):
            register(self._note)

    def pop(self, wrapper: nn.Module) -> dict[str, Addition]:
        """Return the additions to the module in *wrapper* since the last call, by path in *wrapper*."""
        noted, self._noted = self._noted, []
        # nn.Module's own method: the wrapper's names are those of the inner module.
        paths = {id(module): path for path, module in nn.Module.named_modules(wrapper)} if noted else {}
        return {
            ".".join(filter(None, (paths[id(module)], name))): addition
            for reference, name, addition in noted
            if (module := reference()) is not None and id(module) in paths
        }

    def _note(self, module: nn.Module, name: str, added: Any) -> None:
        replaced = get_own_values(module, name)
        if not any(value is added for value in replaced):
            has_state = any(map(_has_state, (added, *replaced)))
            self._noted.append((weakref.ref(module), name, Addition(self._is_in_step(), has_state)))


def _has_state(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return any(True for tensors in (value.parameters(), value.buffers()) for _ in tensors)
    return value is not None


def _stub(call: Call, partition: int, module: nn.Module, path: str) -> Callable[..., Any]:
    # It replaces the calls of hooks, too: they run on the module's rank.
    def call_remotely(*args: Any, **kwargs: Any) -> Any:
        return call(partition, module, path, args, kwargs)

    return call_remotely


# The functions that a parameter without data allows, besides its properties.
WITHOUT_DATA = frozenset(["detach", "requires_grad_", "clone", "empty_like", "zeros_like", "type", "to"])


class RemoteParameter(nn.Parameter):
    """A parameter of another partition: it has a shape, and no data to compute with. `smp_name`: its path."""

    smp_name: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # torch computes shapes with meta tensors, and would give one out where a number is expected.
        failure: RuntimeError | None = None
        with disable_torch_function():
            try:
                output = func(*args, **(kwargs or {}))
            except RuntimeError as error:
                failure = error
        name = getattr(func, "__name__", str(func))
        is_allowed = failure is None and (
            not isinstance(output, torch.Tensor) or name.startswith("__") or name in WITHOUT_DATA
        )
        if is_allowed:
            return output
        leaves = pytree.tree_leaves((args, kwargs))
        parameter = next((leaf.smp_name for leaf in leaves if isinstance(leaf, RemoteParameter)), "a parameter")
        raise SMPError(
            f"expected code of this rank to compute with its own parameters, found {name} with {parameter} of another "
            "partition: use model.local_parameters(); call the module that has it; or put both modules into one "
            "partition (smp.set_partition, with auto_partition false)"
        ) from failure


def _empty(parameter: nn.Parameter, name: str) -> None:
    """Make *parameter* a meta tensor in place."""
    parameter.grad = None
    empty = RemoteParameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
    empty.__dict__.update(parameter.__dict__)
    empty.smp_name = name
    if is_used(parameter) and parameter.requires_grad:
        # The script keeps an output of the run that measured the model (a list of losses).
        get_gradient_edge(parameter).node.register_prehook(functools.partial(_refuse_old_graph, name))
    swap_tensors(parameter, empty)


def _refuse_old_graph(name: str, _gradients: Any) -> None:
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
