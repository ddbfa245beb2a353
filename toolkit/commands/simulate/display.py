"""Shows a running job on the console: every line of every host, and regularly the job's progress.

On a terminal with rich installed, a table of hosts and progress bars stays at the bottom. Elsewhere a status line is
written every 10 s, and each bar's newest state every 5 s. Lines go to the stream to which the host wrote them, stdout
or stderr. They are unchanged, but with several hosts a line that does not name its host gets the prefix "algo-1 | ".
"""

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol

from toolkit.commands.simulate.progress import JobProgress, rows, status_line
from toolkit.log import Log

if TYPE_CHECKING:
    from rich.text import Text

STATUS_EVERY_S = 10.0
STATES_EVERY_S = 5.0
# Columns that stay free at the end of each row of the table. The terminal writes "^C" there for each Ctrl-C, and users
# often press it twice. Without room it wraps into the next row: then the table is erased one row too low, and its first
# row stays on the screen.
ECHO_COLUMNS = 4
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # Which states come without.
DisplayStyle = Literal["auto", "plain", "quiet"]


class Display(Protocol):
    """Shows a running job."""

    def lines(self, host: str, fd: int, block: bytes) -> None:
        """Show whole lines that *host* wrote to *fd* (1 or 2)."""

    def progress(self, progress: JobProgress) -> None:
        """Show the job's progress; called about once a second, and four times a second while a bar moves."""

    def close(self) -> None:
        """End the display after the job."""


class PlainDisplay:
    """Shows lines as they arrive, and a status line every 10 s through *log*."""

    def __init__(self, log: Log, *, several: bool) -> None:
        self._log = log
        self._several = several
        self._next_s = STATUS_EVERY_S
        self._states_next_s = STATES_EVERY_S
        self._states: set[str] = set()
        self._closed_fds: set[int] = set()

    def lines(self, host: str, fd: int, block: bytes) -> None:
        self._write(fd, self._unshown(marked_block(host, block, several=self._several)))

    def progress(self, progress: JobProgress) -> None:
        if progress.elapsed_s >= self._next_s:
            self._next_s = progress.elapsed_s + STATUS_EVERY_S
            self._log.info(status_line(progress))
        if progress.elapsed_s >= self._states_next_s:
            self._states_next_s = progress.elapsed_s + STATES_EVERY_S
            states = [state for host in progress.hosts for state in host.bars]
            for state in states:
                if state not in self._states:
                    self._write(1, state.encode() + b"\n")
            self._states = set(states)

    def close(self) -> None:
        """Nothing is held."""

    def _unshown(self, block: bytes) -> bytes:
        """Return *block* without the lines that were shown when they were unfinished and have not changed since."""
        if not self._states:
            return block
        lines = []
        for line in block.removesuffix(b"\n").split(b"\n"):
            state = _COLOURS.sub("", line.decode("utf-8", "replace"))
            if state in self._states:
                self._states.discard(state)  # The same text in a later line is another line.
            else:
                lines.append(line + b"\n")
        return b"".join(lines)

    def _write(self, fd: int, block: bytes) -> None:
        view = memoryview(block)
        while view and fd not in self._closed_fds:
            try:
                view = view[os.write(fd, view) :]
            except OSError:
                # `toolkit run ... | head`, or a redirect to a full disk: the job goes on, and its logs get every line.
                self._closed_fds.add(fd)
                return


class QuietDisplay:
    """Shows nothing: the hosts' output goes only to the job's logs."""

    def lines(self, host: str, fd: int, block: bytes) -> None:
        """Not shown."""

    def progress(self, progress: JobProgress) -> None:
        """Not shown."""

    def close(self) -> None:
        """Nothing is held."""


class LiveDisplay:
    """Shows the same lines above a table that is kept up to date (rich)."""

    def __init__(self, log: Log, *, several: bool) -> None:
        from rich.console import Console
        from rich.live import Live as Table

        self._several = several
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        # No refresh thread: this process forks.
        self._table = Table(console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._log = log
        self._gone = False
        self._attempt(self._table.start)
        log.say_through(self._say, lambda: None)

    def lines(self, host: str, fd: int, block: bytes) -> None:  # noqa: ARG002 - a terminal shows both alike
        self._say(marked_block(host, block, several=self._several))

    def progress(self, progress: JobProgress) -> None:
        width, height = self._console.size
        self._attempt(lambda: self._table.update(_text(progress, width, height), refresh=True))

    def close(self) -> None:
        self._log.flush()
        self._attempt(self._table.stop)

    def _say(self, block: bytes) -> None:
        from rich.text import Text

        text = block.decode("utf-8", "replace").removesuffix("\n")
        self._attempt(lambda: self._console.print(Text.from_ansi(text), soft_wrap=True))

    def _attempt(self, step: Callable[[], object]) -> None:
        """Call *step* unless the terminal is gone (a closed window: EIO). The job then goes on, unless the closed
        window's SIGHUP stops it."""
        if self._gone:
            return
        try:
            step()
        except OSError:
            self._gone = True


def _text(progress: JobProgress, width: int, height: int) -> "Text":
    from rich.text import Text

    columns = width - ECHO_COLUMNS
    lines = [Text.assemble(*row) for row in rows(progress, width=columns, height=height)]
    for line in lines:
        line.truncate(columns, overflow="ellipsis")  # Wide characters take two columns.
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def marked_block(host: str, block: bytes, *, several: bool) -> bytes:
    """Return *block*, whole lines or a last unfinished one, with the host before each if there are *several*.

    A line that already names its host, as ranks' lines do ("[algo-2 rank 3] ", "[1,mpirank:3,algo-2]"), is unchanged.
    """
    if not several:
        return block
    prefix = re.compile(rb"\[(1,mpirank:\d+,)?%s[ \]]" % re.escape(host.encode()))
    mark = f"{host} | ".encode()
    lines = block.removesuffix(b"\n").split(b"\n")
    return b"".join((line if prefix.match(line) else mark + line) + b"\n" for line in lines)


def choose_display(log: Log, *, several: bool, environ: Mapping[str, str], look: DisplayStyle = "auto") -> Display:
    """Return the display that *look* asks for, else the one that suits this terminal."""
    if look == "quiet":
        return QuietDisplay()
    return LiveDisplay(log, several=several) if is_live(environ, look) else PlainDisplay(log, several=several)


def is_live(environ: Mapping[str, str], look: DisplayStyle = "auto") -> bool:
    """True if the job is shown in a live table: stdout is a terminal, and rich (an extra) is installed."""
    from importlib.util import find_spec

    return look == "auto" and sys.stdout.isatty() and not wants_plain(environ) and find_spec("rich") is not None


def wants_plain(environ: Mapping[str, str]) -> bool:
    """True if a terminal in this environment should get no escape sequences.

    A notebook's `!toolkit run` writes to a terminal, but notebooks show escape sequences as text or drop them. We
    recognize Jupyter's kernels by JPY_PARENT_PID, or by TERM=xterm-color and PAGER=cat (ipykernel 7.4, zmqshell.py).
    """
    terminal = environ.get("TERM") or "dumb"
    notebook = environ.get("JPY_PARENT_PID") or (terminal == "xterm-color" and environ.get("PAGER") == "cat")
    return terminal == "dumb" or bool(environ.get("NO_COLOR")) or bool(notebook)
