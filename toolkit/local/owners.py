"""Gives the files that root wrote in another user's folder to that user: `sudo toolkit run`, containers that run as
root."""

import os
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

Owner = tuple[int, int]


def heir(folder: Path) -> Owner | None:
    """Return the owner (user, group) of *folder* or of the nearest folder above it; None if nothing is to be given
    away.

    A folder in which everyone may write (/tmp) has no heir.
    """
    if os.geteuid() != 0:
        return None
    found = next(path for path in (folder, *folder.absolute().parents) if path.exists()).stat()
    return (found.st_uid, found.st_gid) if found.st_uid and not found.st_mode & 0o002 else None


def hand_over(folder: Path, owner: Owner) -> None:
    """Give what root has in *folder*, itself included, to *owner*.

    Links are not followed, and a file that has another name elsewhere is not this folder's alone. What fails stays
    root's.
    """
    names: Counter[tuple[int, int]] = Counter()
    for _, folders, files, place in os.fwalk(folder):
        for name in (*folders, *files):
            if found := _status(name, place):
                names[found.st_dev, found.st_ino] += 1
    _give(folder, owner, None, names)
    for _, folders, files, place in os.fwalk(folder):
        for name in (*folders, *files):
            _give(name, owner, place, names)


def _give(name: str | Path, owner: Owner, place: int | None, names: Mapping[tuple[int, int], int]) -> None:
    found = _status(name, place)
    if found is None or found.st_uid != 0:
        return
    if stat.S_ISDIR(found.st_mode) or found.st_nlink == names[found.st_dev, found.st_ino]:
        try:
            os.chown(name, *owner, dir_fd=place, follow_symlinks=False)
        except OSError:
            pass  # Gone meanwhile, or on a file system that has no owners.


def _status(name: str | Path, place: int | None) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=place, follow_symlinks=False)
    except OSError:
        return None
