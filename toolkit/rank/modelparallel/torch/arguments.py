"""What a call passes by reference: tensors, lists and dictionaries, which a module may change in place.

The owner works on copies. `Given` notes what the module changes of them: of a tensor by its version, of a list or
dictionary by what it holds. `carry_over` then changes the caller's, a tensor by an operation of the caller's graph, so
that its gradient is that of plain PyTorch. An object of another class that a module changes (a cache) is not seen, nor
is a change past autograd (tensor.data).
"""

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.remote_tensor import Far

CONTAINERS: tuple[type, ...] = (list, dict, OrderedDict, defaultdict)


class Changes(NamedTuple):
    """`tensors`: the changed ones' numbers. `contents`: by number what a changed list or dictionary holds now."""

    tensors: list[int]
    contents: dict[int, list[Any]]


class Given:
    """The arguments of a call, at its owner, before the call; *tensors* are those in them. `known`: what of them a
    result may refer to, in the same order as `known` for the caller's."""

    def __init__(self, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._containers = containers(args, kwargs)
        self._versions = [tensor._version for tensor in tensors]
        self._contents = [_content(each) for each in self._containers]
        self.known = [*tensors, *self._containers]

    def changes(self) -> Changes:
        """Return what has changed since then."""
        now = [_content(each) for each in self._containers]
        return Changes(
            [number for number, tensor in enumerate(self._tensors) if tensor._version != self._versions[number]],
            {
                number: content
                for number, (content, before) in enumerate(zip(now, self._contents, strict=True))
                if not _is_same(content, before)
            },
        )


def known(args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> list[Any]:
    """Return what a result may refer to of the arguments of a call, whose *tensors* these are."""
    return [*tensors, *containers(args, kwargs)]


def carry_over(
    changed: Sequence[tuple[Tensor, Tensor]],
    contents: Mapping[int, list[Any]],
    args: Any,
    kwargs: Any,
    tensors: Sequence[Tensor],
    forward: Callable[..., Any],
    what: str,
) -> None:
    """Change the caller's arguments as the owner's have changed. *changed*: (the caller's tensor, its new value).

    *forward* names the arguments, and *what* the module, in an error.

    Raises:
        SMPError: the shape has changed, two arguments share memory, or autograd refuses the change.
    """
    for tensor, value in changed:
        why = ""
        if value.shape != tensor.shape:
            why = f"from the shape {tuple(tensor.shape)} to {tuple(value.shape)}"
        elif others := [one for one in tensors if one is not tensor and _overlap(one, tensor)]:
            why = f"it shares memory with the argument {_name(forward, args, kwargs, others[0])}"
        else:
            try:
                tensor.copy_(value)
            except RuntimeError as error:
                why = str(error)
        if why:
            raise SMPError(
                f"expected {what} to change no argument in place in a way that its caller on another partition cannot "
                f"follow, found its argument {_name(forward, args, kwargs, tensor)} changed: {why}. Give it a copy "
                "(clone()), or put both modules into one partition"
            )
    if contents:
        its = containers(args, kwargs)
        for number, content in contents.items():
            container = its[number]
            container.clear()
            if isinstance(container, list):
                container.extend(content)
            else:
                container.update(content)


def containers(*values: Any) -> list[Any]:
    """Return the lists and dictionaries among *values*, at any depth in each other and in tuples, each once.

    *values* are not among them themselves.
    """
    found: dict[int, Any] = {}

    def walk(value: Any) -> None:
        kind = type(value)
        if kind in CONTAINERS:
            if id(value) in found:
                return
            found[id(value)] = value
        elif not isinstance(value, tuple):
            return
        inside(value)

    def inside(value: Any) -> None:
        for each in value.values() if isinstance(value, dict) else value:
            walk(each)

    for value in values:
        inside(value)
    return list(found.values())


def _content(container: Any) -> list[Any]:
    return list(container.items()) if isinstance(container, dict) else list(container)


def _is_same(one: list[Any], other: list[Any]) -> bool:
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    # Those of a dictionary are pairs of their own, made for each look.
    return all(a is b or (type(a) is tuple is type(b) and len(a) == len(b) and all(map(_is, a, b))) for a, b in pairs)


def _is(one: Any, other: Any) -> bool:
    return one is other


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Return whether an element of *one* is one of *other*."""
    if isinstance(one, Far) or isinstance(other, Far) or one.dtype != other.dtype:
        return False
    if one.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    elements = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    elements.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(elements.as_strided(other.shape, other.stride(), other.storage_offset()).any())


def _name(forward: Callable[..., Any], args: Any, kwargs: Any, tensor: Tensor) -> str:
    try:
        names = [
            name
            for name, its in inspect.signature(forward).parameters.items()
            if its.kind in (its.POSITIONAL_ONLY, its.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        names = []
    leaves: Any = tree_flatten_with_path((args, kwargs))[0]
    for (which, first, *rest), leaf in leaves:
        if leaf is tensor:
            if which.idx:
                name = str(first.key)
            else:
                name = names[first.idx] if first.idx < len(names) else f"number {first.idx + 1}"
            return name + keystr(tuple(rest))
    return "(inside an object)"
