"""The ranks of this host as `train` lists them in the run's folder: "RANK LOCAL_RANK PID STARTED" a line each."""

import os
from pathlib import Path
from typing import NamedTuple


class Listed(NamedTuple):
    """`local_rank` is -1 where the launcher does not give one. `started`: in ticks since the boot, 0 if not known.

    The rank may have ended, and another process have its pid, before the list is read.
    """

    rank: int
    local_rank: int
    pid: int
    started: int


class Roster:
    """Reads lines that were added to the list since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        self._read_bytes = 0

    def new(self) -> list[Listed]:
        """Return the ranks that were added since the last call."""
        try:
            if os.stat(self._path).st_size <= self._read_bytes:
                return []
            with open(self._path, "rb") as file:
                file.seek(self._read_bytes)
                text = file.read()
        except OSError:
            return []
        complete_lines = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(complete_lines)
        lines = (line.split() for line in complete_lines.splitlines())
        return [Listed(*map(int, words)) for words in lines if len(words) == 4]
