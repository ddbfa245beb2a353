"""Arguments that a call passes by reference: tensors, lists and dictionaries, which a module may change in place.

The owner works on copies. An `ArgumentSnapshot` finds the changes of the module: of a tensor by its version, of a list
or dictionary by its contents. `carry_over` then changes the caller's arguments, a tensor by an operation of the
caller's graph, so that its gradient is that of plain PyTorch. Changes of objects of other classes (a cache) are not
found, nor are changes past autograd (tensor.data).
"""

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toolkit.rank.frameworks.torch.tensors import get_storage_id, get_version, pytree
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.remote_tensor import RemoteTensor

CONTAINERS: tuple[type, ...] = (list, dict, OrderedDict, defaultdict)


class ArgumentChanges(NamedTuple):
    """`tensors`: the indices of changed tensors. `contents`: the new contents of changed containers, by index."""

    tensors: list[int]
    contents: dict[int, list[Any]]


class ArgumentSnapshot:
    """The arguments of a call, at its owner, before the call; *tensors* are those in them.

    `shared`: the arguments that a result may refer to, in the order of `shared_arguments` at the caller.
    """

    def __init__(self, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._containers = containers(args, kwargs)
        self._versions = [get_version(tensor) for tensor in tensors]
        self._contents = [_content(container) for container in self._containers]
        self.shared = [*tensors, *self._containers]

    def changes(self) -> ArgumentChanges:
        """Return the changes since then."""
        contents = [_content(container) for container in self._containers]
        return ArgumentChanges(
            [number for number, tensor in enumerate(self._tensors) if get_version(tensor) != self._versions[number]],
            {
                number: content
                for number, (content, old_content) in enumerate(zip(contents, self._contents, strict=True))
                if not _is_same(content, old_content)
            },
        )


def shared_arguments(args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> list[Any]:
    """Return the arguments of a call that its result may refer to; *tensors* are those in the arguments."""
    return [*tensors, *containers(args, kwargs)]


def carry_over(
    changed: Sequence[tuple[Tensor, Tensor]],
    contents: Mapping[int, list[Any]],
    args: Any,
    kwargs: Any,
    tensors: Sequence[Tensor],
    forward: Callable[..., Any],
    module_name: str,
) -> None:
    """Change the caller's arguments as the owner's have changed. *changed*: (the caller's tensor, its new value).

    An error names the arguments as *forward* does, and the module by *module_name*.

    Raises:
        SMPError: the shape has changed, two arguments share memory, or autograd refuses the change.
    """
    for tensor, value in changed:
        refusal = ""
        if value.shape != tensor.shape:
            refusal = f"from the shape {tuple(tensor.shape)} to {tuple(value.shape)}"
        elif overlapping := [argument for argument in tensors if argument is not tensor and _overlap(argument, tensor)]:
            refusal = f"it shares memory with the argument {_name(forward, args, kwargs, overlapping[0])}"
        else:
            try:
                tensor.copy_(value)
            except RuntimeError as error:
                refusal = str(error)
        if refusal:
            raise SMPError(
                f"expected {module_name} to change no argument in place in a way that its caller on another partition "
                f"cannot follow, found its argument {_name(forward, args, kwargs, tensor)} changed: {refusal}. Give it "
                "a copy (clone()), or put both modules into one partition"
            )
    if contents:
        callers = containers(args, kwargs)
        for number, content in contents.items():
            container = callers[number]
            container.clear()
            if isinstance(container, list):
                container.extend(content)
            else:
                container.update(content)


def containers(*values: Any) -> list[Any]:
    """Return the lists and dictionaries among *values*, at any depth in each other and in tuples, each once.

    *values* are not among them themselves.
    """
    by_id: dict[int, Any] = {}

    def visit(value: Any) -> None:
        if type(value) in CONTAINERS:
            if id(value) in by_id:
                return
            by_id[id(value)] = value
        elif not isinstance(value, tuple):
            return
        visit_elements(value)

    def visit_elements(value: Any) -> None:
        for element in value.values() if isinstance(value, dict) else value:
            visit(element)

    for value in values:
        visit_elements(value)
    return list(by_id.values())


def _content(container: Any) -> list[Any]:
    return list(container.items()) if isinstance(container, dict) else list(container)


def _is_same(content: list[Any], old_content: list[Any]) -> bool:
    if len(content) != len(old_content):
        return False
    pairs = zip(content, old_content, strict=True)
    # The items of a dictionary are new tuples at each call.
    return all(a is b or (type(a) is tuple is type(b) and len(a) == len(b) and all(map(_is, a, b))) for a, b in pairs)


def _is(a: Any, b: Any) -> bool:
    return a is b


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether *a* and *b* share an element."""
    if isinstance(a, RemoteTensor) or isinstance(b, RemoteTensor) or a.dtype != b.dtype:
        return False
    if get_storage_id(a) != get_storage_id(b):
        return False
    elements = torch.zeros(a.untyped_storage().nbytes() // a.element_size(), dtype=torch.bool)
    elements.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(elements.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def _name(forward: Callable[..., Any], args: Any, kwargs: Any, tensor: Tensor) -> str:
    try:
        names = [
            name
            for name, parameter in inspect.signature(forward).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        names = []
    leaves: Any = pytree.tree_flatten_with_path((args, kwargs))[0]
    for (which, first, *rest), leaf in leaves:
        if leaf is tensor:
            if which.idx:
                name = str(first.key)
            else:
                name = names[first.idx] if first.idx < len(names) else f"number {first.idx + 1}"
            return name + pytree.keystr(tuple(rest))
    return "(inside an object)"
