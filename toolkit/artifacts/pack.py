"""Packs a folder into an archive: model.tar.gz, output.tar.gz."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import PlatformError
from toolkit.log import Log

if TYPE_CHECKING:
    import tarfile

    from toolkit.artifacts.gzip_writer import GzipWriter, Sink

READ_BYTES = 1 << 18
RECORD_BYTES = 512  # tar's unit: headers and contents are filled up to it (POSIX.1-2008, pax).
END = bytes(2 * RECORD_BYTES)
# What the plain header of a member has room for; tarfile puts what is longer into extended records.
NAME_CHARACTERS, OWNER_CHARACTERS, LARGEST_ID, LARGEST = 99, 32, 8**7 - 1, 8**11 - 1


def pack(folder: Path, archive: Path, log: Log | None = None) -> int:
    """Write *folder*'s content to *archive* (tar, gzip) and return the archive's size in bytes.

    The archive is that of `write`, without itself. It replaces an older one only when it is complete.

    Raises:
        PlatformError: a part of *folder* cannot be read, or *archive* cannot be written.
    """
    part = archive.with_name(archive.name + ".part")
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            size = write(folder, file, archive.name, log, leave_out=(part, archive))
        part.replace(archive)
    except OSError as error:
        raise PlatformError(f"cannot pack {folder}: {error.strerror or error}", where=str(archive)) from None
    finally:
        _remove_quietly(part)
    return size


def write(
    folder: Path,
    sink: "Sink",
    name: str,
    log: Log | None = None,
    *,
    leave_out: tuple[Path, ...] = (),
    threads: int | None = None,
) -> int:
    """Write *folder*'s content as a tar.gz to *sink*, in order, and return its size in bytes.

    Names are relative to *folder*, sorted; times, modes and owners are kept, links stay links. The same files give the
    same bytes with any number of threads. Sockets, FIFOs, devices and the paths in *leave_out* are left out, the former
    with a warning to *log*, which calls the archive *name*. *threads*: None is one for each core that this process may
    use. Memory: at most 2 MiB for each thread.

    Raises:
        OSError: a part of *folder* cannot be read or became shorter meanwhile, or *sink* raised it. What *sink* has got
            is then no whole archive.
    """
    from toolkit.artifacts.gzip_writer import GzipWriter

    with GzipWriter(sink, threads or len(os.sched_getaffinity(0))) as packed:
        headers = _Headers()
        without = {str(path.absolute()) for path in leave_out}
        root = str(folder.absolute())
        for entry in _below(root):
            if entry.path in without:
                continue
            found = entry.stat(follow_symlinks=False)
            if stat.S_IFMT(found.st_mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                if log:
                    shown = folder / os.path.relpath(entry.path, root)
                    log.warning(f"{shown}: expected a file, folder or link; {name} does not contain it")
                continue
            info = headers.of(entry.path, entry.path[len(root) :].lstrip("/"), found)
            packed.write(headers.written(info))
            if info.isreg():
                _write_content(entry.path, info.size, packed)
        packed.write(END)
    return packed.sent_bytes


class _Headers:
    """Makes the headers of one archive. It remembers names of owners, files that have several names, and the headers of
    records: tarfile would make two headers for each member, as every time has a fraction of a second."""

    def __init__(self) -> None:
        self._users: dict[int, str] = {}
        self._groups: dict[int, str] = {}
        self._linked: dict[tuple[int, int], str] = {}
        self._of_records: dict[int, bytes] = {}

    def of(self, path: str, name: str, found: os.stat_result) -> "tarfile.TarInfo":
        """Return the header of *path*, named *name* in the archive; *found* is its lstat."""
        import tarfile

        info = tarfile.TarInfo(name)
        info.mode, info.mtime = stat.S_IMODE(found.st_mode), found.st_mtime
        info.uid, info.gid = found.st_uid, found.st_gid
        info.uname, info.gname = self._user(found.st_uid), self._group(found.st_gid)
        if stat.S_ISDIR(found.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(found.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, str(Path(path).readlink())
        else:
            first = self._linked.setdefault((found.st_dev, found.st_ino), name) if found.st_nlink > 1 else name
            if first == name:
                info.size = found.st_size
            else:
                info.type, info.linkname = tarfile.LNKTYPE, first
        return info

    def written(self, info: "tarfile.TarInfo") -> bytes:
        """Return the bytes of *info*: those of tarfile, in half of its time."""
        import tarfile

        if not _is_plain(info):
            return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        exact = str(info.mtime)
        info.mtime = round(info.mtime)
        return self._time(exact) + info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")

    def _time(self, exact: str) -> bytes:
        """Return the extended header with the time *exact*; it differs from others in length and text alone."""
        import tarfile

        if len(exact) not in self._of_records:
            member = tarfile.TarInfo()
            member.pax_headers = {"mtime": exact}
            made = member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            self._of_records[len(exact)] = made[:RECORD_BYTES]
        record = f"{len(exact) + len('12 mtime=') + 1} mtime={exact}\n"
        return self._of_records[len(exact)] + record.encode().ljust(RECORD_BYTES, b"\0")

    def _user(self, uid: int) -> str:
        import pwd

        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._users[uid] = ""
        return self._users[uid]

    def _group(self, gid: int) -> str:
        import grp

        if gid not in self._groups:
            try:
                self._groups[gid] = grp.getgrgid(gid).gr_name
            except KeyError:
                self._groups[gid] = ""
        return self._groups[gid]


def _is_plain(info: "tarfile.TarInfo") -> bool:
    """True if only the time of *info* needs an extended record."""
    names = ((info.name, NAME_CHARACTERS), (info.linkname, NAME_CHARACTERS), (info.uname, OWNER_CHARACTERS))
    return (
        all(name.isascii() and len(name) <= most for name, most in (*names, (info.gname, OWNER_CHARACTERS)))
        and max(info.uid, info.gid) <= LARGEST_ID
        and info.size <= LARGEST
        and 0 <= round(info.mtime) <= LARGEST
        and isinstance(info.mtime, float)
    )


def _write_content(path: str, size: int, packed: "GzipWriter") -> None:
    """Write the first *size* bytes of *path*, filled up to whole records.

    Raises:
        OSError: it cannot be read, or has fewer bytes by now.
    """
    left = size
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # A file object costs twice as much: 20 us for each small file.
    try:
        while left:
            block = os.read(fd, min(left, READ_BYTES))
            if not block:
                raise OSError(f"{path} became shorter while it was packed: expected {size} bytes, found {size - left}")
            packed.write(block)
            left -= len(block)
    finally:
        os.close(fd)
    packed.write(bytes(-size % RECORD_BYTES))


def _below(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield everything below *folder*, a folder before its content, sorted."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)


def _remove_quietly(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # The folder is read-only or gone: the error that led here says so.
