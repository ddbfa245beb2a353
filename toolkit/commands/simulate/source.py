"""Packs the source folder of a job as the SDK submits it: its files, and the targets of its links.

A link within the source stays a relative link. A link to a file or folder outside is replaced by its content, because
in a container it would be broken. If that is a large folder it is left out: it holds data and not code. Everything that
is neither a file nor a folder is left out, too, and so is what cannot be read.
"""

import os
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from toolkit import files, folders
from toolkit.commands.jobs.folders import RUN_MARK
from toolkit.commands.simulate import ignore
from toolkit.errors import UserError
from toolkit.job.file.job_file import JobFile
from toolkit.log import Log
from toolkit.records import Record
from toolkit.train.source.files import kind_of

# Folders that are never part of the code, and often large.
LEFT_OUT = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        ".venv",
        "node_modules",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".tox",
        ".nox",
    }
)
# A folder with one of these is a job's, or a virtual environment of any name.
MARKS = (RUN_MARK, "pyvenv.cfg")

# A linked folder outside the source counts as code up to this size.
LINKED_BYTES = 100 << 20
LINKED_FILES = 10_000
# For a larger source, and one that takes longer, a log line says how much is packed and what to do.
LARGE_BYTES = 100 << 20
SLOW_S = 2.0
SHOWN = 5
VANISHED = "a file that is gone by now"


class SourceContent(Record, frozen=True, kw_only=True):
    """The content of a source folder by name: files, empty folders, links within it (and their targets), and entries
    that are left out (and the reason)."""

    files: dict[str, Path]
    folders: tuple[str, ...]
    links: dict[str, str]
    left_out: dict[str, str]


def list_content(job_file: JobFile, count: Callable[[str, Path], None] = lambda *_: None) -> SourceContent:
    """Return the parts of the source folder to submit: no caches, job folders, virtual environments or checkpoints, and
    nothing that its .toolkitignore names. *count* is called for each file, with its name.

    Raises:
        OSError: the source folder, or a link's target, cannot be read.
    """
    root = job_file.source.resolve()
    files: dict[str, Path] = {}
    empty: list[str] = []
    links: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    for path in _entries(job_file, left_out):
        name, kind = path.relative_to(job_file.source).as_posix(), kind_of(path)
        if kind not in ("a file", "a folder"):
            left_out[name] = kind
            continue
        target = path.resolve()
        if folders.is_link(path, folders.as_absent) and target.is_relative_to(root) and target != root:
            links[name] = target
        elif kind == "a file" and not os.access(path, os.R_OK, effective_ids=True):
            left_out[name] = "a file that cannot be read"
        elif kind == "a file":
            files[name] = target
            count(name, path)
        elif not folders.is_link(path, folders.as_absent):
            empty.append(name)
        elif (linked := _linked(target, root, name, left_out)) is not None:
            files.update({f"{name}/{below}": file for below, file in linked.items()})
        else:
            reason = f"a link to the folder {target}, which is large"
            left_out[name] = f"{reason}: give it as a channel (--channel NAME={target}), or copy it"
    packed = {root, *(parent for file in files.values() for parent in (file, *file.parents))}
    for name, target in list(links.items()):
        # The target is in a folder that is left out.
        if target not in packed and folders.is_file(target, folders.as_absent):
            files[name] = target
            del links[name]
    within = {name: os.path.relpath(target, (root / name).parent) for name, target in links.items()}
    return SourceContent(files=files, folders=tuple(empty), links=within, left_out=left_out)


def pack(job_file: JobFile, archive: Path, log: Log) -> dict[str, str]:
    """Write the source folder to *archive*, with the job's requirements as requirements.txt, and its rules. Return the
    names that are left out, with the reason."""
    size_report = _SizeReport(job_file.source, log)
    content = list_content(job_file, size_report.count)
    added = {} if job_file.requirements is None else {"requirements.txt": job_file.requirements}
    if job_file.rules is not None:
        added[job_file.rules_in_source] = job_file.rules
    size_report.all_is_counted()
    archive.parent.mkdir(mode=0o700)  # It may hold private files of the person.
    # Not compressed: it never leaves this machine (400 MB take 0.6 s of CPU time, at level 1 9.5 s).
    with tarfile.open(archive, "w:gz", compresslevel=0) as tar:
        for name in content.folders:
            tar.add(job_file.source / name, arcname=_packed(name), recursive=False)
        for name, path in {**content.files, **added}.items():
            size_report.say_if_slow()
            if reason := _add(tar, _packed(name), path):
                content.left_out[name] = reason
        for name, target in content.links.items():
            if name not in added:
                link = tarfile.TarInfo(_packed(name))
                link.type, link.linkname = tarfile.SYMTYPE, _packed(target)
                tar.addfile(link)
    return content.left_out


def _add(tar: tarfile.TarFile, name: str, path: Path) -> str:
    """Add the file *path* to *tar*; return why it is not in it as it was when it was looked at, "" if it is.

    Raises:
        OSError: it cannot be read.
    """
    try:
        opened = files.opened(path.resolve())
    except FileNotFoundError:
        return VANISHED
    with opened:
        info = tar.gettarinfo(arcname=name, fileobj=opened)
        content = _Filled(opened)
        tar.addfile(info, cast(IO[bytes], content) if info.isreg() else None)
    return "a file that became shorter while it was packed: its rest is zeros" if content.is_filled else ""


class _Filled:
    """A file that may become shorter while it is read: zeros take the place of what is missing."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.is_filled = False

    def read(self, size: int) -> bytes:
        """Return *size* bytes."""
        content = self._file.read(size)
        self.is_filled |= len(content) < size
        return content.ljust(size, b"\0")


class _SizeReport:
    """Says once how large the source is and where its size lies: at once if it is large, else when it takes long."""

    def __init__(self, source: Path, log: Log) -> None:
        self._source = source
        self._log = log
        self._began_s = time.monotonic()
        self._bytes: Counter[str] = Counter()  # By entry of the source folder.
        self._files = 0
        self._is_whole = self._is_said = False

    def count(self, name: str, path: Path) -> None:
        """Count the file *path*, whose name in the source is *name*."""
        first, slash, _ = name.partition("/")
        status = folders.status(path)
        self._bytes[first + slash] += status.st_size if status else 0
        self._files += 1
        self.say_if_slow()

    def all_is_counted(self) -> None:
        """Say it if the source is large."""
        self._is_whole = True
        if self._bytes.total() > LARGE_BYTES:
            self._say()

    def say_if_slow(self) -> None:
        """Say it if more than SLOW_S have passed."""
        if time.monotonic() - self._began_s > SLOW_S:
            self._say()

    def _say(self) -> None:
        if self._is_said:
            return
        self._is_said = True
        largest = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in self._bytes.most_common(SHOWN))
        so_far = "" if self._is_whole else " so far"
        self._log.info(
            f"packing the source {self._source}: {self._files:,} files, {self._bytes.total() / 1e6:,.0f} MB{so_far}"
            f" (the largest: {largest}); each host gets a copy. To leave something out, name it in a file"
            f" {ignore.NAME} there. Data is better given as a channel (--channel NAME=PATH), from outside of this"
            " folder; --source names another one"
        )


def _packed(name: str) -> str:
    """Return *name* so that a backslash in it stays a letter: a name without a slash would be one of Windows."""
    return f"./{name}" if "\\" in name else name


def _linked(folder: Path, root: Path, name: str, left_out: dict[str, str]) -> dict[str, Path] | None:
    """Return the files of *folder*, the target of the link *name*, outside the source *root*; None if it is large or
    contains the source. What cannot be read goes to *left_out*."""
    if root.is_relative_to(folder):
        return None
    files, left_bytes = {}, LINKED_BYTES

    def unreadable(error: OSError) -> None:
        left_out[f"{name}/{os.path.relpath(error.filename, folder)}".removesuffix("/.")] = describe(error)

    for entry in folders.walk(folder, unreadable, enter=lambda entry: entry.name not in LEFT_OUT):
        path = Path(entry.path)
        if kind_of(path) == "a file":
            files[path.relative_to(folder).as_posix()] = path.resolve()
            status = folders.status(path)
            left_bytes -= status.st_size if status else 0
        if left_bytes < 0 or len(files) > LINKED_FILES:
            return None
    return files


def _entries(job_file: JobFile, left_out: dict[str, str]) -> Iterator[Path]:
    """Yield the paths in the source, without folders that have content. Folders that cannot be read go to *left_out*.

    Raises:
        OSError: the source folder itself cannot be read.
    """
    source = job_file.source
    patterns = _ignored(source)
    empty: dict[Path, None] = {}  # Folders in which nothing has been seen yet.

    def unreadable(error: OSError) -> None:
        if Path(error.filename) == source:
            raise error
        left_out[os.path.relpath(error.filename, source)] = describe(error)
        empty.pop(Path(error.filename), None)

    def is_left_out(entry: os.DirEntry[str], *, is_folder: bool) -> bool:
        name = os.path.relpath(entry.path, source)
        return name != job_file.entry and ignore.is_ignored(patterns, name, is_folder=is_folder)

    def is_code(entry: os.DirEntry[str]) -> bool:
        if is_left_out(entry, is_folder=True) or entry.name in LEFT_OUT or Path(entry.path) == job_file.checkpoints:
            return False
        try:
            is_entered = not any(folders.status(f"{entry.path}/{mark}") for mark in MARKS)
        except OSError as error:
            unreadable(OSError(error.errno, error.strerror, entry.path))
            return False
        if is_entered:
            empty[Path(entry.path)] = None
        return is_entered

    for entry in folders.walk(source, unreadable, enter=is_code):
        empty.pop(Path(entry.path).parent, None)
        if entry.is_symlink() and kind_of(Path(entry.path)) == "a folder":
            if (
                entry.name not in LEFT_OUT
                and not is_left_out(entry, is_folder=True)
                and _leads_to_code(entry, job_file)
            ):
                yield Path(entry.path)
        elif not entry.is_dir(follow_symlinks=False) and not is_left_out(entry, is_folder=False):
            yield Path(entry.path)
    yield from empty


def _leads_to_code(entry: os.DirEntry[str], job_file: JobFile) -> bool:
    """True if the folder that the link *entry* leads to is no job's, no environment and no checkpoints."""
    try:
        return Path(entry.path) != job_file.checkpoints and not any(
            folders.status(f"{entry.path}/{mark}") for mark in MARKS
        )
    except OSError:
        return True  # What is to be said of it is said where it is read.


def _ignored(source: Path) -> tuple[ignore.Pattern, ...]:
    path = source / ignore.NAME
    kind = kind_of(path)
    if kind == "nothing":
        return ()
    if kind != "a file":
        raise UserError(f"expected a file of patterns, found {kind}", where=str(path))
    return ignore.patterns(path.read_text("utf-8-sig", "replace"))


def describe(error: OSError) -> str:
    """Return why an entry is left out, for "NAME is ..."."""
    if isinstance(error, folders.LoopError):
        return str(error.strerror)
    return f"a folder that cannot be read ({error.strerror})"
