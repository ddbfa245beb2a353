"""Pure: applies backspaces to a line, as a terminal does."""

from toolkit.patterns import lazy

_BACK = lazy("\b+")


def without_backspaces(line: str) -> str:
    """Return *line* as it looks after its backspaces: each moves back by one character, and what follows overwrites."""
    if "\b" not in line:
        return line
    cells: list[str] = []
    column = start = 0
    for back in _BACK.finditer(line):
        column = _put(cells, column, line[start : back.start()]) - (back.end() - back.start())
        column, start = max(column, 0), back.end()
    if line[start:].strip():
        # A bar that is drawn anew is as long as before, or longer. What is left of a longer state is none of this one.
        del cells[_put(cells, column, line[start:]) :]
    return "".join(cells)


def _put(cells: list[str], column: int, text: str) -> int:
    """Write *text* at *column* and return where it ends."""
    cells[column : column + len(text)] = text
    return column + len(text)
