"""The folders that scripts expect, there before they start."""

import os
from pathlib import Path

from toolkit.job.job import Folders
from toolkit.log import Log


def prepare(folders: Folders, log: Log) -> None:
    """Make the job's folders where they are absent, and say once which of them are absent or cannot be written.

    output/intermediate is left alone: that it is absent tells the platform's own synchronisation that nobody uses it.
    Nothing here is fatal: whether a folder was needed shows later, and a script may do without.
    """
    failed: dict[str, list[str]] = {}
    for folder in (
        folders.code,
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
        reason = _hindered(folder)
        if reason:
            failed.setdefault(reason, []).append(str(folder))
    for reason, names in failed.items():
        log.warning(f"{', '.join(names)}: {reason}; the job goes on without")


def _made(folder: Path) -> str:
    """Make *folder*; return why it cannot be, "" if it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        return "expected a folder, found a file"
    except OSError as error:
        return f"cannot be made ({error.strerror})"
    return ""


def _hindered(folder: Path) -> str:
    """Return why nothing can be written to *folder*, "" if it can be or is absent."""
    if not folder.is_dir():
        return ""
    try:
        if not os.access(folder, os.W_OK | os.X_OK):
            return "cannot be written"
        room = os.statvfs(folder)
    except OSError as error:
        return f"cannot be looked at ({error.strerror})"
    # Some file systems (NFS, FUSE) say 0 of 0.
    return "the disk is full" if room.f_blocks and not room.f_bavail else ""
