"""The files by which the monitor and `train` of one host tell each other of ranks' own work (job/rank_work.py)."""

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from toolkit import files
from toolkit.job.rank_work import OthersWork, OwnWork
from toolkit.records import Record, encode

_Told = TypeVar("_Told", bound=Record)


def write(path: Path, work: OwnWork | OthersWork) -> None:
    """Put *work* in place of what is in the file at *path*: a reader sees the one or the other.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_suffix(".part")
    part.write_bytes(encode(work))
    part.replace(path)


class Newest(Generic[_Told]):
    """Reads the file at *path* whenever it was replaced."""

    def __init__(self, path: Path, kind: type[_Told]) -> None:
        self._path = path
        self._kind = kind
        self._version: tuple[int, int] | None = None

    def new(self) -> _Told | None:
        """Return what was written since the last call; None: nothing, or nothing that can be read."""
        try:
            status = self._path.stat()
            version = (status.st_ino, status.st_mtime_ns)
            if version == self._version:
                return None
            self._version = version
            return msgspec.json.decode(files.read(self._path), type=self._kind)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # ValidationError too.
            return None
