"""Plain attributes that a module sets in its forward pass, which runs on its owner's rank alone.

The caller's copy of the module gets the numbers and strings. For any other value (a tensor, a list) it gets a
`RemoteAttribute`, which refuses every use with an error that names module and attribute: the old value would be wrong.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn

from toolkit.rank.frameworks.torch.tensors import get_version, pytree
from toolkit.rank.modelparallel.errors import SMPError

PLAIN = (bool, int, float, complex, str, type(None))
# The attributes that torch and this library set in a module themselves.
INTERNAL = frozenset([*vars(nn.Module()), "_compiled_call_impl", "_flat_weights", "_flat_weight_refs"])


class AttributeChange(NamedTuple):
    """The attribute `name` of the module at `path` has a new value: `value` if it `is_plain`."""

    path: str
    name: str
    is_plain: bool
    value: Any


class AttributeSnapshot:
    """The attributes of *module*, and of the modules in it, before its forward pass."""

    def __init__(self, module: nn.Module) -> None:
        self._vars = [(path, vars(submodule), _marks(vars(submodule))) for path, submodule in module.named_modules()]

    def changes(self, prefix: str) -> list[AttributeChange]:
        """Return the changes since then; the module is at the path *prefix* of the model."""
        return [
            AttributeChange(
                path=".".join(filter(None, (prefix, path))),
                name=name,
                is_plain=(is_plain := type(value) in PLAIN),
                value=value if is_plain else None,
            )
            for path, now, marks in self._vars
            for name, value in now.items()
            if not _is_same(marks.get(name), value) and name not in INTERNAL
        ]


def apply_changes(changes: Iterable[AttributeChange], module_at: Callable[[str], nn.Module], partition: int) -> None:
    """Set the attributes of this rank's modules that their owner on *partition* has set."""
    for path, name, is_plain, value in changes:
        vars(module_at(path))[name] = value if is_plain else RemoteAttribute(path, name, partition)


class RemoteAttribute:
    """The value of an attribute that another rank has; every use is refused."""

    def __init__(self, path: str, name: str, partition: int) -> None:
        self._origin = path, name, partition

    __hash__ = object.__hash__  # Beside the __eq__ below.

    def __repr__(self) -> str:
        path, name, partition = self._origin
        return f"<{path}.{name}, on partition {partition}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        path, name, partition = self.__dict__["_origin"]
        raise SMPError(
            f"expected a value that module {path} of partition {partition} returns, found a use of its attribute "
            f"{name}, which its forward pass sets on another rank: return it from forward, too, or put both modules "
            "into one partition (smp.set_partition, with auto_partition false)"
        )

    @classmethod
    def __torch_function__(cls, _func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        leaves = pytree.tree_leaves((args, kwargs))
        next(leaf for leaf in leaves if isinstance(leaf, RemoteAttribute))._refuse()


_OPERATORS = """
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul neg pos abs invert
    lt le gt ge eq ne bool float int index complex len iter getitem setitem contains call round
"""
for _name in _OPERATORS.split():
    setattr(RemoteAttribute, f"__{_name}__", RemoteAttribute._refuse)


def _marks(values: dict[str, Any]) -> dict[str, tuple[Any, int]]:
    return {name: (value, _state(value)) for name, value in values.items()}


def _is_same(mark: tuple[Any, int] | None, value: Any) -> bool:
    return mark is not None and mark[0] is value and mark[1] == _state(value)


def _state(value: Any) -> int:
    """Return a number that differs after a change in place."""
    kind = type(value)
    if kind in (list, dict, set):
        return len(value)
    return get_version(value) if kind is torch.Tensor else 0
