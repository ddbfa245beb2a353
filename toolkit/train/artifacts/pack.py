"""Packs a folder into an archive: model.tar.gz, output.tar.gz."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import PlatformError
from toolkit.log import Log
from toolkit.records import Record
from toolkit.train.artifacts.members import Lost, Member, Origin, merged

if TYPE_CHECKING:
    from toolkit.train.artifacts.gzip_writer import GzipWriter, Sink

READ_BYTES = 1 << 18
RECORD_BYTES = 512  # tar's unit: headers and contents are filled up to it (POSIX.1-2008, pax).
END = bytes(2 * RECORD_BYTES)
ZEROS = bytes(READ_BYTES)
MOST_FAULTS = 100


class Packed(Record, frozen=True, kw_only=True):
    """The result of packing an archive. `faults`: a sentence for each of the first `MOST_FAULTS` entries that are not
    in it as they were in their folder; `more_faults`: how many more there were. `lost`: the names that several hosts
    have with different content, by (owner, other host)."""

    size_bytes: int
    faults: tuple[str, ...] = ()
    more_faults: int = 0
    lost: dict[tuple[str, str], list[str]] = {}


def pack(content: Path | Sequence[Origin], archive: Path, log: Log | None = None) -> Packed:
    """Write *content*, a folder's or those of several hosts, to *archive* (tar, gzip).

    The archive is that of `write`, without itself. It replaces an older one only when it is complete.

    Raises:
        PlatformError: *archive* cannot be written.
    """
    part = archive.with_name(archive.name + ".part")
    leave_out = (os.path.realpath(part), os.path.realpath(archive))
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        room = os.statvfs(archive.parent)
        room_bytes = room.f_bavail * room.f_frsize if room.f_blocks else None  # Some file systems (FUSE) do not tell.
        with part.open("wb") as file:
            packed = write(content, file, archive.name, log, leave_out=leave_out, room_bytes=room_bytes)
        part.replace(archive)
    except OSError as error:
        raise PlatformError(
            f"{archive.name} could not be packed: {error.strerror or error}", where=str(archive)
        ) from None
    finally:
        _remove_quietly(part)
    return packed


def write(
    content: Path | Sequence[Origin],
    sink: "Sink",
    name: str,
    log: Log | None = None,
    *,
    leave_out: Sequence[str] = (),
    room_bytes: int | None = None,
    threads: int | None = None,
) -> Packed:
    """Write *content* as a tar.gz to *sink*, in order.

    Names are relative to the folder, sorted; times, modes and owners are kept; members.py says what becomes of links.
    The same files give the same bytes with any number of threads. What cannot be read, sockets, FIFOs and devices are
    left out, with a warning to *log*, which calls the archive *name*, and so are the real paths in *leave_out*. A file
    that becomes shorter, or fails in the middle, is filled up with zeros, so that the archive stays whole.
    *room_bytes*: the most that links to outside may add. *threads*: None is one for each core that this process may
    use. Memory: at most 2 MiB for each thread.

    Raises:
        OSError: *sink* raised it. What *sink* has got is then no whole archive.
    """
    from toolkit.train.artifacts.gzip_writer import GzipWriter

    origins = (Origin(folder=content),) if isinstance(content, Path) else content
    faults, lost = _Faults(name, log), Lost()
    with GzipWriter(sink, threads or len(os.sched_getaffinity(0))) as packed:
        headers = _Headers()
        chosen = merged(origins, faults.leave_out, lost, leave_out=frozenset(leave_out), room_bytes=room_bytes)
        for member in chosen:
            if member.link is None and not member.is_folder and not headers.is_known(member.status):
                _write_file(member, headers, packed, faults)
            else:
                packed.write(headers.of(member, member.status))
        packed.write(END)
    faults.end()
    return Packed(
        size_bytes=packed.sent_bytes, faults=tuple(faults.sentences), more_faults=faults.more, lost=lost.names
    )


class _Faults:
    """Collects and logs what is not in the archive *name* as it was in its folder."""

    def __init__(self, name: str, log: Log | None) -> None:
        self._name = name
        self._log = log
        self.sentences: list[str] = []
        self.more = 0

    def leave_out(self, path: str, reason: str, is_contained: bool = False) -> None:
        self.add(path, f"{reason}; {self._name} {'contains the link' if is_contained else 'does not contain it'}")

    def add(self, path: str, reason: str) -> None:
        if len(self.sentences) >= MOST_FAULTS:
            self.more += 1
            return
        self.sentences.append(f"{path}: {reason}")
        if self._log:
            self._log.warning(self.sentences[-1])

    def end(self) -> None:
        if self.more and self._log:
            self._log.warning(f"{self._name}: the same of {self.more:,} more files or folders")


class _Headers:
    """Makes the headers of one archive. It remembers names of owners, and files that have several names."""

    def __init__(self) -> None:
        self._users: dict[int, str] = {}
        self._groups: dict[int, str] = {}
        self._names: dict[tuple[int, int], str] = {}

    def is_known(self, status: os.stat_result) -> bool:
        """True if the file of *status* is in the archive already, under another name."""
        return (status.st_dev, status.st_ino) in self._names

    def of(self, member: Member, status: os.stat_result) -> bytes:
        """Return the header of *member*, which has the *status* of its content."""
        import tarfile

        info = tarfile.TarInfo(member.name)
        info.mode, info.mtime = stat.S_IMODE(status.st_mode), status.st_mtime
        info.uid, info.gid = status.st_uid, status.st_gid
        info.uname, info.gname = self._user(status.st_uid), self._group(status.st_gid)
        if member.link is not None:
            info.type, info.linkname = tarfile.SYMTYPE, member.link
        elif stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
        elif self.is_known(status):
            info.type, info.linkname = tarfile.LNKTYPE, self._names[status.st_dev, status.st_ino]
        else:
            info.size = status.st_size
            if status.st_nlink > 1 or member.is_linked:
                self._names[status.st_dev, status.st_ino] = member.name
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")

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


def _write_file(member: Member, headers: _Headers, packed: "GzipWriter", faults: _Faults) -> None:
    """Write header and content of *member*, or nothing if its content cannot be read from the beginning."""
    try:
        # A file object costs twice as much: 20 us for each small file. The flags: it may have been replaced meanwhile.
        fd = os.open(member.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError as error:
        faults.leave_out(member.path, f"cannot be read ({error.strerror})")
        return
    try:
        try:
            status = os.fstat(fd)
            block = os.read(fd, min(status.st_size + 1, READ_BYTES)) if stat.S_ISREG(status.st_mode) else None
        except OSError as error:
            faults.leave_out(member.path, f"cannot be read ({error.strerror})")
            return
        if block is None:
            faults.leave_out(member.path, "expected a file, folder or link")
            return
        packed.write(headers.of(member, status))
        _write_content(member.path, fd, block, status.st_size, packed, faults)
    finally:
        os.close(fd)


def _write_content(path: str, fd: int, block: bytes, size: int, packed: "GzipWriter", faults: _Faults) -> None:
    """Write *block*, then the rest of the *size* bytes of *fd*, filled up with zeros to whole records.

    Each read asks for a byte more than is left, which tells whether the file has become longer.
    """
    done, reason = 0, "became shorter while it was packed"
    piece_bytes = min(size + 1, READ_BYTES)
    while block:
        content = block[: size - done]
        packed.write(content)
        done += len(content)
        if len(content) < len(block):
            faults.add(path, f"became longer while it was packed: the archive has its first {size:,} bytes")
        if len(content) < len(block) or (done == size and len(block) < piece_bytes):
            break
        piece_bytes = min(size - done + 1, READ_BYTES)
        try:
            block = os.read(fd, piece_bytes)
        except OSError as error:
            block, reason = b"", f"cannot be read to its end ({error.strerror})"
    if done < size:
        faults.add(path, f"{reason}: in the archive its last {size - done:,} of {size:,} bytes are zeros")
    left = size - done
    while left:
        packed.write(ZEROS[: min(left, READ_BYTES)])
        left -= min(left, READ_BYTES)
    packed.write(ZEROS[: -size % RECORD_BYTES])


def _remove_quietly(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # The folder is read-only or gone: the error that led here says so.
