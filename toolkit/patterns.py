"""Regular expressions that are compiled when they are first used: each takes 0.1 ms, and most jobs use few of them."""

import re
from typing import Any, AnyStr


class _Pattern:
    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, value)  # From now on it is found without a call of this.
        return value


def lazy(text: AnyStr, flags: int = 0) -> "re.Pattern[AnyStr]":
    """Return what re.compile returns for *text*; an error in it shows when it is first used."""
    return _Pattern(text, flags)  # type: ignore[return-value]
