"""Remembers which entries of a folder are being written, so that the process after the script's end knows.

Only /proc tells that a file is open, and only while the process that writes it lives.
"""

from collections.abc import Set
from pathlib import Path

import msgspec

from toolkit import paths
from toolkit.records import encode
from toolkit.storage.scan import entries_being_written


class OpenEntries:
    """The entries of *folder* that are being written; their names are kept in *file*."""

    def __init__(self, folder: Path, file: Path) -> None:
        self._folder, self._file = folder, file
        self._saved_names: frozenset[str] | None = None

    def update(self) -> frozenset[str]:
        """Return the names of the entries, and keep them. On a full disk, the next look tries again to keep them.

        Raises:
            OSError: they are not known, because /proc cannot be read.
        """
        names = entries_being_written(self._folder)
        if names != self._saved_names:
            new = self._file.with_name(f"{self._file.name}.new")
            try:
                new.write_bytes(encode([paths.to_text(name) for name in sorted(names)]))
                new.replace(self._file)
                self._saved_names = names
            except OSError:
                pass
        return names

    def at_the_end(self, names: Set[str]) -> frozenset[str]:
        """Return those of the entries *names* that were being written at the last look; all, if that cannot be read."""
        try:
            saved = msgspec.json.decode(self._file.read_bytes(), type=list[str])
        except FileNotFoundError:
            return frozenset()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return frozenset(names)
        return frozenset(map(paths.from_text, saved))
