"""Follows a job of `toolkit run` from another process: its output until the end, or its end alone."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from toolkit import files
from toolkit.commands.jobs.folders import in_order, interrupted
from toolkit.commands.simulate import runner
from toolkit.commands.simulate.display import marked_block
from toolkit.commands.simulate.facts import CONSOLE
from toolkit.folders import is_file, names

LOOK_S = 0.2  # Between two looks at the files of a job that runs.
READ_BYTES = 1 << 18
Put = Callable[[bytes], object]


def follow(folder: Path, put: Put, *, tail: int | None = None) -> None:
    """Give the job's output to *put*, whole lines, until the job has ended and all of it is read.

    The output is the console of a detached job, else the logs of its hosts. *tail*: begin with so many lines at most.
    """
    outputs: dict[int, Output] = {}  # By inode: the logs of an interrupted start are moved.
    while True:
        ended = runner.state(folder) == "gone"  # Before the last read: what was written until then is read.
        for path in sources(folder):
            try:
                number = path.stat().st_ino
                output = outputs.setdefault(number, outputs.get(number) or Output(path, tail))
            except OSError:
                continue  # Moved meanwhile; the next look finds it at its new place.
            output.path = path
            for block in output.new(ended=ended):
                put(block if path.name == CONSOLE else marked_block(path.stem, block, several=_several(folder)))
        tail = None  # A log that appears later, after an interruption, is shown from its beginning.
        if ended:
            return
        time.sleep(LOOK_S)


def wait(folder: Path, *, until_s: float | None = None) -> bool:
    """Return True once the job has ended, False if it still runs at *until_s* (monotonic)."""
    while runner.state(folder) != "gone":
        if until_s is not None and time.monotonic() >= until_s:
            return False
        time.sleep(LOOK_S)
    return True


def sources(folder: Path) -> tuple[Path, ...]:
    """Return the files that hold the job's output, those of interrupted starts first."""
    console = folder / CONSOLE
    if is_file(console):
        return (console,)
    return tuple(path for each in (*interrupted(folder), folder) for path in _logs(each))


class Output:
    """Reads each line of a growing file once; the first *tail* lines from its end, None: all."""

    def __init__(self, path: Path, tail: int | None) -> None:
        self.path = path
        self._offset = 0 if tail is None else _start_of_tail(path, tail)

    def new(self, *, ended: bool) -> Iterator[bytes]:
        """Yield the whole lines written since the last call, in blocks; with *ended* a last unfinished line, too."""
        try:
            with files.opened(self.path) as file:
                file.seek(self._offset)
                while block := file.read(READ_BYTES):
                    whole = block[: block.rfind(b"\n") + 1]
                    if not whole and (len(block) == READ_BYTES or ended):
                        whole = block  # A line without an end; it is shown as far as it goes.
                    if not whole:
                        return
                    self._offset += len(whole)
                    file.seek(self._offset)
                    yield whole
        except OSError:
            return  # It was removed; the next job of this folder makes a new one.


def _several(folder: Path) -> bool:
    return len(_logs(folder)) > 1


def _logs(folder: Path) -> list[Path]:
    """Return the logs of the hosts in *folder*, algo-2 before algo-10."""
    found = [folder / "logs" / name for name in names(folder / "logs") if name.endswith(".log")]
    return sorted(found, key=lambda path: in_order(path.stem))


def _start_of_tail(path: Path, lines: int) -> int:
    """Return the offset at which the last *lines* lines of the file begin."""
    with files.opened(path) as file:
        end = at = file.seek(0, 2)
        if lines <= 0:
            return end
        found = 0
        while at > 0:
            size = min(READ_BYTES, at)
            at -= size
            file.seek(at)
            block = file.read(size)
            # A newline at the very end of the file closes the last line; it starts none.
            here = len(block) - 1 if at + size == end else len(block)
            while (here := block.rfind(b"\n", 0, here)) >= 0:
                found += 1
                if found == lines:
                    return at + here + 1
    return 0
