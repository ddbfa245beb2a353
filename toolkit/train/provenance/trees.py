"""Digests of folders: equal digests mean equal files, as far as they were read.

The cost has limits that do not depend on the machine's speed, so that equal folders have equal digests everywhere: a
file of more than FILE_BYTES, and those after the first READ_BYTES of a folder, count with their size and time of change
instead of their content; a folder of more than MOST_FILES counts with the first ones by name.
"""

import os
from hashlib import sha256
from pathlib import Path

from toolkit import folders, paths
from toolkit.job.manifest import FileTree

FILE_BYTES = 1 << 20
READ_BYTES = 4 << 20
MOST_FILES = 500
# Files whose own digests are shown: a person can read so many.
MOST_NAMED = 24
LEFT_OUT = (".git", "__pycache__", ".ipynb_checkpoints", ".toolkit-source.json", ".toolkit-staging")
COMPILED = (".pyc", ".pyo")


def digest_tree(folder: Path) -> FileTree | None:
    """Return the digest of *folder* (or of one file), None if nothing is there."""
    unreadable: list[OSError] = []
    if folders.is_file(folder, unreadable.append):
        entries: list[tuple[str, str]] = [(folder.name, str(folder))]
        is_cut = False
    elif folders.is_dir(folder, unreadable.append):
        entries, is_cut = _list_files(folder, unreadable)
    else:
        return None
    whole = sha256()
    digests: dict[str, str] = {}
    total_bytes = read_bytes = unread_files = count = 0
    for name, path in entries:
        try:
            size_bytes, content, time_ns = _read(path, READ_BYTES - read_bytes)
        except OSError as error:
            unreadable.append(error)
            continue
        count += 1
        total_bytes += size_bytes
        if content is None:
            unread_files += 1
            file_digest = sha256(f"{size_bytes} {time_ns}".encode()).hexdigest()
        else:
            read_bytes += size_bytes
            file_digest = sha256(content).hexdigest()
        key = paths.to_key(name)
        whole.update(f"{key}\0{size_bytes}\0{file_digest}\0".encode())
        if len(digests) <= MOST_NAMED:
            digests[key] = file_digest[:16]
    return FileTree(
        digest=whole.hexdigest()[:32],
        files=count,
        bytes=total_bytes,
        unread_files=unread_files,
        is_whole=not is_cut and not unreadable,
        digests=digests if len(digests) <= MOST_NAMED else {},
    )


def _list_files(folder: Path, unreadable: list[OSError]) -> tuple[list[tuple[str, str]], bool]:
    """Return (name below *folder*, path) of the first MOST_FILES files, and whether there are more."""
    root = f"{folder}/"
    entries: list[tuple[str, str]] = []
    below = folders.walk(folder, unreadable.append, enter=lambda entry: entry.name not in LEFT_OUT, follow_links=True)
    for entry in below:
        if entry.name in LEFT_OUT or entry.name.endswith(COMPILED):
            continue
        try:
            if not entry.is_file():
                continue
        except OSError as error:
            unreadable.append(error)
            continue
        if len(entries) == MOST_FILES:
            return entries, True
        entries.append((entry.path.removeprefix(root), entry.path))
    return entries, False


def _read(path: str, room_bytes: int) -> tuple[int, bytes | None, int]:
    """Return the size, the content (None: too large for *room_bytes*) and the time of change of the file *path*."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(fd)
        if status.st_size > min(FILE_BYTES, room_bytes):
            return status.st_size, None, status.st_mtime_ns
        # A buffer of 1 MiB for each file costs more than its digest. Of no size: files as those of /proc.
        return status.st_size, os.read(fd, status.st_size or FILE_BYTES), status.st_mtime_ns
    finally:
        os.close(fd)
