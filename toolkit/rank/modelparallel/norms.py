"""Notices a function that takes the norm of all gradients where this rank has a part of them, and says so once.

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
    wrap: Callable[[Any], Any] = lambda made: made,
) -> None:
    """Replace the function *name* of the module *owner*, in all modules that have it by this name.

    Its first argument is an iterable of parameters or gradients. *concerns* says of it, as a list, whether it is about
    the divided model. *instead*: what to do. *wrap* makes of the new function what the modules get.
    """
    original = getattr(owner, name)
    if hasattr(original, _MARK):
        return

    def noticing(first: Any, *args: Any, **kwargs: Any) -> Any:
        global _is_said
        if not _is_said and world.is_begun():
            first = first if hasattr(first, "shape") or isinstance(first, list | tuple | dict) else list(first)
            here = world.current()
            is_divided = here.cfg.partitions > 1 or here.cfg.tensor_parallel_degree > 1
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

    made = wrap(replaced)
    setattr(made, _MARK, True)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, made)
