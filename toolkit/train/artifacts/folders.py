"""Creates the folders that scripts expect."""

import os
from pathlib import Path

from toolkit.folders import is_dir, make
from toolkit.job.job import Folders
from toolkit.log import Log


def prepare(folders: Folders, log: Log) -> None:
    """Create the job's folders, and log once which of them are absent or cannot be written.

    Not output/intermediate: while it is absent, the platform does not synchronise it. Not a code folder outside of the
    base, which the user names: a wrong path is no new folder. No error here ends the job: the script may not need the
    folder.
    """
    failed: dict[str, list[str]] = {}
    for folder in (
        *(folder for folder in (folders.code,) if folder.is_relative_to(folders.base)),
        folders.data,
        folders.model,
        folders.output,
        folders.output_data,
        folders.checkpoints,
    ):
        reason = _made(folder)
        if reason:
            failed.setdefault(reason, []).append(str(folder))
    for folder in (folders.model, folders.output):
        reason = _unwritable(folder)
        if reason:
            failed.setdefault(reason, []).append(str(folder))
    for reason, names in failed.items():
        log.warning(f"{', '.join(names)}: {reason}; the job continues without")


def _made(folder: Path) -> str:
    """Create *folder*; return why that failed, "" if the folder is there."""
    try:
        make(folder)
    except FileExistsError:
        return "expected a folder, found a file"
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    return ""


def _unwritable(folder: Path) -> str:
    """Return why nothing can be written to *folder*, "" if it is writable or absent."""
    try:
        if not is_dir(folder):
            return ""
        if not os.access(folder, os.W_OK | os.X_OK):
            return "cannot be written"
        room = os.statvfs(folder)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    # Some file systems (NFS, FUSE) report 0 of 0 blocks.
    return "the disk is full" if room.f_blocks and not room.f_bavail else ""
