"""Writes a Pipe channel: one FIFO for each epoch, `<channel>_0`, `<channel>_1`, ..., filled from files in name order.

`run` has its own process, because opening a FIFO waits for its reader. It runs until it is killed; `withdraw` then
removes the unread FIFOs. The next epoch's FIFO is made before the current epoch ends, because a script may check for
it.
"""

import os
import signal
import stat
from pathlib import Path

from toolkit import folders
from toolkit.records import Record

PIECE_BYTES = 1 << 20


class Feed(Record, frozen=True, kw_only=True):
    """The FIFOs and files of one Pipe channel of one host. `fifo`: the FIFOs' path without "_0"."""

    fifo: Path
    files: tuple[Path, ...]

    def epoch(self, number: int) -> Path:
        return self.fifo.with_name(f"{self.fifo.name}_{number}")


def run(feed: Feed) -> int:
    """Feed epoch after epoch, endlessly; return 1 if a file cannot be read or a FIFO cannot be made."""
    # Without SIGPIPE, a reader that leaves early causes EPIPE, which `fill` handles.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    number = 0
    try:
        prepare(feed, number)
        while True:
            prepare(feed, number + 1)
            fill(feed.epoch(number), feed.files)
            feed.epoch(number).unlink(missing_ok=True)
            number += 1
    except OSError:
        return 1


def prepare(feed: Feed, number: int) -> None:
    """Make the FIFO of epoch *number* unless it exists."""
    if not folders.exists(feed.epoch(number)):
        os.mkfifo(feed.epoch(number))


def fill(fifo: Path, files: tuple[Path, ...]) -> None:
    """Write *files*, one after the other, into *fifo* once it has a reader; stop if the reader leaves early."""
    try:
        with fifo.open("wb", buffering=0) as pipe:
            for path in files:
                with path.open("rb") as source:
                    while piece := source.read(PIECE_BYTES):
                        _write_whole(pipe.fileno(), piece)
    except BrokenPipeError:
        pass  # A script may read only a part of an epoch.


def _is_fifo(path: Path) -> bool:
    try:
        status = folders.status(path)
    except OSError:
        return False  # Nothing of ours.
    return status is not None and stat.S_ISFIFO(status.st_mode)


def withdraw(feed: Feed) -> None:
    """Remove the FIFOs that were never read."""
    for fifo in map(feed.fifo.parent.joinpath, folders.names(feed.fifo.parent)):
        if fifo.name.startswith(f"{feed.fifo.name}_") and _is_fifo(fifo):
            fifo.unlink(missing_ok=True)


def _write_whole(fd: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]
