"""Pure: splits one stream of a host's `train` into whole lines and the newest states of progress bars.

With one rank the stream consists of the script's own bytes. With several, `train` writes whole lines with the rank's
prefix and, with TOOLKIT_LOG_PROGRESS=live, states of progress bars that end with a carriage return:
"[algo-1 rank 3]  45%\\r".
"""

import re

from toolkit.train.supervise.bars import kept_from, last_state, split
from toolkit.train.supervise.lines import LineBuffer

STATE_BYTES = 4096  # A longer text is no state of a progress bar.
_RANK = re.compile(rb"\[(?:\S+ )?rank \d+\] |\[1,mpirank:\d+,\S*?\]<std(?:out|err)>:")


class HostStream:
    """Stream *fd* (1 or 2) of a host.

    `states`: the newest state of each progress bar whose line is unfinished, by its rank's prefix (b"" without one).
    `moved`: a state has not been shown yet; the caller resets it after it has shown the progress.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.states: dict[bytes, bytes] = {}
        self.moved = False
        self._lines = LineBuffer()

    def feed(self, piece: bytes) -> tuple[bytes, ...]:
        """Return the blocks of whole lines that *piece* completes; a line that is too long comes in several blocks."""
        blocks = tuple(filter(None, self._lines.feed(piece)))
        if self.states:
            for block in blocks:
                self._end(block)
        if self._lines.held_bytes:
            self._note_states()
        return blocks

    def lines(self, block: bytes) -> bytes:
        """Return the lines of *block*, from `feed`, to show: each in its last state, without states of unfinished bars,
        which are noted."""
        lines, state = split(block)
        if state:
            self._note(state)
        return lines

    def flush(self) -> bytes:
        """Return the unfinished line."""
        self.states.clear()
        return self._lines.flush()

    def _note_states(self) -> None:
        held = self._lines.held()
        for state in held.split(b"\r"):
            self._note(state)
        self._lines.take(kept_from(held))

    def _note(self, text: bytes) -> None:
        state = last_state(text)
        if not state or len(state) > STATE_BYTES:
            return
        match = _RANK.match(state)
        self.states[match[0] if match else b""] = state
        self.moved = True

    def _end(self, block: bytes) -> None:
        """Forget the bars whose lines are complete."""
        for line in block.removesuffix(b"\n").split(b"\n"):
            match = _RANK.match(line[line.rfind(b"\r") + 1 :])
            self.states.pop(match[0] if match else b"", None)
            if not self.states:
                return
