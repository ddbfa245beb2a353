"""Changes the owner of files that root wrote in another user's folder (`sudo toolkit run`, containers that run as root)
to that user."""

import os
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from toolkit.folders import nearest

Owner = tuple[int, int]


def heir(folder: Path) -> Owner | None:
    """Return the (user, group) that gets root's files: the owner of *folder* or of the nearest existing folder above.

    Return None if we are not root, if root owns that folder, or if everyone may write to it (/tmp).
    """
    if os.geteuid() != 0:
        return None
    status = nearest(folder).stat()
    return (status.st_uid, status.st_gid) if status.st_uid and not status.st_mode & 0o002 else None


def hand_over(folder: Path, owner: Owner) -> None:
    """Change the owner of root's files in *folder*, and of *folder* itself, to *owner*.

    Links are not followed. A file with a hard link outside *folder* stays root's, and so does one that cannot be
    changed.
    """
    names: Counter[tuple[int, int]] = Counter()
    for _, folders, files, place in os.fwalk(folder):
        for name in (*folders, *files):
            if status := _status(name, place):
                names[status.st_dev, status.st_ino] += 1
    _give(folder, owner, None, names)
    for _, folders, files, place in os.fwalk(folder):
        for name in (*folders, *files):
            _give(name, owner, place, names)


def give(path: Path, owner: Owner) -> None:
    """Change the owner of *path*, a file of root's, to *owner*."""
    status = _status(path, None)
    if status is not None:
        _give(path, owner, None, {(status.st_dev, status.st_ino): 1})


def _give(name: str | Path, owner: Owner, place: int | None, names: Mapping[tuple[int, int], int]) -> None:
    status = _status(name, place)
    if status is None or status.st_uid != 0:
        return
    if stat.S_ISDIR(status.st_mode) or status.st_nlink == names[status.st_dev, status.st_ino]:
        try:
            os.chown(name, *owner, dir_fd=place, follow_symlinks=False)
        except OSError:
            pass  # The file is gone meanwhile, or its file system has no owners.


def _status(name: str | Path, place: int | None) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=place, follow_symlinks=False)
    except OSError:
        return None
