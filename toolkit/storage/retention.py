"""Decides which version of each entry storage holds next: a pure function of its manifest and of what the folder has.

The rule:

- An entry of the folder replaces storage's version of it, unless it is held back: it is being written, has changed a
  moment ago, or cannot be read. An entry that is held back keeps storage's version, if there is one.
- An entry that is gone from the folder stays in storage until storage has a successor of it: an entry that is newer,
  and at least as whole. So storage that has had a whole checkpoint never has less than the newest one.
- Newer: its largest file came with a later manifest and has no earlier mtime, or with the same one and has a later
  mtime. Neither is enough: an older checkpoint may come to storage later, because it could not be read, and a clock may
  be wrong.
- What an earlier run left in the folder, and did not bring to storage, is stored, but is no successor: that run may
  have been killed while it wrote it.
- At least as whole: both are files with the same suffix, or both are folders and the successor has as many files of
  each name (numbers in it and temporary files aside), and it has at least half of the bytes. A newer entry that is less
  whole than that is no successor. Two newer ones of the same name (numbers aside) that are in the folder are: the
  script has gone on since the first. One that is gone may have been stored half written, and does not count.
- An entry with the name of an unfinished one (2.orbax-checkpoint-tmp-17) is no successor of one that has another.
- An entry that was renamed is its own successor. An entry without content goes at once, and a small one (a lock, a mark
  beside large checkpoints) once anything newer is there.
- Entries that are gone and have the same number in their names (ckpt-5.index, ckpt-5.data) go together or not at all.
- An entry that another one points to stays while that does. A link, or a file with nothing but the name of an entry,
  waits while that entry is held back and storage has no version of it.
- A file that is empty, and was not, was only begun: it is no version until the script ends by itself.
- An entry that is written anew in its place may pause when it is half written. So a version with less than half of the
  bytes of storage's version is treated as a removal, unless it is small (a pointer, a mark), until the script ends by
  itself. So is one that an earlier run left with fewer bytes or files, or with some of its files anew and others not:
  that run may have been killed while it wrote.
- A version that lacks files of storage's version is half removed, or half written anew. It must be quiet for longer
  (`is_lesser`); one with nothing new in it is treated as a removal.
- When the script has ended, and anything is held back, nothing is removed.
"""

import re
from collections.abc import Iterable, Mapping, Set
from typing import Literal

from toolkit.patterns import lazy
from toolkit.records import Record
from toolkit.storage.manifest import Manifest, StoredFile
from toolkit.storage.scan import FileState, FolderEntry, FolderScan, entry_of

# "open": the script runs. "clean": it ended by itself. "broken": it failed or was killed.
End = Literal["open", "clean", "broken"]
SMALL_BYTES = 4096
# A small entry that has less than this share of the bytes of another is no checkpoint.
SMALL_SHARE = 0.01
# Files that come and go beside a checkpoint's own. A hidden file of letters alone is one of its own, often its last:
# .metadata of torch.distributed.checkpoint, .zarray of zarr.
_TEMPORARY = lazy(r"/\.[^/]*[^/a-zA-Z][^/]*$|[._-](?:lock|tmp|temp|pid|part)(?:\.?#)?$|/__pycache__/", re.IGNORECASE)
# An entry that gets another name once it is whole: 2.orbax-checkpoint-tmp-17, tmp-checkpoint-500.
_UNFINISHED = lazy(r"(?:^|[._-])(?:tmp|temp|partial|incomplete)(?:[._-]|$)", re.IGNORECASE)
_NUMBER = lazy(r"(?:[0-9a-fA-F]{8,}|\d+)(?:\.\d+)*(?:e[-+]?\d+)?")
_FIRST_NUMBER = lazy(r"\d+")


class RetentionDecision(Record, frozen=True, kw_only=True):
    """`taken`: entries of which storage gets the folder's version. `retained`: those of which its own version stays.
    All others of its entries are removed."""

    taken: frozenset[str]
    retained: frozenset[str]


class _Version(Record, frozen=True, kw_only=True):
    """A version of an entry, in storage or in the folder."""

    name: str  # Of the entry.
    is_folder: bool  # The entry is a folder.
    is_left: bool  # An earlier run left it.
    age: tuple[int, int]  # The number of its manifest and the mtime, of its largest file.
    size_bytes: int  # Of all files.
    has_links: bool  # There are links in it.
    counts: dict[str, int]  # The number of files of each pattern of paths.
    stamps: frozenset[tuple[str, int, int]]  # Path in the entry, bytes and mtime of each file.


def decide(
    stored: Manifest,
    scan: FolderScan,
    unsettled: Set[str],
    *,
    pointers: Mapping[str, Iterable[str]] | None = None,
    end: End = "open",
    began_s: float = 0.0,
) -> RetentionDecision:
    """Return what storage, which holds *stored*, gets of the folder of *scan*.

    *unsettled*: entries that may be half written. *pointers*: the names in what new links and small files hold, by
    entry; those of *stored* are in it. *began_s*: when the script began, since the epoch.
    """
    old = by_entry(stored.files)
    held = {name for name in unsettled | set(scan.unreadable) if name in scan.entries or name in scan.unreadable}
    if scan.fault:
        held |= old.keys() - scan.entries.keys()  # They may be behind what could not be listed.
    new_names = scan.entries.keys() - held
    versions = {name: _version(name, files) for name, files in old.items()}
    number = stored.number + 1
    news = {name: _of_folder(name, scan.entries[name], old.get(name, {}), number, began_s) for name in new_names}
    largest_bytes = max((version.size_bytes for version in versions.values()), default=0)
    doubtful = {
        name
        for name in new_names & old.keys()
        if _is_removal(news[name], versions[name], largest_bytes, end, is_left=is_left(scan.entries[name], began_s))
    }
    gone = old.keys() - scan.entries.keys() - held
    stored_targets = {
        name: frozenset(t for file in files.values() for t in file.points_to) for name, files in old.items()
    }
    targets = stored_targets | {name: frozenset(names) for name, names in (pointers or {}).items()}
    taken = new_names - doubtful
    unknown = set().union(*targets.values()) if scan.fault else set()
    may_come = (scan.entries.keys() | scan.unreadable.keys() | unknown) - old.keys()
    taken, waiting = _without_dangling(taken, targets, may_come)
    held |= waiting
    retained = held & old.keys()
    removable = doubtful | gone
    if end != "open" and (held or scan.fault):
        return RetentionDecision(taken=frozenset(taken), retained=frozenset(retained | removable))
    remaining = [news[name] for name in taken] + [versions[name] for name in retained]
    for name in sorted(removable, key=lambda name: (versions[name].age, name), reverse=True):
        if not _is_replaced(versions[name], remaining, taken):
            retained.add(name)
            remaining.append(versions[name])
    pointed_to = {name: targets.get(name, frozenset()) for name in taken}
    pointed_to |= {name: stored_targets[name] for name in old.keys() - taken}
    retained |= _tied(removable - retained, removable & retained, taken | retained, pointed_to)
    return RetentionDecision(taken=frozenset(taken | (doubtful - retained)), retained=frozenset(retained))


def is_left(entry: FolderEntry, began_s: float) -> bool:
    """True if *entry* is as it was before the script began, at *began_s*."""
    return entry.changed_s < began_s


def is_lesser(entry: FolderEntry, stored: Mapping[str, StoredFile]) -> bool:
    """True if *entry* lacks files of *stored*, storage's version of it, numbers in names and temporary files aside."""
    return bool(stored) and _lacks(_of_folder("", entry, stored, 0, 0.0), _version("", stored))


def by_entry(files: Mapping[str, StoredFile]) -> dict[str, dict[str, StoredFile]]:
    """Return *files*, by path, for each entry."""
    entries: dict[str, dict[str, StoredFile]] = {}
    for path, file in files.items():
        entries.setdefault(entry_of(path), {})[path] = file
    return entries


def file_state_of(file: StoredFile) -> FileState:
    """Return how *file* looks in a folder."""
    if file.link:
        return FileState(size_bytes=0, mtime_ns=0, mode=0o777, link=file.link)
    return FileState(size_bytes=file.size_bytes, mtime_ns=file.mtime_ns, mode=file.mode)


def _of_folder(
    name: str, entry: FolderEntry, stored: Mapping[str, StoredFile], number: int, began_s: float
) -> _Version:
    def file(path: str, state: FileState) -> StoredFile:
        if path in stored and file_state_of(stored[path]) == state:
            return stored[path]
        is_left_over = is_left(entry, began_s)
        size_bytes, mtime_ns = state.size_bytes, state.mtime_ns
        return StoredFile(size_bytes=size_bytes, mtime_ns=mtime_ns, link=state.link, since=number, left=is_left_over)

    return _version(name, {path: file(path, state) for path, state in entry.files.items()})


def _version(name: str, files: Mapping[str, StoredFile]) -> _Version:
    counts: dict[str, int] = {}
    for pattern in map(_pattern, files):
        counts[pattern] = counts.get(pattern, 0) + 1
    largest = max(files.values(), key=lambda file: (file.size_bytes, file.since, file.mtime_ns))
    return _Version(
        name=name,
        is_folder=any("/" in path for path in files),
        is_left=any(file.left for file in files.values()),
        age=(largest.since, largest.mtime_ns),
        size_bytes=sum(file.size_bytes for file in files.values()),
        has_links=any(file.link for file in files.values()),
        counts=counts,
        stamps=frozenset((path.partition("/")[2], file.size_bytes, file.mtime_ns) for path, file in files.items()),
    )


def _pattern(path: str) -> str:
    """Return what files of the same meaning have in common: their path in a folder, or their suffix at the top."""
    top, _, below = path.partition("/")
    if below:
        return f"/{_without_numbers(below)}"
    return _without_numbers(top).rpartition(".")[2] if "." in _without_numbers(top) else ""


def _without_numbers(name: str) -> str:
    return _NUMBER.sub("#", name)


def _lacks(new: _Version, old: _Version) -> bool:
    missing = (pattern for pattern, count in old.counts.items() if new.counts.get(pattern, 0) < count)
    return any(not _TEMPORARY.search(pattern) for pattern in missing)


def _is_removal(new: _Version, old: _Version, largest_bytes: int, end: End, *, is_left: bool) -> bool:
    """True if *new*, in the place of *old*, is what a removal has left of it so far, or what was written anew so far.

    *largest_bytes*: of the largest entry in storage. *is_left*: *new* is as an earlier run left it.
    """
    lacks = _lacks(new, old)
    if lacks and new.stamps <= old.stamps:
        return True
    if end == "clean":
        return False
    if not new.size_bytes and not new.has_links:
        return bool(old.size_bytes)
    if _is_small(old, largest_bytes):
        return False
    if new.size_bytes * 2 < old.size_bytes:
        return True
    is_mixed = bool(new.stamps & old.stamps) and not old.stamps <= new.stamps
    return is_left and (lacks or is_mixed or new.size_bytes < old.size_bytes)


def _is_small(version: _Version, largest_bytes: int) -> bool:
    """True if *version* is no checkpoint beside an entry of *largest_bytes*."""
    return version.size_bytes <= SMALL_BYTES and version.size_bytes < largest_bytes * SMALL_SHARE


def _is_replaced(version: _Version, others: list[_Version], taken: Set[str]) -> bool:
    """True if *version* may go because of *others*, which storage will hold, *taken* as the folder has them."""
    if not version.size_bytes and not version.has_links:
        return True
    newer = [other for other in others if _is_newer(other, version)]
    if any(_succeeds(other, version) for other in newer):
        return True
    present = [other for other in newer if other.name in taken]
    if sum(_without_numbers(other.name) == _without_numbers(version.name) for other in present) >= 2:
        return True
    largest_bytes = max((other.size_bytes for other in others), default=0)
    return _is_small(version, largest_bytes) and any(other.size_bytes >= version.size_bytes for other in newer)


def _is_newer(other: _Version, version: _Version) -> bool:
    not_older = all(new >= old for new, old in zip(other.age, version.age, strict=True))
    return not_older and other.age != version.age and not other.is_left


def _succeeds(other: _Version, version: _Version) -> bool:
    return (
        other.is_folder == version.is_folder
        and (not _UNFINISHED.search(other.name) or bool(_UNFINISHED.search(version.name)))
        and not _lacks(other, version)
        and other.size_bytes * 2 >= version.size_bytes
    )


def _without_dangling(
    taken: Set[str], targets: Mapping[str, frozenset[str]], new: Set[str]
) -> tuple[set[str], set[str]]:
    """Return *taken* without those that would point to entries that are only in the folder, and these.

    *new*: the entries of which storage has no version, and which the folder has, or may have.
    """
    remaining, waiting = set(taken), set[str]()
    while dangling := {name for name in remaining if targets.get(name, frozenset()) & (new - remaining) - {name}}:
        remaining -= dangling
        waiting |= dangling
    return remaining, waiting


def _tied(
    removable: Set[str], retained: Set[str], remaining: Set[str], targets: Mapping[str, frozenset[str]]
) -> set[str]:
    """Return which of *removable* stay because of entries that stay: *retained* of those that are gone, and
    *remaining*, which point to their *targets*."""
    staying: set[str] = set()
    while True:
        numbers = {_number(name) for name in retained | staying} - {""}
        pointed_to = {target for name in remaining | staying for target in targets.get(name, frozenset())}
        tied = {name for name in removable - staying if name in pointed_to or _number(name) in numbers}
        if not tied:
            return staying
        staying |= tied


def _number(name: str) -> str:
    match = _FIRST_NUMBER.search(name)
    return match[0] if match else ""
