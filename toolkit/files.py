"""Reads and writes single files in folders where others write, too.

A document's name may be a FIFO, which waits for ever, a device without an end, or a file that fills the memory: `read`
takes regular files alone, up to a limit. A report's name may be a link to a file of somebody else: `replace` puts a new
file at the name, and what was there before stays as it is.
"""

import errno
import os
import stat
from pathlib import Path
from typing import IO

from toolkit.folders import as_absent, is_file

# Far above what a job writes into one file of records, for as long as it runs.
RECORDS_BYTES = 1 << 30
# Far above what documents have: SageMaker allows 100 hyperparameters of 2,500 characters.
DOCUMENT_BYTES = 16 << 20
# Of a file without a size, as those of /proc are, or one that grows.
_MORE_BYTES = 64 << 10
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# The name cannot be given another file, but the file there may take the content: it is mounted, or its folder is
# read-only.
_FIXED = (errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS)


class UnfitError(OSError):
    """The file cannot be a document: `strerror` names what it is."""


def read(path: Path | str, limit_bytes: int = DOCUMENT_BYTES) -> bytes:
    """Return the content of *path*, a regular file or a link to one, of at most *limit_bytes*.

    Raises:
        OSError: it cannot be read.
        UnfitError: it is something else, or has more.
    """
    fd = descriptor(path)
    try:
        # A buffer of the file's size, not of the limit's: mapping 16 MiB costs ten times as much as reading 4 kB.
        content = os.read(fd, min(os.fstat(fd).st_size, limit_bytes) + 1)
        while len(content) <= limit_bytes and (more := os.read(fd, _MORE_BYTES)):
            content += more
    finally:
        os.close(fd)
    if len(content) > limit_bytes:
        raise UnfitError(errno.EFBIG, f"it has more than {limit_bytes:,} bytes", os.fspath(path))
    return content


def opened(path: Path | str) -> IO[bytes]:
    """Open *path*, a regular file or a link to one, for reading. It never waits.

    Raises:
        OSError: it cannot be opened.
        UnfitError: it is something else.
    """
    return os.fdopen(descriptor(path), "rb")


def descriptor(path: Path | str) -> int:
    """Open as `opened` does, and return the file descriptor, which the caller closes."""
    name = os.fspath(path)
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind == stat.S_IFREG:
        return fd
    os.close(fd)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    raise UnfitError(errno.EINVAL, f"{_KINDS.get(kind, 'something else')}, no regular file", name)


def replace(path: Path, content: bytes) -> None:
    """Give *path* a new file with *content*, at once; a link or FIFO there is replaced. A file that is mounted, or
    whose folder cannot be written, is overwritten in its place.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            part.unlink(missing_ok=True)
            _write(part, content, os.O_CREAT | os.O_EXCL)
            part.replace(path)
        except OSError as error:
            if error.errno not in _FIXED or not is_file(path, as_absent, follow_links=False):
                raise
            _write(path, content, os.O_TRUNC)
    except BaseException:
        _unlink_quietly(part)
        raise
    _unlink_quietly(part)


def _write(path: Path, content: bytes, flags: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o666)
    with os.fdopen(fd, "wb") as file:
        file.write(content)


def _unlink_quietly(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:
        pass  # What was wrong has been raised, or the name has the new file.
