"""What root plays in another user's folder belongs to that user in the end: `sudo toolkit run`, containers that run as
root."""

import os
import stat
from pathlib import Path

Owner = tuple[int, int]


def heir(folder: Path) -> Owner | None:
    """Return whose (user, group) *folder* is, or the nearest folder above it; None where nothing is to be handed over.

    A place where all may write (/tmp) is nobody's.
    """
    if os.geteuid() != 0:
        return None
    found = next(path for path in (folder, *folder.absolute().parents) if path.exists()).stat()
    return (found.st_uid, found.st_gid) if found.st_uid and not found.st_mode & 0o002 else None


def hand_over(folder: Path, owner: Owner) -> None:
    """Give what root has in *folder*, itself included, to *owner*; links are not followed, what fails stays root's."""
    _give(folder, owner, None)
    for _, folders, files, place in os.fwalk(folder):
        for name in (*folders, *files):
            _give(name, owner, place)


def _give(name: str | Path, owner: Owner, place: int | None) -> None:
    try:
        found = os.stat(name, dir_fd=place, follow_symlinks=False)
        # What has another name elsewhere is not this folder's alone.
        if found.st_uid == 0 and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
            os.chown(name, *owner, dir_fd=place, follow_symlinks=False)
    except OSError:
        pass  # Gone meanwhile, or on a file system that has no owners.
