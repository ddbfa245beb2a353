"""Reads a metrics.jsonl that still grows."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from toolkit import files
from toolkit.metrics.file import decoded
from toolkit.metrics.sample import Sample


class MetricsTail:
    """Reads each line of a growing metrics.jsonl once. *skip_bytes*: without so many bytes at its
    start, which must end with a line."""

    def __init__(self, path: Path, *, skip_bytes: int = 0) -> None:
        self._path = path
        self.offset = skip_bytes
        """The length of the part of the file whose samples were yielded."""

    def read_new(self) -> Iterator[Sample]:
        """Yield the samples written since the last call."""
        try:
            if self._path.stat().st_size <= self.offset:
                return
            with files.opened(self._path) as file:
                file.seek(self.offset)
                yield from decoded(self._whole(file))
        except OSError:
            return  # The file does not exist (yet).

    def _whole(self, file: IO[bytes]) -> Iterator[bytes]:
        for line in file:
            if not line.endswith(b"\n"):
                return  # `train` has not written the rest of the line yet.
            self.offset += len(line)
            yield line
