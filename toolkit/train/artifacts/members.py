"""Decides what an archive contains: the members of one or several hosts' folders, in order, merged as by the platform.

An archive is unpacked on another machine, so its links lead only to its own members:

- A link to something inside the folder becomes relative, if it is not.
- A link to something outside becomes the file or folder that it leads to. Such content is limited: `LINKED_ENTRIES`,
  and as many bytes as the archive's disk has free. A folder that contains the packed one, and the kernel's own, are
  left out. Within a linked folder the same rules hold; links that lead back into it are relative, so no loop is
  followed.
- A link to nothing stays where it leads inside, and is left out elsewhere.

Nothing here raises an error for one bad entry: `fault` gets its path and the reason, and the rest goes on.
"""

import errno
import filecmp
import heapq
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from toolkit import folders
from toolkit.records import Record

LINKED_ENTRIES = 100_000
KERNELS = ("/proc", "/sys")
BASE = "/opt/ml"
MOST_LINKS = 40  # The kernel's own limit for following links (path_resolution(7)).

# Gets the path of an entry, what is wrong with it, and whether the archive contains it nevertheless.
Fault = Callable[[str, str, bool], None]


class Origin(Record, frozen=True, kw_only=True):
    """A folder of a host to pack."""

    folder: Path  # The folder on this machine.
    host: str = ""  # The host's name.
    base: Path | None = None  # What the host's script saw as /opt/ml, None for the same.
    checkpoints: Path | None = None  # What it saw as /opt/ml/checkpoints, None for the folder of the base.
    contained: bool = False  # The script saw only these.


class Member:
    """One entry of the archive. `path`: where its content is; `link`: the target of a link, None for no link;
    `is_linked`: a link led to its content, which may have other names in the archive."""

    __slots__ = ("host", "is_linked", "link", "name", "path", "status")

    def __init__(
        self,
        host: str,
        name: str,
        path: str,
        status: os.stat_result,
        *,
        link: str | None = None,
        is_linked: bool = False,
    ) -> None:
        self.host, self.name, self.path, self.status = host, name, path, status
        self.link, self.is_linked = link, is_linked

    @property
    def is_folder(self) -> bool:
        return self.link is None and stat.S_ISDIR(self.status.st_mode)


class Lost:
    """The names that several hosts have with different content: by (owner, other host)."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, str], list[str]] = {}

    def add(self, stored: Member, member: Member) -> None:
        self.names.setdefault((stored.host, member.host), []).append(member.name)


def merged(
    origins: Sequence[Origin], fault: Fault, lost: Lost, *, leave_out: frozenset[str], room_bytes: int | None
) -> Iterator[Member]:
    """Yield the members of all *origins*, a folder before its content, sorted by name in each folder.

    Of two members of one name the first origin's is yielded, and *lost* gets the other unless it is equal.
    *room_bytes*: the most that links may add, None for any amount.
    """
    streams = [_Walk(origin, fault, leave_out, room_bytes).members() for origin in origins]
    if len(streams) == 1:
        yield from streams[0]
        return
    stored: Member | None = None
    shadowed: dict[str, str] = {}  # By host: a folder of it whose name another host gave to a file.
    for member in heapq.merge(*streams, key=lambda member: member.name.split("/")):
        if member.name.startswith(shadowed.get(member.host, "/")):
            continue
        if stored is not None and member.name == stored.name:
            if not _is_same(stored, member):
                lost.add(stored, member)
                if member.is_folder:
                    shadowed[member.host] = member.name + "/"
            continue
        stored = member
        yield member


def _is_same(stored: Member, member: Member) -> bool:
    if stored.is_folder or member.is_folder or stored.link is not None or member.link is not None:
        return (stored.is_folder and member.is_folder) or (stored.link is not None and stored.link == member.link)
    try:
        return filecmp.cmp(stored.path, member.path, shallow=False)
    except OSError:
        return False


class _Walk:
    """The members of one origin. `_roots`: the folders that the walk is in, with their names in the archive: the
    origin's, and those that links led to."""

    def __init__(self, origin: Origin, fault: Fault, leave_out: frozenset[str], room_bytes: int | None) -> None:
        self._origin = origin
        self._fault = fault
        self._leave_out = leave_out
        self._room_bytes = room_bytes
        self._room_entries = LINKED_ENTRIES
        self._roots: list[tuple[str, str]] = []

    def members(self) -> Iterator[Member]:
        return self._below(os.path.realpath(self._origin.folder), "")

    def _below(self, root: str, prefix: str) -> Iterator[Member]:
        self._roots.append((root, prefix))
        start = len(root.rstrip("/")) + 1
        for entry in folders.walk(root, self._unreadable):
            path = entry.path
            if path in self._leave_out:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # It has vanished, or the walk reports it.
            name = prefix + path[start:]
            if stat.S_ISLNK(status.st_mode):
                yield from self._link(path, name, status)
            elif stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                yield Member(self._origin.host, name, path, status, is_linked=len(self._roots) > 1)
            else:
                self._fault(path, "expected a file, folder or link", False)
        self._roots.pop()

    def _unreadable(self, error: OSError) -> None:
        self._fault(str(error.filename), f"cannot be read ({error.strerror})", False)

    def _link(self, path: str, name: str, status: os.stat_result) -> Iterator[Member]:
        try:
            target = str(Path(path).readlink())
        except OSError as error:
            self._fault(path, f"cannot be read ({error.strerror})", False)
            return
        try:
            real = self._followed(path, target)
            file_status = os.lstat(real)
        except OSError as error:
            if error.errno == errno.ENOENT and self._is_plain(path, target):
                self._fault(path, f"is a link to {target}, where nothing is", True)
                yield Member(self._origin.host, name, path, status, link=target)
                return
            reason = "where nothing is" if error.errno == errno.ENOENT else f"which cannot be read ({error.strerror})"
            self._fault(path, f"is a link to {target}, {reason}", False)
            return
        inside = self._inside(real)
        if inside is not None:
            plain = target if self._is_plain(path, target) else os.path.relpath(f"/{inside}", f"/{_folder_of(name)}")
            yield Member(self._origin.host, name, path, status, link=plain)
        elif reason := self._refused(real, file_status):
            self._fault(path, f"is a link to {target}, {reason}", False)
        elif stat.S_ISDIR(file_status.st_mode):
            yield Member(self._origin.host, name, real, file_status, is_linked=True)
            yield from self._below(real, name + "/")
        else:
            yield Member(self._origin.host, name, real, file_status, is_linked=True)

    def _followed(self, link: str, target: str) -> str:
        """Return the real path of what *link* leads to, with /opt/ml as the script saw it.

        Raises:
            OSError: nothing is there, or a part of the way cannot be read.
        """
        folder, ahead = _folder_of(link), target.split("/")[::-1]
        if target.startswith("/"):
            folder, ahead = self._absolute(target)
        followed = 0
        while ahead:
            step = ahead.pop()
            if step in ("", "."):
                continue
            if step == "..":
                folder = _folder_of(folder)
                continue
            path = f"{folder}/{step}"
            try:
                target = str(Path(path).readlink())
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                folder = path  # It is no link.
                continue
            followed += 1
            if followed > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), link)
            if target.startswith("/"):
                folder, more = self._absolute(target)
                ahead += more
            else:
                ahead += target.split("/")[::-1]
        if self._origin.contained and not self._was_seen(folder):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), link)
        return folder or "/"

    def _absolute(self, target: str) -> tuple[str, list[str]]:
        """Return where to begin with *target*, and the steps from there, the last one first."""
        steps = [step for step in target.split("/") if step not in ("", ".")]
        if self._origin.checkpoints is not None and steps[:3] == ["opt", "ml", "checkpoints"]:
            return os.path.realpath(self._origin.checkpoints), steps[:2:-1]
        if self._origin.base is not None and steps[:2] == ["opt", "ml"]:
            return os.path.realpath(self._origin.base), steps[:1:-1]
        return "", steps[::-1]

    def _was_seen(self, real: str) -> bool:
        roots = (self._origin.folder, self._origin.base, self._origin.checkpoints)
        return any(_is_below(real, os.path.realpath(folder)) for folder in roots if folder is not None)

    def _is_plain(self, path: str, target: str) -> bool:
        """True if *target* is relative, without detours, and by its text inside the root that the link is in."""
        if target.startswith("/") or os.path.normpath(target) != target:
            return False
        root = self._roots[-1][0].rstrip("/")
        leads_to = os.path.normpath(f"{_folder_of(path[len(root) + 1 :])}/{target}".lstrip("/"))
        return leads_to.split("/")[0] != ".."

    def _inside(self, real: str) -> str | None:
        """Return the name in the archive of *real*, None if it is outside."""
        for root, prefix in self._roots:
            if _is_below(real, root):
                return (prefix + real[len(root.rstrip("/")) + 1 :]).rstrip("/")
        return None

    def _refused(self, real: str, file_status: os.stat_result) -> str:
        """Return why what a link leads to is left out, "" if it is not; take its room."""
        if any(_is_below(real, folder) for folder in KERNELS):
            return "which is no file but the kernel's"
        if any(_is_below(root, real) for root, _ in self._roots):
            return "a folder that contains the packed one"
        if not (stat.S_ISREG(file_status.st_mode) or stat.S_ISDIR(file_status.st_mode)):
            return "which is neither file nor folder"
        entries, bytes_ = 1, file_status.st_size if stat.S_ISREG(file_status.st_mode) else 0
        if stat.S_ISDIR(file_status.st_mode):
            for entry in folders.walk(real, lambda _: None):  # The walk that packs reports what cannot be read.
                entries += 1
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                bytes_ += status.st_size if stat.S_ISREG(status.st_mode) else 0
                if entries > self._room_entries or (self._room_bytes is not None and bytes_ > self._room_bytes):
                    break
        if entries > self._room_entries:
            return f"a folder outside; linked folders may have {LINKED_ENTRIES:,} entries together"
        if self._room_bytes is not None and bytes_ > self._room_bytes:
            return f"outside, which has more than the {self._room_bytes:,} bytes that the archive's disk has free"
        self._room_entries -= entries
        if self._room_bytes is not None:
            self._room_bytes -= bytes_
        return ""


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
