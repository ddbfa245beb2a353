"""Pure: what a terminal shows of a line that goes back over itself."""

from toolkit.patterns import lazy

_BACK = lazy("\b+")


def without_backspaces(line: str) -> str:
    """Return *line* as it looks after its backspaces: each moves back by one character, and what follows overwrites."""
    if "\b" not in line:
        return line
    shown: list[str] = []
    at = start = 0
    for back in _BACK.finditer(line):
        at = _put(shown, at, line[start : back.start()]) - (back.end() - back.start())
        at, start = max(at, 0), back.end()
    if line[start:].strip():
        # A bar that is drawn anew is as long as before, or longer. What is left of a longer state is none of this one.
        del shown[_put(shown, at, line[start:]) :]
    return "".join(shown)


def _put(shown: list[str], at: int, text: str) -> int:
    """Write *text* at *at* and return where it ends."""
    shown[at : at + len(text)] = text
    return at + len(text)
