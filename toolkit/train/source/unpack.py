"""Extracts a submitted archive safely: no member, whatever its name, is written outside the given folder.

We read the decompressed bytes once, forward only. Folders and files are written in the archive's order. Links are only
noted; they are checked against each other once all are known, and made last. So no file is written through a link, and
no link changes its meaning after its check (`a -> b/..` is harmless while b is a folder, but not once b is a link).

A backslash in a name without a slash separates folders, as the programs of Windows write it ("pkg\\train.py"), and as
sagemaker-training takes it. In a name with a slash ("./a\\b") it is a letter, as on Linux.

tarfile only reads headers here, so that every Python behaves the same: its own extraction filters exist only from
3.10.12, 3.11.4 and 3.12 on and differ between these versions, and `extractall` without a filter warns.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from toolkit import files, folders
from toolkit.errors import InternalError, PlatformError, UserError
from toolkit.files import UnfitError
from toolkit.folders import make

if TYPE_CHECKING:
    import tarfile

DRIVE = re.compile(r"[A-Za-z]:")
Parts = tuple[str, ...]
CHUNK_BYTES = 1 << 20
BLOCK_BYTES = 512
HEADER_BYTES = 16 << 20  # The most that one extended header may have; tarfile reads it at once.
CHECKED_BYTES = 1 << 20  # Files above that are compared with the disk's room before they are written.
MOST_LINKS = 40  # The kernel's own limit for following links (path_resolution(7)).
REMAKE = "Make it again from a plain folder: tar -czf sourcedir.tar.gz -C FOLDER ."


def unpack(archive: Path, into: Path) -> tuple[str, ...]:
    """Extract *archive* and return the names of its files and links.

    *archive*: a tar, plain or compressed by gzip, bzip2 or xz, recognized by its content. *into*: missing or empty.
    Files belong to this process's user. They keep their times and their permissions without setuid, setgid, sticky and
    write permission for group and others. After a failure *into* holds what was written so far; nothing is written
    elsewhere.

    Raises:
        UserError: *archive* is not a tar, is damaged or cut short, or has a member that is absolute, holds "..", leads
            outside by a link, would be written through a link, or is a device or FIFO; or a sparse file larger than the
            disk's free space.
        PlatformError: *into* cannot be written, or a file is larger than the disk's free space.
    """
    import tarfile

    try:
        make(into)
        if folders.names(into):
            raise InternalError("expected an empty folder to unpack into", where=str(into))
        with _Bytes(archive) as content:
            tree = _Tree(archive, into)
            try:
                with _opened(content) as tar:
                    for member in _members(tar):
                        tree.take(tar, member)
                content.expect_end()
            except (tarfile.TarError, _DamagedError) as error:
                raise _unreadable(archive, content, error) from None
            tree.make_links()
    except OSError as error:
        if isinstance(error, UnfitError):
            raise UserError(f"expected a tar archive, found {error.strerror}", where=str(archive)) from None
        if error.errno in (errno.ENAMETOOLONG, errno.EILSEQ):
            member_name = os.path.relpath(str(error.filename), into)
            message = (
                f"member {member_name[:80]!r}, of {len(member_name)} characters, has a name that this file system does"
                " not take"
            )
            raise UserError(f"{message} ({error.strerror})", where=str(archive), hint=REMAKE) from None
        raise PlatformError(f"cannot unpack {archive}: {error.strerror}", where=str(error.filename or into)) from None
    return tuple(tree.names)


def is_tar(file: Path) -> bool:
    """True if *file*'s content, after decompression, begins with a tar header."""
    import tarfile

    with _Bytes(file) as content:
        try:
            _opened(content).close()
        except _HeaderError:
            return True
        except (tarfile.TarError, _DamagedError):
            return False
    return True


class _DamagedError(Exception):
    """The bytes cannot be decompressed, or end too early."""


class _HeaderError(_DamagedError):
    """A tar's extended header has invalid numbers (tarfile lets int()'s own ValueError through) or impossible ones."""


def _opened(content: "_Bytes") -> "tarfile.TarFile":
    """Open *content* as a tar. This reads the first header."""
    import tarfile

    try:
        return tarfile.open(fileobj=cast(IO[bytes], content), mode="r:")
    except (ValueError, OverflowError) as error:
        raise _HeaderError(str(error)) from None
    except RecursionError:
        raise _HeaderError("too many extended headers in a row") from None


def _members(tar: "tarfile.TarFile") -> Iterator["tarfile.TarInfo"]:
    try:
        yield from tar
    except (ValueError, OverflowError) as error:
        raise _HeaderError(str(error)) from None
    except RecursionError:
        raise _HeaderError("too many extended headers in a row") from None


class _Bytes:
    """An archive's decompressed bytes, read forward only. `last`: the block read last; `at`: the position after it.

    To go back one byte in a compressed file, it may have to be decompressed from its start.
    """

    def __init__(self, archive: Path) -> None:
        self._raw = files.opened(archive)
        self.head = self._raw.read(16)
        self._raw.seek(0)
        self._file, self._faults = _decompressed(self._raw, self.head)
        self.at = 0
        self.last = b""

    def __enter__(self) -> "_Bytes":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._raw.close()

    def read(self, size: int) -> bytes:
        if size > HEADER_BYTES:
            raise _HeaderError(f"an extended header of {size:,} bytes")
        try:
            self.last = self._file.read(size)
        except self._faults as error:
            raise _DamagedError(str(error)) from None
        self.at += len(self.last)
        return self.last

    def tell(self) -> int:
        return self.at

    def seekable(self) -> bool:
        """True: forward, which tarfile needs to skip the holes of sparse files."""
        return True

    def seek(self, position: int) -> int:
        if position < self.at:
            # This happens only if a member's extended header gives it more bytes than its own header does.
            raise _HeaderError(f"byte {position}, where a member begins, belongs to the member before it")
        while self.at < position and self.read(min(position - self.at, CHUNK_BYTES)):
            pass
        return self.at

    def expect_end(self) -> None:
        """Check that the headers ended at the end of the archive, and read the rest so that checksums are compared.

        tarfile treats a broken or truncated header as the end. A missing end mark alone is accepted, as by GNU tar.
        """
        if len(self.last) not in (0, BLOCK_BYTES) or self.last.strip(b"\0"):
            raise _DamagedError(f"a broken header before byte {self.at}")
        while self.read(CHUNK_BYTES):
            pass


def _is_of_windows(name: str) -> bool:
    return "\\" in name and "/" not in name


def _regions(member: "tarfile.TarInfo") -> Iterable[tuple[int, int]]:
    """Yield (offset, size) of the parts of *member* that are in the archive: the holes of a sparse file stay holes."""
    if not member.issparse():
        return ((0, member.size),)
    regions = [region for region in cast("list[tuple[int, int]]", member.sparse) if region[1]]
    block_offset = 0
    for offset, size in regions:
        if offset < block_offset or size < 0 or offset + size > member.size:
            raise _HeaderError(f"an impossible map of the sparse file {member.name!r}")
        block_offset = offset + size
    return regions


def _decompressed(raw: IO[bytes], head: bytes) -> tuple[IO[bytes], tuple[type[Exception], ...]]:
    """Return (the file to read, the exceptions that it raises if its bytes are damaged)."""
    if head.startswith(b"\x1f\x8b"):
        import gzip
        import zlib

        return cast(IO[bytes], gzip.GzipFile(fileobj=raw)), (EOFError, OSError, zlib.error)
    if head.startswith(b"BZh"):
        import bz2

        return cast(IO[bytes], bz2.BZ2File(raw)), (EOFError, OSError)
    if head.startswith(b"\xfd7zXZ\0"):
        import lzma

        return cast(IO[bytes], lzma.LZMAFile(raw)), (EOFError, OSError, lzma.LZMAError)
    return raw, (OSError,)


def _unreadable(archive: Path, content: _Bytes, error: Exception) -> UserError:
    if content.at > BLOCK_BYTES:
        message = f"the archive is damaged or cut short: {error} (after {content.at} bytes of its content)"
    else:
        message = f"expected a tar archive (plain, gzip, bzip2 or xz), found {_named(content.head)} ({error})"
    return UserError(message, where=str(archive), hint=REMAKE)


def _named(head: bytes) -> str:
    if not head:
        return "an empty file"
    formats = {b"PK": "a zip file", b"\x1f\x8b": "gzip data", b"BZh": "bzip2 data", b"\xfd7zXZ": "xz data"}
    format_name = next((words for mark, words in formats.items() if head.startswith(mark)), "")
    return format_name or f"a file that begins {head!r}"


class _Tree:
    """The files written below `root`, and the links still to be made."""

    def __init__(self, archive: Path, root: Path) -> None:
        self._archive = archive
        self._root = root
        self._folders: set[Parts] = {()}
        self._links: dict[Parts, str] = {}
        self.names: dict[str, None] = {}

    def take(self, tar: "tarfile.TarFile", member: "tarfile.TarInfo") -> None:
        """Write *member*, or note it if it is a link."""
        parts = self._parts(member, member.name)
        if member.isdir() or (member.name.endswith("\\") and _is_of_windows(member.name) and not member.size):
            if self._links.pop(parts, None) is not None:
                del self.names["/".join(parts)]
            self._make_folder(parts, member)
            return
        if not parts:
            raise self._bad(member, "has no name")
        self._make_folder(parts[:-1], member)
        if member.issym():
            self._note_link(parts, member)
        elif member.islnk():
            self._copy(parts, member)
        elif member.isreg():
            self._free(parts, member)
            self._check_room(parts, member)
            self._write(parts, member, cast(IO[bytes], tar.extractfile(member)))
        else:
            kind = "device" if member.isdev() and not member.isfifo() else "FIFO" if member.isfifo() else "unknown kind"
            raise self._bad(member, f"is neither file, folder nor link ({kind})")
        self.names["/".join(parts)] = None

    def make_links(self) -> None:
        """Make the links noted, after checking all of them."""
        for parts in self._links:
            self._check_link(parts)
        for parts, target in self._links.items():
            self._path(parts).symlink_to(target)

    def _parts(self, member: "tarfile.TarInfo", name: str) -> Parts:
        if _is_of_windows(name):
            if DRIVE.match(name):
                raise self._bad(member, f"leads outside: {name!r} names a drive")
            name = name.replace("\\", "/")
        if name.startswith("/"):
            raise self._bad(member, f"leads outside: {name!r} is absolute")
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if ".." in parts:
            raise self._bad(member, f"leads outside: {name!r} holds '..'")
        if "\0" in name:
            raise self._bad(member, "has a NUL in its name")
        return parts

    def _make_folder(self, parts: Parts, member: "tarfile.TarInfo") -> None:
        for depth in range(1, len(parts) + 1):
            above = parts[:depth]
            if above in self._folders:
                continue
            if above in self._links:
                raise self._bad(member, f"would be written through the link {'/'.join(above)!r}")
            try:
                os.mkdir(f"{self._root}/{'/'.join(above)}", 0o755)  # noqa: PTH102 - with Path 10 s for 2,000 levels
            except FileExistsError:
                raise self._bad(member, f"lies below {'/'.join(above)!r}, which is a file") from None
            self._folders.add(above)

    def _free(self, parts: Parts, member: "tarfile.TarInfo") -> None:
        """Remove a file or link at *parts*: a later member of the same name wins, as after tar's own append."""
        if parts in self._folders:
            raise self._bad(member, "is both a folder and something else")
        self._links.pop(parts, None)
        self._path(parts).unlink(missing_ok=True)

    def _note_link(self, parts: Parts, member: "tarfile.TarInfo") -> None:
        if not member.linkname or "\0" in member.linkname:
            raise self._bad(member, f"is a link to {member.linkname!r}")
        if _is_of_windows(member.linkname):
            if DRIVE.match(member.linkname):
                raise self._bad(member, f"leads outside: a link to {member.linkname!r}")
            member.linkname = member.linkname.replace("\\", "/")
        if member.linkname.startswith("/"):
            raise self._bad(member, f"leads outside: a link to {member.linkname!r}")
        self._free(parts, member)
        self._links[parts] = member.linkname

    def _check_link(self, parts: Parts) -> None:
        """Follow the link at *parts* as the kernel would, over the links noted."""
        folder_parts = list(parts[:-1])
        ahead = self._links[parts].split("/")[::-1]
        followed = 0
        while ahead:
            step = ahead.pop()
            if step == ".." and not folder_parts:
                raise self._bad_link(parts, "leads outside")
            if step == "..":
                folder_parts.pop()
            elif (link := self._links.get((*folder_parts, step))) is not None:
                followed += 1
                if followed > MOST_LINKS:
                    raise self._bad_link(parts, "never ends")
                ahead += link.split("/")[::-1]
            elif step not in ("", "."):
                folder_parts.append(step)

    def _copy(self, parts: Parts, member: "tarfile.TarInfo") -> None:
        """Write a hard link as a file of its own: not every file system has hard links."""
        target = self._parts(member, member.linkname)
        if target in self._links:
            link = self._links[target]
            self._free(parts, member)
            self._links[parts] = link
            return
        if "/".join(target) not in self.names:
            raise self._bad(member, f"is a hard link to {member.linkname!r}, which is no earlier file of the archive")
        if target != parts:
            self._free(parts, member)
            original = self._path(target)
            with original.open("rb") as content:
                member.mode, member.size = original.stat().st_mode, original.stat().st_size
                self._check_room(parts, member)
                self._write(parts, member, content)

    def _check_room(self, parts: Parts, member: "tarfile.TarInfo") -> None:
        """Check that *member* may be as large as it says: a few bytes of an archive can stand for any number."""
        if not 0 <= member.size < 1 << 63:
            raise _HeaderError(f"the impossible size of member {'/'.join(parts)!r}")
        if member.size < CHECKED_BYTES:
            return
        room = os.statvfs(self._root)
        free_bytes = room.f_bavail * room.f_frsize
        if not room.f_blocks or member.size <= free_bytes:  # Some file systems (FUSE) do not tell.
            return
        message = f"has {member.size:,} bytes, the disk of {self._root} has {free_bytes:,} free"
        if member.issparse():
            raise self._bad(member, f"is sparse and {message}")
        raise PlatformError(f"member {'/'.join(parts)!r} {message}", where=str(self._archive))

    def _write(self, parts: Parts, member: "tarfile.TarInfo", content: IO[bytes]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        path = self._path(parts)
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            for offset, size in _regions(member):
                if offset != file.tell():
                    content.seek(offset)
                    file.seek(offset)
                left = size
                while left and (chunk := content.read(min(left, CHUNK_BYTES))):
                    file.write(chunk)
                    left -= len(chunk)
                if left:
                    raise _DamagedError(f"{member.name!r} ends after {file.tell()} of {member.size} bytes")
            file.truncate(member.size)
            os.fchmod(file.fileno(), stat.S_IMODE(member.mode) & 0o755 | 0o600)
        try:
            os.utime(path, (member.mtime, member.mtime))
        except (OverflowError, ValueError, OSError):
            pass  # The file system cannot store this time; the file is usable without it.

    def _path(self, parts: Parts) -> Path:
        return self._root.joinpath(*parts)

    def _bad(self, member: "tarfile.TarInfo", reason: str) -> UserError:
        return UserError(f"member {member.name!r} {reason}", where=str(self._archive), hint=REMAKE)

    def _bad_link(self, parts: Parts, reason: str) -> UserError:
        message = f"member {'/'.join(parts)!r} {reason}: a link to {self._links[parts]!r}"
        return UserError(message, where=str(self._archive), hint=REMAKE)
