"""Plain attributes that a module sets in its forward pass, which runs on its owner's rank alone.

The caller's copy of the module gets the numbers and words. For any other value (a tensor, a list) it gets an `Unseen`,
which names module and attribute where somebody uses it: the value of before would be wrong without a word.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn

from toolkit.rank.modelparallel.errors import SMPError

PLAIN = (bool, int, float, complex, str, type(None))
# What torch and this library keep in a module themselves.
INTERNAL = frozenset([*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"])


class Set(NamedTuple):
    """The attribute `name` of the module at `path` has a new value: `value` if it `is_plain`."""

    path: str
    name: str
    is_plain: bool
    value: Any


class Before:
    """The attributes of *module*, and of the modules in it, before its forward pass."""

    def __init__(self, module: nn.Module) -> None:
        self._vars = [(path, vars(each), _marks(vars(each))) for path, each in module.named_modules()]

    def changes(self, at: str) -> list[Set]:
        """Return what has changed since then; the module is at the path *at* of the model."""
        return [
            Set(".".join(filter(None, (at, path))), name, is_plain := type(value) in PLAIN, value if is_plain else None)
            for path, now, marks in self._vars
            for name, value in now.items()
            if not _is_same(marks.get(name), value) and name not in INTERNAL
        ]


def take_over(changes: Iterable[Set], module_at: Callable[[str], nn.Module], partition: int) -> None:
    """Give the modules here what their owner on *partition* has set."""
    for path, name, is_plain, value in changes:
        vars(module_at(path))[name] = value if is_plain else Unseen(path, name, partition)


class Unseen:
    """The value of an attribute that another rank has; every use is refused."""

    def __init__(self, path: str, name: str, partition: int) -> None:
        self._what = path, name, partition

    __hash__ = object.__hash__  # Beside the __eq__ below.

    def __repr__(self) -> str:
        path, name, partition = self._what
        return f"<{path}.{name}, on partition {partition}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        path, name, partition = self.__dict__["_what"]
        raise SMPError(
            f"expected a value that module {path} of partition {partition} returns, found a use of its attribute "
            f"{name}, which its forward pass sets on another rank: return it from forward, too, or put both modules "
            "into one partition (smp.set_partition, with auto_partition false)"
        )

    @classmethod
    def __torch_function__(cls, _func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        next(each for each in leaves if isinstance(each, Unseen))._refuse()


for _name in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod"),
    *("pow", "rpow", "matmul", "rmatmul", "neg", "pos", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne"),
    *("bool", "float", "int", "index", "complex", "len", "iter", "getitem", "setitem", "contains", "call", "round"),
):
    setattr(Unseen, f"__{_name}__", Unseen._refuse)


def _marks(values: dict[str, Any]) -> dict[str, tuple[Any, int]]:
    return {name: (value, _state(value)) for name, value in values.items()}


def _is_same(mark: tuple[Any, int] | None, value: Any) -> bool:
    return mark is not None and mark[0] is value and mark[1] == _state(value)


def _state(value: Any) -> int:
    """Return a number that differs after a change in place."""
    kind = type(value)
    if kind in (list, dict, set):
        return len(value)
    return value._version if kind is torch.Tensor and not value.is_inference() else 0
