"""A hash of what requirements name on this host: files, and folders with all that is in them."""

import os
from pathlib import Path

from toolkit import folders
from toolkit.patterns import lazy

# The path or name in a line, without options and "name @" before it, "file://", and the text after it.
ASKED = lazy(r"(?:(?:-e|--editable|-f|--find-links)[\s=]+|[^@/]+@\s*)?(?:file:(?://)?)?(?P<path>[^\s;#\[<>=!~]+)")
# pip, Python and git create these: their content does not change the package.
BYPRODUCTS = {"__pycache__", ".git", "build", "dist"}
# A digest covers no more than this, which takes some seconds to read.
MOST_BYTES = 8 << 30
MOST_FILES = 10_000


class TooMuchError(Exception):
    """There are more files or bytes than a digest covers."""


class TreeDigest:
    """SHA-256 of at most MOST_BYTES and MOST_FILES; raises TooMuchError beyond these."""

    def __init__(self) -> None:
        import hashlib

        self._hash = hashlib.sha256()
        self._bytes = self._files = 0

    def hexdigest(self) -> str:
        """Return the hash of all that was added."""
        return self._hash.hexdigest()

    def add(self, content: bytes) -> None:
        """Add *content* after its length, so that different parts never give the same bytes."""
        self._update(b"%d:" % len(content))
        self._update(content)

    def add_named(self, line: str, folder: Path) -> None:
        """Add what *line* of a requirements file names on this host, relative to *folder*; nothing for a package."""
        if match := ASKED.match(line):
            self.add_tree(folder / match["path"])

    def add_tree(self, path: Path) -> None:
        """Add the name and content of *path* or, if it is a folder, of every file below it; nothing if it is absent."""
        if "\0" in str(path):
            return
        if folders.is_file(path, folders.as_absent):
            self._add_file(path, path.name)
            return

        def unreadable(error: OSError) -> None:
            self.add(f"cannot be listed: {error.errno}".encode())  # pip reports its own errors.

        for entry in folders.walk(path, unreadable, enter=lambda entry: _is_content(entry.name)):
            file = Path(entry.path)
            if folders.is_file(file, folders.as_absent):
                self._add_file(file, str(file.relative_to(path)))

    def _add_file(self, file: Path, name: str) -> None:
        """Add the name of *file*, and at most as many bytes as its size. The kernel's files, which may be endless or
        block, have size 0."""
        self.add(os.fsencode(name))
        try:
            with file.open("rb") as content:
                left = os.fstat(content.fileno()).st_size
                self._begin_file(left)
                while left > 0 and (chunk := content.read(min(left, 1 << 20))):
                    self._update(chunk)
                    left -= len(chunk)
        except OSError as error:
            self.add(f"cannot be read: {error.errno}".encode())  # pip reports its own errors.

    def _begin_file(self, size_bytes: int) -> None:
        """Note that *size_bytes* of another file follow."""
        self._files += 1
        self._check(size_bytes)
        self._update(b"%d:" % size_bytes)

    def _update(self, content: bytes) -> None:
        self._bytes += len(content)
        self._hash.update(content)
        self._check()

    def _check(self, ahead_bytes: int = 0) -> None:
        if self._bytes + ahead_bytes > MOST_BYTES or self._files > MOST_FILES:
            raise TooMuchError


def _is_content(folder: str) -> bool:
    return folder not in BYPRODUCTS and not folder.endswith(".egg-info")
