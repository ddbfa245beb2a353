"""Has every rank write its collectives (rank/flight_recorder/answers.py), and reads them.

A request is the opening of the rank's FIFO. A rank without one has no process group, or no rank hook. A rank that is
stopped, or whose main thread holds the GIL, writes nothing: its calls are not known.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolkit import files
from toolkit.collectives.dump import MOST_BYTES, read_dump
from toolkit.collectives.records import RankCalls
from toolkit.folders import as_absent, exists, status


class CollectiveDumps:
    """Has *ranks* (pid by name) write to *folder*; call `collect` some seconds later."""

    def __init__(self, ranks: Mapping[str, int], folder: Path) -> None:
        # The whole answer, and the one without frames, which a rank writes first.
        self._answers: dict[str, tuple[Path, Path]] = {}
        for name, pid in ranks.items():
            answers = (folder / f"{pid}.json", folder / f"{pid}.brief.json")
            try:
                for answer in answers:
                    answer.unlink(missing_ok=True)  # An earlier hang's.
                os.close(os.open(folder / f"{pid}.request", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError:
                continue  # Nobody reads the FIFO, or there is none.
            self._answers[name] = answers

    @property
    def is_awaited(self) -> bool:
        """True while a rank that has begun to answer has not finished."""
        return any(exists(brief, as_absent) and not exists(whole, as_absent) for whole, brief in self._answers.values())

    def collect(self) -> tuple[RankCalls, ...]:
        """Return the calls of each rank that has written them, whole, by now."""
        read = {name: _read(whole) or _read(brief) for name, (whole, brief) in self._answers.items()}
        return tuple(
            msgspec.structs.replace(rank_calls, process=name)
            for name, rank_calls in read.items()
            if rank_calls is not None
        )


def _read(answer: Path) -> RankCalls | None:
    try:
        entry = status(answer)
        return read_dump(files.read(answer)) if entry is not None and entry.st_size <= MOST_BYTES else None
    except OSError:
        return None
