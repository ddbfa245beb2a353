"""Packs the source folder of a job as the SDK submits it: its files, and the targets of its links.

A link within the source stays a relative link. A link to a file or folder outside is replaced by its content, because
in a container it would be broken. If that is a large folder it is left out: it holds data and not code. Everything that
is neither a file nor a folder is left out, too.
"""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from toolkit.jobfile.spec import JobFile
from toolkit.jobs.folders import RUN_MARK
from toolkit.log import Log
from toolkit.records import Record
from toolkit.source.files import kind_of

# Folders that are never part of the code, and often large.
LEFT_OUT = frozenset({".git", ".hg", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache"})


# A linked folder outside the source counts as code up to this size.
LINKED_BYTES = 100 << 20
LINKED_FILES = 10_000
# For a larger source, a log line says how much is packed and what to do.
LARGE_BYTES = 100 << 20


class Source(Record, frozen=True, kw_only=True):
    """The content of a source folder by name: files, empty folders, links within it (and their targets), and entries
    that are left out (and the reason)."""

    files: dict[str, Path]
    folders: tuple[str, ...]
    links: dict[str, str]
    left_out: dict[str, str]


def look(asked: JobFile) -> Source:
    """Return the parts of the source folder to submit: no caches, job folders, virtual environments or checkpoints.

    Raises:
        OSError: a link's target cannot be read.
    """
    root = asked.source.resolve()
    files: dict[str, Path] = {}
    folders: list[str] = []
    links: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    for path in _entries(asked):
        name, kind = path.relative_to(asked.source).as_posix(), kind_of(path)
        if kind not in ("a file", "a folder"):
            left_out[name] = kind
            continue
        target = path.resolve()
        if path.is_symlink() and target.is_relative_to(root) and target != root:
            links[name] = target
        elif kind == "a file":
            files[name] = target
        elif not path.is_symlink():
            folders.append(name)
        elif (linked := _linked(target, root)) is not None:
            files.update({f"{name}/{below}": file for below, file in linked.items()})
        else:
            reason = f"a link to the folder {target}, which is large"
            left_out[name] = f"{reason}: give it as a channel (--channel NAME={target}), or copy it"
    packed = {root, *(parent for file in files.values() for parent in (file, *file.parents))}
    for name, target in list(links.items()):
        if target not in packed and target.is_file():  # The target is in a folder that is left out.
            files[name] = target
            del links[name]
    within = {name: os.path.relpath(target, (root / name).parent) for name, target in links.items()}
    return Source(files=files, folders=tuple(folders), links=within, left_out=left_out)


def pack(asked: JobFile, archive: Path, log: Log) -> dict[str, str]:
    """Write the source folder to *archive*, with the job's requirements as requirements.txt, and its rules. Return the
    names that are left out, with the reason."""
    found = look(asked)
    added = {} if asked.requirements is None else {"requirements.txt": asked.requirements}
    if asked.spec.rules is not None:
        added[asked.rules_in_source] = asked.spec.rules
    size_bytes = sum(file.stat().st_size for file in found.files.values())
    if size_bytes > LARGE_BYTES:
        log.info(
            f"packing the source {asked.source}: {len(found.files):,} files, {size_bytes / 1e6:,.0f} MB; each host gets"
            " a copy. Data is better given as a channel (--channel NAME=PATH), from outside of this folder;"
            " --source names another one"
        )
    archive.parent.mkdir(mode=0o700)  # It may hold private files of the person.
    # Not compressed: it never leaves this machine (400 MB take 0.6 s of CPU time, at level 1 9.5 s).
    with tarfile.open(archive, "w:gz", compresslevel=0) as tar:
        for name in found.folders:
            tar.add(asked.source / name, arcname=name, recursive=False)
        for name, path in {**found.files, **added}.items():
            tar.add(path.resolve(), arcname=name)
        for name, target in found.links.items():
            if name not in added:
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, target
                tar.addfile(link)
    return found.left_out


def _linked(folder: Path, root: Path) -> dict[str, Path] | None:
    """Return the files of *folder*, the target of a link, outside the source *root*; None if it is large or contains
    the source."""
    if root.is_relative_to(folder):
        return None
    files, left_bytes = {}, LINKED_BYTES
    for top, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if name not in LEFT_OUT)
        for name in sorted(names):
            path = Path(top, name)
            if kind_of(path) == "a file":
                files[path.relative_to(folder).as_posix()] = path.resolve()
                left_bytes -= path.stat().st_size
        if left_bytes < 0 or len(files) > LINKED_FILES:
            return None
    return files


def _entries(asked: JobFile) -> Iterator[Path]:
    """Yield the paths in the source, without folders that have content."""
    for folder, below, names in os.walk(asked.source):
        if not below and not names and Path(folder) != asked.source:
            yield Path(folder)
        code = sorted(name for name in below if _is_code(Path(folder, name), asked))
        links = {name for name in code if Path(folder, name).is_symlink()}
        below[:] = [name for name in code if name not in links]
        yield from (Path(folder, name) for name in sorted({*names, *links}))


def _is_code(folder: Path, asked: JobFile) -> bool:
    holds = (RUN_MARK, "pyvenv.cfg")  # A job's folder; a virtual environment of any name.
    return (
        folder.name not in LEFT_OUT
        and folder != asked.spec.checkpoints
        and not any((folder / name).exists() for name in holds)
    )
