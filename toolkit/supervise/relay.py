"""What ranks write on its way to the console: completed, shown to the taps, kept in tails and files, put out.

Three ways to share a console stream:
- alone: one process, one stream behind the console's: bytes pass as they come, progress bars live.
- paired: one process whose stdout and stderr end in the same sink: whole lines, an unfinished one after a short rest.
- shared: several processes: whole lines only, each with its prefix; a progress bar's states every few seconds.
"""

import fcntl
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from toolkit.supervise.lines import Lines, collapsed, prefixed
from toolkit.supervise.outlet import F_SETPIPE_SZ, Outlet

READ_BYTES = 1 << 18
PIPE_BYTES = 1 << 20
TAIL_BYTES = 1 << 16
REST_S = 0.2
STATES_S = 5.0

Tap = Callable[[bytes], None]
Way = Literal["alone", "paired", "shared"]


class Tail:
    """The last 64 KiB of a stream."""

    def __init__(self) -> None:
        self._blocks: deque[bytes] = deque()
        self._bytes = 0

    def add(self, block: bytes) -> None:
        """Take *block*, forget what is older than the last 64 KiB."""
        if len(block) > TAIL_BYTES:
            block = block[-TAIL_BYTES:]
        self._blocks.append(block)
        self._bytes += len(block)
        while self._bytes - len(self._blocks[0]) >= TAIL_BYTES:
            self._bytes -= len(self._blocks.popleft())

    def text(self) -> bytes:
        return b"".join(self._blocks)[-TAIL_BYTES:]


class RankFile:
    """A rank's own file, rotated once at *limit_bytes* (one older piece beside it). A full disk ends the file, no
    more. *goes_on*: behind what an earlier round of the rank has written."""

    def __init__(self, path: Path, limit_bytes: int, note: Callable[[str], None], *, goes_on: bool = False) -> None:
        self._path = path
        self._limit = limit_bytes
        self._note = note
        self._written = 0
        self._fd: int | None = None
        self._open(0 if goes_on else os.O_TRUNC)

    def add(self, block: bytes) -> None:
        """Write *block*; of a progress bar only the last state."""
        if self._fd is None:
            return
        kept = collapsed(block)
        try:
            if self._written + len(kept) > self._limit and self._written:
                os.close(self._fd)
                self._path.replace(self._path.with_suffix(".1.log"))
                self._open()
            self._written += os.write(self._fd, kept) if self._fd is not None else 0
        except OSError as error:
            self._note(f"{self._path}: {error.strerror}; this file ends here, the console goes on")
            self.close()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, truncate: int = os.O_TRUNC) -> None:
        self._fd = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | truncate, 0o644)
            self._written = os.fstat(self._fd).st_size
        except OSError as error:
            self._note(f"{self._path}: {error.strerror}; no file for this rank, the console goes on")


class Stream:
    """One stream of one process. `read` is called when its pipe has something."""

    def __init__(
        self,
        fd: int,
        outlet: Outlet,
        *,
        way: Way,
        prefix: bytes = b"",
        tap: Tap | None = None,
        file: RankFile | None = None,
    ) -> None:
        self.fd = fd
        self.outlet = outlet
        self.tail = Tail()
        self.read_bytes = 0
        self.lines = Lines()
        self.ended = False
        self._way = way
        self._prefix = prefix
        self._tap = tap
        self._file = file
        self._unshown: list[bytes] = []
        self._since_s = 0.0
        os.set_blocking(fd, False)
        try:
            fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # The user's pipe budget is used up (pipe(7)); the default size works, too.

    def read(self, now_s: float) -> None:
        """Take what the pipe has, at most 256 KiB; at its end flush what is held."""
        try:
            piece = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self.close()
            return
        self.read_bytes += len(piece)
        was_empty = not self.lines.held_bytes
        whole, over = self.lines.feed(piece)
        if self._way == "alone":
            self.outlet.put(piece)
        elif self._way == "paired":
            self._show_paired(piece, now_s)
        if whole:
            self._pass(whole)
        if over:
            self._pass(over)
        if self._way == "shared" and (was_empty or whole):
            self._since_s = now_s

    def rest_s(self, now_s: float) -> float | None:
        """Return the seconds after which `refresh` should be called, None if nothing waits."""
        if self._way == "paired" and self._unshown:
            return max(self._since_s + REST_S - now_s, 0.0)
        if self._way == "shared" and self.lines.held_bytes:
            return max(self._since_s + STATES_S - now_s, 0.0)
        return None

    def refresh(self, now_s: float) -> None:
        """Show what has waited long enough."""
        if self._way == "paired":
            self.outlet.put(b"".join(self._unshown))
            self._unshown.clear()
        elif self._way == "shared":
            self._since_s = now_s
            states = self.lines.states()
            if states:
                self._pass(states)

    def close(self) -> None:
        """Flush and close; called at end of file, or when nobody waits for it any longer."""
        if self.ended:
            return
        self.ended = True
        self.outlet.put(b"".join(self._unshown))
        self._unshown.clear()
        rest = self.lines.flush()
        if rest:
            self._pass(rest)
        os.close(self.fd)

    def discard(self) -> None:
        """Close without a flush."""
        self.ended = True
        self._unshown.clear()
        os.close(self.fd)

    def _pass(self, block: bytes) -> None:
        if self._way == "shared":
            self.outlet.put(*prefixed(block, self._prefix))
        self.tail.add(block)
        if self._tap is not None:
            self._tap(block)
        if self._file is not None:
            self._file.add(block if block.endswith(b"\n") or self._way != "shared" else block + b"\n")

    def _show_paired(self, piece: bytes, now_s: float) -> None:
        cut = piece.rfind(b"\n") + 1
        if cut:
            self.outlet.put(b"".join((*self._unshown, piece[:cut])))
            self._unshown.clear()
        if cut < len(piece):
            if not self._unshown:
                self._since_s = now_s
            self._unshown.append(piece[cut:])
        if sum(map(len, self._unshown)) > READ_BYTES:
            self.refresh(now_s)
