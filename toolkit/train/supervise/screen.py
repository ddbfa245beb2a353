"""A console stream that several sources share: lines are never mixed, and progress bars are shown as they move.

While one source has an unfinished line on the console, the lines of the others wait until it is complete, at most
HELD_S. The reader decides how the state of a bar is shown:

- "rows", on a terminal: each bar in a row of its own below the lines, redrawn a few times a second;
- "live": a text that ends with a carriage return, for a reader that expects it (`toolkit run`);
- "lines": a line every LINES_S, for log collectors.
"""

import os
import time
from typing import Literal

from toolkit.train.supervise.outlet import Outlet

HELD_S = 1.0
LIVE_S = 0.25
LINES_S = 5.0
ROWS = 8

Progress = Literal["auto", "live", "lines"]
How = Literal["rows", "live", "lines"]


class Screen(Outlet):
    """An outlet with `put` for the bytes of a single source, and `put_lines` and `say` for whole lines of any source.

    `served`: the loop calls `refresh`, so lines may wait. `states_s`: seconds between two states of a bar.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.served = False
        self.states_s = LINES_S
        self.opener: object = None  # The source whose unfinished line is on the console.
        self._how: How = "lines"
        self._held: list[bytes] = []
        self._held_s = 0.0
        self._rows: dict[bytes, bytes] = {}
        self._drawn: list[int] = []
        self._drawn_s = 0.0
        self._is_drawn_newest = True

    @property
    def states_are_lines(self) -> bool:
        return self._how == "lines"

    def show_progress(self, progress: Progress, *, terminal: bool) -> None:
        """Choose how bars are shown; *terminal*: if this stream is a terminal, it understands control sequences."""
        rows = progress == "auto" and terminal and os.isatty(self.fd)
        self._how = "rows" if rows else "live" if progress == "live" else "lines"
        self.states_s = LINES_S if self._how == "lines" else LIVE_S

    def put(self, *parts: bytes | memoryview) -> None:
        if self._drawn:
            self._erase()
        if not self._held:
            super().put(*parts)
            return
        block = b"".join(parts)
        cut = block.rfind(b"\n") + 1
        super().put(block[:cut] if cut else block)
        if cut:
            self._release()
            super().put(block[cut:])

    def put_lines(self, *parts: bytes | memoryview) -> None:
        """Write *parts*, which are whole lines, starting on a new line."""
        if not any(parts):
            return
        if self._waits():
            self._hold(b"".join(parts))
            return
        if self._drawn:
            self._erase()
        super().put(*parts if self.at_line_start else (b"\n", *parts))

    def say(self, line: bytes) -> None:
        if self._waits():
            self._hold(line)
            return
        if self._drawn:
            self._erase()
        super().say(line)

    def show_state(self, prefix: bytes, state: bytes) -> None:
        """Show *state* of the bar of the source with *prefix*, in place of its previous state."""
        if self._how == "rows":
            self._rows[prefix] = state
            self._is_drawn_newest = False
        elif self._how == "lines":
            self.put_lines(prefix, state, b"\n")
        elif self.at_line_start and not self.pending_bytes:
            super().put(prefix, state, b"\r")
            self.at_line_start = True  # The next line overwrites the state.

    def end_state(self, prefix: bytes) -> None:
        """Remove the bar of the source with *prefix*: its line is complete."""
        if self._rows.pop(prefix, None) is not None:
            self._is_drawn_newest = False

    def due_in_s(self, now_s: float) -> float | None:
        """Return the seconds until `refresh` is due, None if nothing waits."""
        waits = []
        if self._held:
            waits.append(max(self._held_s + HELD_S - now_s, 0.0))
        if not self._is_drawn_newest and not self.pending_bytes and self.at_line_start:
            waits.append(max(self._drawn_s + LIVE_S - now_s, 0.0))
        return min(waits, default=None)

    def refresh(self, now_s: float) -> None:
        """Write lines that have waited for HELD_S, and draw the bars."""
        if self._held and now_s >= self._held_s + HELD_S:
            self._release()
        if not self._is_drawn_newest and now_s >= self._drawn_s + LIVE_S:
            self._draw(now_s)

    def settle(self) -> None:
        """Write the lines that wait, and erase the bars: `refresh` will not be called again."""
        self.served = False
        self._release()
        self._rows.clear()
        self._is_drawn_newest = True
        if self._drawn:
            self._erase()

    def _waits(self) -> bool:
        return bool(self._held) or (self.served and not self.at_line_start)

    def _hold(self, lines: bytes) -> None:
        if not self._held:
            self._held_s = time.monotonic()
        self._held.append(lines)

    def _release(self) -> None:
        held, self._held = self._held, []
        for lines in held:
            super().say(lines)

    def _erase(self) -> None:
        columns, _ = _size(self.fd)
        rows = sum(max(1, -(-length // columns)) for length in self._drawn)  # A narrower terminal has wrapped them.
        up = b"\x1b[%dA" % (rows - 1) if rows > 1 else b""
        self._drawn = []
        self._is_drawn_newest = not self._rows
        super().put(b"\r" + up + b"\x1b[J")
        self.at_line_start = True

    def _draw(self, now_s: float) -> None:
        if self.pending_bytes or not self.at_line_start:
            return
        if self._drawn:
            self._erase()
        self._drawn_s = now_s
        self._is_drawn_newest = True
        texts = shown_rows(self._rows, *_size(self.fd))
        if texts:
            super().put("\n".join(texts).encode() + b"\x1b[0m")
            self._drawn = [len(text) for text in texts]
            self.at_line_start = True  # The next line overwrites them.


def shown_rows(states: dict[bytes, bytes], columns: int, lines: int) -> list[str]:
    """Return the newest *states* by prefix as rows that fit on a terminal of *columns* and *lines*."""
    room = max(1, min(ROWS, lines // 3))
    texts = ["".join(filter(str.isprintable, _plain(prefix + state))) for prefix, state in sorted(states.items())]
    if len(texts) > room:
        texts = [*texts[: room - 1], f"... and {len(texts) - room + 1} more progress bars"]
    return [text[: max(columns - 1, 1)] for text in texts]


def _plain(state: bytes) -> str:
    import re

    return re.sub(rb"\x1b\[[0-9;]*m", b"", state).decode("utf-8", "replace")


def _size(fd: int) -> tuple[int, int]:
    try:
        columns, lines = os.get_terminal_size(fd)
    except OSError:
        return 80, 24
    return columns or 80, lines or 24
