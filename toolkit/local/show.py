"""What a person sees while a job runs: every line of every host, and now and then where the job stands.

On a terminal with rich a table stays at the bottom; else a status line is written every 10 s. Lines go where the host
wrote them, stdout or stderr, unaltered but for "algo-1 | " in front where there are several and the line names none.
"""

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from toolkit.local.report import last_values, value_text
from toolkit.log import Log
from toolkit.metrics.sample import Sample
from toolkit.records import Record

STATUS_EVERY_S = 10.0
Look = Literal["auto", "plain", "quiet"]


class Standing(Record, frozen=True, kw_only=True):
    """Where the job stands: each host's state in words, and the newest samples."""

    name: str
    elapsed_s: float
    hosts: dict[str, str]
    samples: tuple[Sample, ...] = ()


class Show(Protocol):
    """Something a job is shown on."""

    def lines(self, host: str, fd: int, block: bytes) -> None:
        """Show whole lines that *host* wrote to *fd* (1 or 2)."""

    def standing(self, standing: Standing) -> None:
        """Take note of where the job stands; called about once a second."""

    def close(self) -> None:
        """The job is over."""


def clock(seconds: float) -> str:
    """Return 75.2 as "1:15"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def status_line(standing: Standing) -> str:
    """Return *standing* as one line."""
    hosts = ", ".join(f"{host} {state}" for host, state in standing.hosts.items())
    newest = last_values(standing.samples)
    metrics = " ".join(f"{name}={value_text(sample.value)}" for name, sample in newest.items())
    return " | ".join(part for part in (clock(standing.elapsed_s), hosts, metrics) if part)


class Plain:
    """Lines as they come, a status line every 10 s through *log*."""

    def __init__(self, log: Log, *, several: bool) -> None:
        self._log = log
        self._several = several
        self._next_s = STATUS_EVERY_S
        self._closed_fds: set[int] = set()

    def lines(self, host: str, fd: int, block: bytes) -> None:
        if fd not in self._closed_fds:
            self._write(fd, marked_block(host, block, several=self._several))

    def standing(self, standing: Standing) -> None:
        if standing.elapsed_s >= self._next_s:
            self._next_s = standing.elapsed_s + STATUS_EVERY_S
            self._log.info(status_line(standing))

    def close(self) -> None:
        """Nothing is held."""

    def _write(self, fd: int, block: bytes) -> None:
        view = memoryview(block)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BrokenPipeError:
                self._closed_fds.add(fd)  # `toolkit run ... | head`: the logs still get everything.
                return


class Quiet:
    """Nothing: what the hosts print is in the job's logs."""

    def lines(self, host: str, fd: int, block: bytes) -> None:
        """Not shown."""

    def standing(self, standing: Standing) -> None:
        """Not shown."""

    def close(self) -> None:
        """Nothing is held."""


class Live:
    """The same lines above a table that is kept up to date (rich)."""

    def __init__(self, log: Log, *, several: bool) -> None:
        from rich.console import Console
        from rich.live import Live as Table

        self._several = several
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        # No refresh thread: this process forks.
        self._table = Table(console=self._console, auto_refresh=False, transient=True)
        self._table.start()
        self._log = log
        log.say_through(self._say, lambda: None)

    def lines(self, host: str, fd: int, block: bytes) -> None:  # noqa: ARG002 - a terminal shows both alike
        self._say(marked_block(host, block, several=self._several))

    def standing(self, standing: Standing) -> None:
        self._table.update(table(standing), refresh=True)

    def close(self) -> None:
        self._log.flush()
        self._table.stop()

    def _say(self, block: bytes) -> None:
        from rich.text import Text

        text = block.decode("utf-8", "replace").removesuffix("\n")
        self._console.print(Text.from_ansi(text), soft_wrap=True)


def marked_block(host: str, block: bytes, *, several: bool) -> bytes:
    """Return *block*, whole lines or a last unfinished one, the host in front of each if there are *several*.

    A line that names its host already, as those of ranks do ("[algo-2 rank 3] ", "[1,mpirank:3,algo-2]"), stays as it
    is.
    """
    if not several:
        return block
    named = re.compile(rb"\[(1,mpirank:\d+,)?%s[ \]]" % re.escape(host.encode()))
    mark = f"{host} | ".encode()
    lines = block.removesuffix(b"\n").split(b"\n")
    return b"".join((line if named.match(line) else mark + line) + b"\n" for line in lines)


def table(standing: Standing) -> Any:
    """Return *standing* as rich shows it: the hosts on the left, the metrics on the right."""
    from rich.table import Table

    newest = last_values(standing.samples)
    grid = Table(title=f"{standing.name}  {clock(standing.elapsed_s)}", title_justify="left", box=None, pad_edge=False)
    for heading in ("host", "state", "metric", "value", "step"):
        grid.add_column(heading, no_wrap=True)
    hosts, metrics = list(standing.hosts.items()), list(newest.values())
    for row in range(max(len(hosts), len(metrics))):
        grid.add_row(*_host_cells(hosts, row), *_metric_cells(metrics, row))
    return grid


def chosen(log: Log, *, several: bool, environ: Mapping[str, str], look: Look = "auto") -> Show:
    """Return the show that was asked for (*look*), else the one that fits where we are."""
    if look == "quiet":
        return Quiet()
    if look == "auto" and sys.stdout.isatty() and not wants_plain(environ):
        try:
            return Live(log, several=several)
        except ImportError:
            pass  # rich is an extra.
    return Plain(log, several=several)


def wants_plain(environ: Mapping[str, str]) -> bool:
    """True if a terminal of this environment should get no escape sequences.

    A notebook's `!toolkit run` has a terminal for its output, but shows escapes as they are or drops them: Jupyter's
    kernels have JPY_PARENT_PID, and a pager of their own (ipykernel 7.4, zmqshell.py: TERM=xterm-color and PAGER=cat).
    """
    terminal = environ.get("TERM") or "dumb"
    notebook = environ.get("JPY_PARENT_PID") or (terminal == "xterm-color" and environ.get("PAGER") == "cat")
    return terminal == "dumb" or bool(environ.get("NO_COLOR")) or bool(notebook)


def _host_cells(hosts: list[tuple[str, str]], row: int) -> tuple[str, str]:
    return hosts[row] if row < len(hosts) else ("", "")


def _metric_cells(metrics: list[Sample], row: int) -> tuple[str, str, str]:
    if row >= len(metrics):
        return "", "", ""
    sample = metrics[row]
    return sample.name, value_text(sample.value), "" if sample.step is None else str(sample.step)
