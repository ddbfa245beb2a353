"""Relays the output of processes: to the console, the line monitors, the tails for the verdict and the ranks' files.

Ways to share a console stream:
- alone: one process writes to it: bytes pass as they come, progress bars included.
- paired: one process whose stdout and stderr lead to the same sink: whole lines, an unfinished one after a short wait.
- shared: several processes: whole lines, each with its prefix; the newest state of an unfinished line (screen.py).
- silent: nothing of it is shown.

Tails and files keep every byte. A monitor gets whole lines; from a progress bar's line only the last state.
"""

import fcntl
import os
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from toolkit.folders import make
from toolkit.patterns import lazy
from toolkit.train.supervise import bars
from toolkit.train.supervise.lines import LineBuffer, prefixed
from toolkit.train.supervise.outlet import F_SETPIPE_SZ
from toolkit.train.supervise.screen import HELD_S, Screen

# O_NONBLOCK: if the path is a FIFO, `train` does not wait for its reader. O_NOFOLLOW: if it is a link, `train` does not
# write to the link's target.
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
READ_BYTES = 1 << 18
PIPE_BYTES = 1 << 20
TAIL_BYTES = 1 << 16
# A longer word at a tail's start is kept in part.
WORD_BYTES = 256
_GAP = lazy(rb"[ \t\r\n\"'`]")
REST_S = 0.2
# The most bytes held of a bar's unfinished line; earlier states go to the tail and the file.
HELD_BYTES = 1 << 16
# A longer text is not shown as the state of a bar.
STATE_BYTES = 4096

LineMonitor = Callable[[bytes], None]
Sharing = Literal["alone", "paired", "shared", "silent"]


class Tail:
    """The last 64 KiB of a stream, from a word's start: of a secret that is cut, nothing recognises the rest."""

    def __init__(self) -> None:
        self._blocks: deque[bytes] = deque()
        self._bytes = 0
        self._all_bytes = 0

    def add(self, block: bytes) -> None:
        """Add *block*; keep the last 64 KiB."""
        self._all_bytes += len(block)
        if len(block) > TAIL_BYTES:
            block = block[-TAIL_BYTES:]
        self._blocks.append(block)
        self._bytes += len(block)
        while self._bytes - len(self._blocks[0]) >= TAIL_BYTES:
            self._bytes -= len(self._blocks.popleft())

    def text(self) -> bytes:
        text = b"".join(self._blocks)[-TAIL_BYTES:]
        gap = _GAP.search(text, 0, WORD_BYTES) if self._all_bytes > len(text) else None
        return text[gap.end() :] if gap is not None else text


class RankFile:
    """A rank's own log file, rotated at *limit_bytes*; one older piece is kept. On a full disk the file ends, and the
    job goes on. *goes_on*: append to what an earlier attempt of the rank has written."""

    def __init__(self, path: Path, limit_bytes: int, note: Callable[[str], None], *, goes_on: bool = False) -> None:
        self._path = path
        self._limit = limit_bytes
        self._note = note
        self._written = 0
        self._fd: int | None = None
        self._open(0 if goes_on else os.O_TRUNC)

    def add(self, block: bytes) -> None:
        """Write *block*."""
        if self._fd is None:
            return
        try:
            if self._written + len(block) > self._limit and self._written:
                self.close()
                self._path.replace(self._path.with_suffix(".1.log"))
                self._open()
            self._written += os.write(self._fd, block) if self._fd is not None else 0
        except OSError as error:
            self._note(f"{self._path}: {error.strerror}; this file ends here, the console goes on")
            self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, None
        try:
            if fd is not None:
                os.close(fd)
        except OSError as error:  # A network file system may report a full disk only now.
            self._note(f"{self._path}: {error.strerror}; its end is not all there")

    def _open(self, truncate: int = os.O_TRUNC) -> None:
        self._fd = None
        try:
            make(self._path.parent)
            self._fd = os.open(self._path, FLAGS | truncate, 0o644)
            status = os.fstat(self._fd)
            self._written = status.st_size
            if not stat.S_ISREG(status.st_mode):
                self.close()
                self._note(f"{self._path}: no plain file; no file for this rank, the console goes on")
        except OSError as error:
            self._note(f"{self._path}: {error.strerror}; no file for this rank, the console goes on")


class FilteredFile:
    """The lines that hold one of *texts*, in the *file* that all ranks share, each with *prefix*."""

    def __init__(self, file: RankFile, texts: tuple[bytes, ...], prefix: bytes) -> None:
        self._file = file
        self._texts = texts
        self._prefix = prefix

    def add(self, block: bytes) -> None:
        """Write those of *block*."""
        lines = [line for line in block.splitlines(keepends=True) if any(text in line for text in self._texts)]
        if lines:
            self._file.add(b"".join(self._prefix + line for line in lines))


class Stream:
    """One stream of one process. The loop calls `read` when its pipe is readable. `read_s`: when it was last read."""

    def __init__(
        self,
        fd: int,
        outlet: Screen,
        *,
        way: Sharing,
        prefix: bytes = b"",
        monitor: LineMonitor | None = None,
        files: tuple["RankFile | FilteredFile", ...] = (),
    ) -> None:
        self.fd = fd
        self.outlet = outlet
        self.tail = Tail()
        self.read_bytes = 0
        self.read_s = 0.0
        self.lines = LineBuffer()
        self.ended = False
        self._way = way
        self._prefix = prefix
        self._monitor = monitor
        self._files = files
        self._unshown: list[bytes] = []
        self._since_s = 0.0
        self._is_shown = True
        # By prefix: states that came as whole lines, and the states that the console shows.
        self._states: dict[bytes, bytes] = {}
        self._standing: dict[bytes, bytes] = {}
        os.set_blocking(fd, False)
        try:
            fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # The user's limit for pipes is reached (pipe(7)); the default size works, too.

    def read(self, now_s: float) -> bool:
        """Read at most 256 KiB from the pipe and return True; at its end, flush what is held."""
        try:
            piece = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            self.close()
            return False
        self.read_bytes += len(piece)
        self.read_s = now_s
        lines, over = self.lines.feed(piece)
        if self._way == "alone":
            self.outlet.put(piece)
        elif self._way == "paired":
            self._show_paired(piece, now_s)
        if lines:
            self._pass(lines)
        if over:
            self._pass(over)
        if self.lines.held_bytes > HELD_BYTES:
            self._shorten()
        if self._way == "shared":
            self._note_unfinished(now_s, anew=bool(lines))
        return True

    def due_in_s(self, now_s: float) -> float | None:
        """Return the seconds until `refresh` is due, None if nothing waits."""
        if self._way == "paired" and self._unshown:
            return max(self._since_s + REST_S - now_s, 0.0)
        if not self._is_shown:
            return max(self._since_s + self.outlet.states_s - now_s, 0.0)
        return None

    def wait_anew(self, now_s: float) -> None:
        """Let what is unfinished wait from now on: the stream was not read for a while."""
        self._since_s = now_s

    def refresh(self, now_s: float) -> None:
        """Show what is due."""
        if self._way == "paired":
            self._put_paired(now_s)
        elif self._way == "shared":
            self._is_shown = True
            self._show_unfinished()

    def close(self) -> None:
        """Flush and close: at end of file, or when `train` stops waiting for it."""
        if self.ended:
            return
        self.ended = True
        self._is_shown = True
        self.outlet.put(b"".join(self._unshown))
        self._unshown.clear()
        rest = self.lines.flush()
        if rest:
            self._pass(rest)
        for prefix, state in self._states.items():
            self.outlet.put_lines(prefix, state, b"\n")
        for prefix in self._standing:
            self.outlet.end_state(prefix)
        os.close(self.fd)

    def discard(self) -> None:
        """Close without a flush."""
        self.ended = True
        self._unshown.clear()
        os.close(self.fd)

    def _pass(self, block: bytes) -> None:
        if self._way == "shared":
            self.outlet.put_lines(*self._lines_of(block, self._prefix))
        self.tail.add(block)
        if self._monitor is not None:
            self._monitor(bars.collapsed(block))
        for file in self._files:
            file.add(block if block.endswith(b"\n") or self._way != "shared" else block + b"\n")

    def _lines_of(self, block: bytes, prefix: bytes) -> tuple[bytes | memoryview, ...]:
        """Return the lines of *block*, each with *prefix* before it, and keep a line that is only a state."""
        lines, state = bars.split(block if block.endswith(b"\n") else block.rstrip(b"\r"))
        if lines:
            self._states.pop(prefix, None)
            standing = self._standing.pop(prefix, None)
            if standing is not None:
                self.outlet.end_state(prefix)
                if self.outlet.states_are_lines and lines.removesuffix(b"\n") == standing:
                    lines = b""  # The console shows it already.
        if state:
            self._states[prefix] = state
        return prefixed(lines, prefix) if lines else ()

    def _note_unfinished(self, now_s: float, *, anew: bool) -> None:
        """Note since when an unfinished line waits to be shown; *anew*: whole lines came before it."""
        if self._states:
            anew = False
        if not self._unfinished:
            self._is_shown = True
        elif self._is_shown or anew:
            self._is_shown = False
            self._since_s = now_s

    @property
    def _unfinished(self) -> bool:
        return bool(self.lines.held_bytes or self._states)

    def _show_unfinished(self) -> None:
        self._show_state(self._prefix, self.lines.held())

    def _show_state(self, prefix: bytes, held: bytes) -> None:
        """Show the newest state: that of *held*, an unfinished line, else that of the lines before it."""
        last_line_state = self._states.pop(prefix, b"")
        state = bars.last_state(held) or last_line_state
        if state and len(state) <= STATE_BYTES and self._standing.get(prefix) != state:
            self._standing[prefix] = state
            self.outlet.show_state(prefix, state)

    def _shorten(self) -> None:
        """Drop all states of an unfinished line but the last."""
        passed = self.lines.take(bars.kept_from(self.lines.held()))
        self.tail.add(passed)
        for file in self._files if passed else ():
            file.add(passed + b"\n")  # The other stream's lines must not land in it.

    def _show_paired(self, piece: bytes, now_s: float) -> None:
        if not self._unshown:
            self._since_s = now_s
        if self._disturbs:
            self._unshown.append(piece)
        else:
            cut = piece.rfind(b"\n") + 1
            if cut:
                self._put_raw(b"".join((*self._unshown, piece[:cut])))
                self._unshown.clear()
                self._since_s = now_s
            if cut < len(piece):
                self._unshown.append(piece[cut:])
        if sum(map(len, self._unshown)) > READ_BYTES:
            self._put_raw(b"".join(self._unshown))
            self._unshown.clear()

    def _put_paired(self, now_s: float) -> None:
        if self._disturbs and now_s < self._since_s + HELD_S:
            return
        self._put_raw(b"".join(self._unshown))
        self._unshown.clear()

    @property
    def _disturbs(self) -> bool:
        """True if the process's other stream has an unfinished line, not a bar, on the console: output would run into
        it."""
        outlet = self.outlet
        return not outlet.at_line_start and outlet.opener not in (None, self)

    def _put_raw(self, block: bytes) -> None:
        self.outlet.put(block)
        open_line = block[block.rfind(b"\n") + 1 :]
        self.outlet.opener = self if open_line and b"\r" not in open_line else None
