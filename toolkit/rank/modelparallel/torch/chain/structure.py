"""The structure of a model for which a plan was made: its modules, their forward methods, hooks and modes."""

import itertools
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from toolkit.rank.frameworks.torch.modules import (
    has_global_hooks,
    has_own_hooks,
    list_global_hook_numbers,
    list_hook_numbers,
)


class Numbers:
    """Numbers objects; no later object gets the same number (an id may be used again)."""

    def __init__(self) -> None:
        # By id: a module that defines equality has no hash.
        self._numbers: dict[int, tuple[Callable[[], Any], int]] = {}
        self._next = itertools.count()

    def of(self, value: Any) -> int:
        """Return the number of *value*."""
        alive, number = self._numbers.get(id(value), (None, 0))
        if alive is None or alive() is not value:
            number = next(self._next)
            self._numbers[id(value)] = (_reference(value), number)
        return number


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def describe_structure(root: Any, numbers: Numbers) -> Hashable:
    """Return a value that differs once a plan made for *root* may be wrong for it.

    That is: a module was added, removed or replaced, at whatever depth; its class, its own or its class's forward, its
    mode or a hook changed; a hook for all modules was added. Not parameters: a stage's modules use those they have.
    """
    return list_global_hook_numbers(), tuple(
        (
            path,
            numbers.of(module),
            type(module),
            type(module).forward,
            numbers.of(vars(module)["forward"]) if "forward" in vars(module) else None,
            module.training,
            getattr(module, "inplace", False),
            list_hook_numbers(module),
        )
        for path, module in root.named_modules(remove_duplicate=False)
    )


def has_hooks(module: Any) -> bool:
    """Return whether *module* has hooks, or all modules have."""
    return has_own_hooks(module) or has_global_hooks()
