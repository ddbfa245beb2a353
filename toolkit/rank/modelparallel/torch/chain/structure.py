"""What a plan assumes of a model: its modules, what they run, their hooks and modes."""

import itertools
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from torch.nn.modules import module as torch_module

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
GLOBAL_HOOKS = tuple(f"_global{kind}" for kind in HOOKS)


class Numbers:
    """Gives each object a number of its own, which no later object gets (an id may come again)."""

    def __init__(self) -> None:
        # By id: a module that defines equality has no hash.
        self._numbers: dict[int, tuple[Callable[[], Any], int]] = {}
        self._next = itertools.count()

    def of(self, thing: Any) -> int:
        """Return the number of *thing*."""
        alive, number = self._numbers.get(id(thing), (None, 0))
        if alive is None or alive() is not thing:
            number = next(self._next)
            self._numbers[id(thing)] = (_reference(thing), number)
        return number


def _reference(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


def structure(root: Any, numbers: Numbers) -> Hashable:
    """Return a value that differs once a plan made for *root* may be wrong for it.

    That is: a module was added, removed or replaced, at whatever depth; its class, its own or its class's forward, its
    mode or a hook changed; a hook for all modules was added. Not parameters: a stage's modules use those they have.
    """
    # torch numbers hooks in the order in which they are registered, and never gives a number again.
    of_all = tuple(tuple(getattr(torch_module, kind, ())) for kind in GLOBAL_HOOKS)
    return of_all, tuple(
        (
            path,
            numbers.of(module),
            type(module),
            type(module).forward,
            numbers.of(vars(module)["forward"]) if "forward" in vars(module) else None,
            module.training,
            getattr(module, "inplace", False),
            tuple(tuple(getattr(module, kind)) for kind in HOOKS),
        )
        for path, module in root.named_modules(remove_duplicate=False)
    )


def has_hooks(module: Any) -> bool:
    """Return whether something is called whenever *module* is."""
    return any(getattr(module, kind) for kind in HOOKS) or has_hooks_for_all()


def has_hooks_for_all() -> bool:
    """Return whether something is called whenever any module is."""
    return any(getattr(torch_module, kind, ()) for kind in GLOBAL_HOOKS)
