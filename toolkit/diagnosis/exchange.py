"""The files by which the monitor and `train` of one host tell each other of ranks' own work (job/rank_work.py)."""

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from toolkit import files
from toolkit.job.rank_work import OthersWork, OwnWork
from toolkit.records import Record, encode

_Told = TypeVar("_Told", bound=Record)


def write(path: Path, told: OwnWork | OthersWork) -> None:
    """Put *told* in place of what is in the file at *path*: a reader sees the one or the other.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_suffix(".part")
    part.write_bytes(encode(told))
    part.replace(path)


class Newest(Generic[_Told]):
    """Reads the file at *path* whenever it was replaced."""

    def __init__(self, path: Path, kind: type[_Told]) -> None:
        self._path = path
        self._kind = kind
        self._seen: tuple[int, int] | None = None

    def new(self) -> _Told | None:
        """Return what was written since the last call; None: nothing, or nothing that can be read."""
        try:
            found = self._path.stat()
            seen = (found.st_ino, found.st_mtime_ns)
            if seen == self._seen:
                return None
            self._seen = seen
            return msgspec.json.decode(files.read(self._path), type=self._kind)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # ValidationError too.
            return None
