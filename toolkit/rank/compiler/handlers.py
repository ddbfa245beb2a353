"""Distinguishes errors that the script's signal handlers raise from those of a compiler.

A handler runs between any two instructions, so the error with which it ends the training (`raise Stop`) may come out of
code that is compiled, or being compiled, and wrapped by the compiler into an error of its own. A fallback must not take
it for a model that does not compile.
"""

import signal

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any


def handler_codes() -> "set[CodeType]":
    """Return the code of the signal handlers that this process has now: functions, methods, and objects to call."""
    codes = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # functools.partial
        if not callable(handler):  # SIG_DFL, SIG_IGN
            continue
        code = getattr(handler, "__code__", None) or getattr(handler.__call__, "__code__", None)
        if code is not None:
            codes.add(code)
    return codes


def find_raised(error: BaseException, handlers: "set[CodeType]") -> "BaseException | None":
    """Return the error of a signal handler that *error* is or has come from, None if no handler raised it.

    *handlers*: code of handlers besides those of now: a handler may have replaced itself before it raised.
    """
    handlers = handlers | handler_codes()
    waiting: list[BaseException | None] = [error]
    visited: list[BaseException] = []
    innermost = None
    while waiting:
        cause = waiting.pop()
        if cause is None or any(cause is earlier for earlier in visited):
            continue
        visited.append(cause)
        if _passed(cause, handlers):
            innermost = cause  # The last one is the innermost: what a compiler made of it has the same traceback.
        waiting += [cause.__context__, cause.__cause__, getattr(cause, "inner_exception", None)]
    return innermost


def _passed(error: BaseException, codes: "set[CodeType]") -> bool:
    """True if *error* has passed through one of *codes*."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False
