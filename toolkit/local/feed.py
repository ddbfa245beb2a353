"""The writer of a Pipe channel: one FIFO for each epoch, `<channel>_0`, `<channel>_1`, ..., filled from files in name
order.

Opening a FIFO waits for its reader, so `run` has a process of its own. It runs until it is killed; `withdraw` then
removes the FIFOs that nobody read. The next epoch's FIFO exists before the current one can end, because a script may
look for it.
"""

import os
import signal
from pathlib import Path

from toolkit.records import Record

PIECE_BYTES = 1 << 20


class Feed(Record, frozen=True, kw_only=True):
    """What feeds one channel of one host. `fifo`: the path of the FIFOs without "_0"."""

    fifo: Path
    files: tuple[Path, ...]

    def epoch(self, number: int) -> Path:
        return self.fifo.with_name(f"{self.fifo.name}_{number}")


def run(feed: Feed) -> int:
    """Feed epoch after epoch, without end; return 1 if a file cannot be read or a FIFO cannot be made."""
    # A reader that leaves early is an error to handle, not a reason to die.
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
    if not feed.epoch(number).exists():
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
        pass  # An epoch may be read in part.


def withdraw(feed: Feed) -> None:
    """Remove the FIFOs that were never read."""
    for fifo in feed.fifo.parent.glob(feed.fifo.name + "_*"):
        if fifo.is_fifo():
            fifo.unlink(missing_ok=True)


def _write_whole(fd: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]
