"""Tells errors that the script's signal handlers raise from those of a compiler.

A handler runs between any two instructions, so the error with which it ends the training (`raise Stop`) may come out of
code that is compiled, or being compiled, and wrapped by the compiler into an error of its own. A fallback must not take
it for a model that does not compile.
"""

import signal

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any


def codes() -> "set[CodeType]":
    """Return the code of the signal handlers that this process has now: functions, methods, and objects to call."""
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # functools.partial
        if not callable(handler):  # SIG_DFL, SIG_IGN
            continue
        code = getattr(handler, "__code__", None) or getattr(handler.__call__, "__code__", None)
        if code is not None:
            found.add(code)
    return found


def raised(error: BaseException, known: "set[CodeType]") -> "BaseException | None":
    """Return the error of a signal handler that *error* is or has come from, None if no handler raised it.

    *known*: code of handlers besides those of now: a handler may have replaced itself before it raised.
    """
    known = known | codes()
    waiting: list[BaseException | None] = [error]
    seen: list[BaseException] = []
    found = None
    while waiting:
        each = waiting.pop()
        if each is None or any(each is other for other in seen):
            continue
        seen.append(each)
        if _passed(each, known):
            found = each  # The last one is the innermost: what a compiler made of it has the same traceback.
        waiting += [each.__context__, each.__cause__, getattr(each, "inner_exception", None)]
    return found


def _passed(error: BaseException, known: "set[CodeType]") -> bool:
    """True if *error* has come out of code that is *known*."""
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code in known:
            return True
        place = place.tb_next
    return False
