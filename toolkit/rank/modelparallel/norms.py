"""Warns once when a function takes the norm of all gradients although this rank holds only a part of them.

Such a function clips each rank's part by another factor. It cannot be made global: a rank that calls it alone would
wait for the others.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from toolkit.rank.modelparallel import world

_MARK = "_smp_notices"
_is_said = False


def notice(
    owner: Any,
    name: str,
    instead: str,
    concerns: Callable[[Any], bool] = lambda _: True,
    wrap: Callable[[Any], Any] = lambda function: function,
) -> None:
    """Replace the function *name* of the module *owner*, in all modules that have it by this name.

    Its first argument is an iterable of parameters or gradients. *concerns* tells of it, as a list, whether it belongs
    to the divided model. *instead*: the advice for the user. *wrap* converts the new function before the modules get
    it.
    """
    original = getattr(owner, name)
    if hasattr(original, _MARK):
        return

    def noticing(first: Any, *args: Any, **kwargs: Any) -> Any:
        global _is_said
        if not _is_said and world.is_begun():
            first = first if hasattr(first, "shape") or isinstance(first, list | tuple | dict) else list(first)
            current_world = world.current()
            is_divided = current_world.cfg.partitions > 1 or current_world.cfg.tensor_parallel_degree > 1
            if is_divided and concerns(first):
                _is_said = True
                world.say(
                    f"{owner.__name__}.{name} takes the norm of one rank's gradients, and so clips each rank's part of "
                    f"the model by another factor: {instead}"
                )
        return original(first, *args, **kwargs)

    first_name = next(iter(inspect.signature(original).parameters))

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if not args and first_name not in kwargs:
            return original(**kwargs)
        return noticing(*args, **kwargs) if args else noticing(kwargs.pop(first_name), **kwargs)

    replacement = wrap(replaced)
    setattr(replacement, _MARK, True)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, replacement)
