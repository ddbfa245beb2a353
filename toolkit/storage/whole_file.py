"""Reads a file for an upload that must hold it all: an upload whose file breaks off or changes leaves no object."""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

from toolkit.storage.scan import FileState, describe


class WholeFile(io.RawIOBase):
    """The file *path*, which was *found* so. A read raises OSError if it cannot be read, or is not the same at its end.
    *note* is called with the bytes of each read.

    `fault`: why a read raised; `has_changed`: the file is another by now, which is no fault of the disk.
    """

    def __init__(self, path: Path, state: FileState | None, note: Callable[[int], None] = lambda _: None) -> None:
        if state is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", os.fspath(path))
        super().__init__()
        self._path, self._state, self._note = path, state, note
        self._position = 0
        self.fault = ""
        self.has_changed = False
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            os.close(self._fd)
        super().close()

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True: the client asks for the size so."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to *offset*; the file's end is where it was found."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._state.size_bytes}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return up to *size* bytes, b"" at the end of a file that is still as it was found.

        Raises:
            OSError: it cannot be read, or has changed.
        """
        remaining = self._state.size_bytes - self._position
        wanted_bytes = remaining if size < 0 else min(size, remaining)
        try:
            content = os.pread(self._fd, wanted_bytes, self._position) if wanted_bytes > 0 else b""
            status = os.fstat(self._fd)
        except OSError as error:
            error.filename = os.fspath(self._path)
            self.fault = describe(error)
            raise
        self._position += len(content)
        is_same = (status.st_size, status.st_mtime_ns) == (self._state.size_bytes, self._state.mtime_ns)
        if (wanted_bytes > 0 and not content) or not is_same:
            self.fault, self.has_changed = "it changed while it was uploaded", True
            raise OSError(self.fault)
        self._note(len(content))
        return content
