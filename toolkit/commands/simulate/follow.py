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
    outputs: dict[int, GrowingFile] = {}  # By inode: the logs of an interrupted start are moved.
    while True:
        has_ended = runner.state(folder) == "gone"  # Before the last read: what was written until then is read.
        for path in output_files(folder):
            try:
                number = path.stat().st_ino
                output = outputs.setdefault(number, outputs.get(number) or GrowingFile(path, tail))
            except OSError:
                continue  # Moved meanwhile; the next look finds it at its new place.
            output.path = path
            for block in output.new(has_ended=has_ended):
                put(block if path.name == CONSOLE else marked_block(path.stem, block, several=_several(folder)))
        tail = None  # A log that appears later, after an interruption, is shown from its beginning.
        if has_ended:
            return
        time.sleep(LOOK_S)


def wait(folder: Path, *, until_s: float | None = None) -> bool:
    """Return True once the job has ended, False if it still runs at *until_s* (monotonic)."""
    while runner.state(folder) != "gone":
        if until_s is not None and time.monotonic() >= until_s:
            return False
        time.sleep(LOOK_S)
    return True


def output_files(folder: Path) -> tuple[Path, ...]:
    """Return the files that hold the job's output, those of interrupted starts first."""
    console = folder / CONSOLE
    if is_file(console):
        return (console,)
    return tuple(path for job_folder in (*interrupted(folder), folder) for path in _logs(job_folder))


class GrowingFile:
    """Reads each line of a growing file once; the first *tail* lines from its end, None: all."""

    def __init__(self, path: Path, tail: int | None) -> None:
        self.path = path
        self._offset = 0 if tail is None else _start_of_tail(path, tail)

    def new(self, *, has_ended: bool) -> Iterator[bytes]:
        """Yield the whole lines written since the last call, in blocks; with *has_ended* a last unfinished line,
        too."""
        try:
            with files.opened(self.path) as file:
                file.seek(self._offset)
                while block := file.read(READ_BYTES):
                    lines = block[: block.rfind(b"\n") + 1]
                    if not lines and (len(block) == READ_BYTES or has_ended):
                        lines = block  # A line without an end; it is shown as far as it goes.
                    if not lines:
                        return
                    self._offset += len(lines)
                    file.seek(self._offset)
                    yield lines
        except OSError:
            return  # It was removed; the next job of this folder makes a new one.


def _several(folder: Path) -> bool:
    return len(_logs(folder)) > 1


def _logs(folder: Path) -> list[Path]:
    """Return the logs of the hosts in *folder*, algo-2 before algo-10."""
    logs = [folder / "logs" / name for name in names(folder / "logs") if name.endswith(".log")]
    return sorted(logs, key=lambda path: in_order(path.stem))


def _start_of_tail(path: Path, lines: int) -> int:
    """Return the offset at which the last *lines* lines of the file begin."""
    with files.opened(path) as file:
        end = position = file.seek(0, 2)
        if lines <= 0:
            return end
        count = 0
        while position > 0:
            size = min(READ_BYTES, position)
            position -= size
            file.seek(position)
            block = file.read(size)
            # A newline at the very end of the file closes the last line; it starts none.
            newline = len(block) - 1 if position + size == end else len(block)
            while (newline := block.rfind(b"\n", 0, newline)) >= 0:
                count += 1
                if count == lines:
                    return position + newline + 1
    return 0
