"""The state that the processes of one exporter of a host pass on: each attempt has its own, and so has the end."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from toolkit.errors import ContractError
from toolkit.records import Record, decode, encode

Row = tuple[float, dict[str, float | None]]


class _Document(Record, frozen=True, kw_only=True):
    """Kept, as it is written."""

    sent_bytes: int
    """The length of that part of the file of metrics that has arrived."""
    run: str = ""
    """The tracker's own ID of the run; "": not known yet."""
    began_s: float | None = None
    """When the first process began, in seconds since the epoch."""
    rows: int = 0
    """How many rows a tracker that counts them has got."""
    lost: int = 0
    """How many samples of the monitor were dropped, since the queue was full."""
    is_failing: bool = False
    """The other side did not answer when the process ended."""
    has_given_up: bool = False
    """A line has said that nothing more is sent, and why."""
    counts: dict[str, int] = {}
    """How many values each metric of each rank has had."""
    lowest: dict[str, int] = {}
    """The rank whose values have the metric's own name."""
    names: dict[str, str] = {}
    """The name under which each metric arrives."""
    waiting: list[Row] = []
    """Samples of the monitor that have not arrived: time, and values by column."""


class Kept:
    """The progress of one exporter, in a file that `save` renews."""

    def __init__(self, path: Path, *, skip_bytes: int, now_s: Callable[[], float]) -> None:
        """Read the file at *path*; without one begin after *skip_bytes* of the file of metrics. *now_s*: the clock."""
        self._path = path
        self.now_s = now_s
        try:
            document = decode(path.read_bytes(), _Document, str(path))
        except (OSError, ContractError):  # The first process, or one whose file was cut on a full disk.
            document = _Document(sent_bytes=skip_bytes)
        self._document = document
        self.sent_bytes = document.sent_bytes
        self.run = document.run
        self.began_s = now_s() if document.began_s is None else document.began_s
        self.rows = document.rows
        self.lost = document.lost
        self.is_failing = document.is_failing
        self.has_given_up = document.has_given_up
        self.counts = document.counts
        self.lowest = document.lowest
        self.names = document.names
        self.waiting = document.waiting

    def save(self) -> None:
        """Write the file; a full disk costs the next process some values twice."""
        self.settle()
        self._write(self._document)

    def settle(self) -> None:
        """Take what has been sent for arrived."""
        self._document = _Document(
            sent_bytes=self.sent_bytes,
            run=self.run,
            began_s=self.began_s,
            rows=self.rows,
            lost=self.lost,
            is_failing=self.is_failing,
            has_given_up=self.has_given_up,
            counts=self.counts,
            lowest=self.lowest,
            names=self.names,
            waiting=self.waiting,
        )

    def save_waiting(self, rows: list[Row]) -> None:
        """Write *rows* as waiting, whether the other side answers, and all else as it was settled last: later values
        have not arrived."""
        self._write(
            msgspec.structs.replace(self._document, began_s=self.began_s, is_failing=self.is_failing, waiting=rows)
        )

    def _write(self, document: _Document) -> None:
        part = self._path.with_suffix(".part")
        try:
            part.touch(0o600)
            part.write_bytes(encode(document))
            part.replace(self._path)
        except OSError:
            pass
