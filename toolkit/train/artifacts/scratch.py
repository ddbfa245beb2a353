"""The private folder for temporary files, below TMPDIR or /tmp, where other users may have put a trap.

Other users can predict the folder's name. An existing one is used only if it is a folder of this user to which nobody
else may write, and no link. In it each run has its own folder, and holds a lock on it (flock) while it lives: so the
next run can recognise and remove the folders of killed runs, even if several containers share the place and in each of
them `train` is process 1.
"""

import fcntl
import os
import re
import stat
from pathlib import Path

from toolkit import folders
from toolkit.errors import PlatformError, ToolkitError, UserError, is_of_path
from toolkit.folders import make, remove
from toolkit.log import Log

HINT = "Let the user of the container write to /tmp, or set TMPDIR to a folder it can write to."
RUN = "run-"
# Paths that every program accepts in a shell command, in an option and as a socket's address. mpirun splits the paths
# of its agent and of its daemons' files at a space; the path of a socket below TMPDIR may have 107 bytes.
PLAIN = re.compile(r"[A-Za-z0-9._/+-]{1,90}")


class RunFolder:
    """A run's own folder, open to its user alone. `path` exists until `close`; `plain` is a path to the same folder
    without special characters."""

    def __init__(self, preferred: Path, name: str, log: Log) -> None:
        """Create the folder *name* in *preferred* (see `private`), and remove those of killed runs.

        Raises:
            UserError: it cannot be created.
            PlatformError: the same, and another try may help: the disk is full.
        """
        for tries_left in (2, 1, 0):
            scratch = private(preferred, log)
            new = scratch / f".new-{name}"
            self.path = scratch / f"{RUN}{name}"
            try:
                new.mkdir(mode=0o700)
                self._lock = _locked(new)  # Before the rename: under its final name, the folder is always locked.
                new.rename(self.path)
                break
            except FileNotFoundError as error:  # Another run has just ended, and removed *scratch*.
                if not tries_left:
                    raise _refused(self.path, error) from None
            except OSError as error:
                raise _refused(self.path, error) from None
        _sweep(self.path)
        self.plain = self._plainly(log)

    def _plainly(self, log: Log) -> Path:
        """Return a path to the folder that launchers accept: its own, or a link in a private folder of /tmp."""
        if PLAIN.fullmatch(str(self.path)):
            return self.path
        folder = Path("/tmp", f"toolkit-{os.urandom(8).hex()}")
        try:
            folder.mkdir(mode=0o700)
            (folder / self.path.name).symlink_to(self.path, target_is_directory=True)
        except OSError as error:
            log.warning(
                f"{folder}: {error.strerror}; mpirun may refuse the folder for temporary files, {self.path}: the path"
                " is too long, or has a space or another special character. Set TMPDIR to another folder."
            )
            return self.path
        return folder / self.path.name

    @property
    def scratch(self) -> Path:
        """The folder that holds the run folders of this user and base."""
        return self.path.parent

    def close(self) -> None:
        """Remove the folder, and its parent if that is empty."""
        if self.plain != self.path:
            _remove(self.plain.parent)
        _remove(self.path)
        if self._lock is not None:
            os.close(self._lock)
        try:
            self.scratch.rmdir()
        except OSError:
            pass  # Not empty: other runs, or the list of installed requirements.


def private(preferred: Path, log: Log) -> Path:
    """Return *preferred*, created if absent. If something unsafe has its name, log that and return a new folder beside
    it.

    Raises:
        UserError: neither can be created.
        PlatformError: the same, and another try may help.
    """
    try:
        make(preferred.parent)
        if not folders.exists(preferred, follow_links=False):
            preferred.mkdir(mode=0o700)
    except OSError as error:
        raise _refused(preferred, error) from None
    if is_shared_unsafely(preferred.parent):
        log.warning(
            f"{preferred.parent}: other users have files there and may replace ours (no sticky bit). Run chmod +t on"
            " it, or set TMPDIR to a folder of this user."
        )
    reason = fault(preferred)
    if not reason:
        return preferred
    other = preferred.with_name(f"{preferred.name}-{os.urandom(8).hex()}")
    try:
        other.mkdir(mode=0o700)
    except OSError as error:
        raise _refused(other, error) from None
    log.warning(f"{preferred}: expected a folder of this user alone, found {reason}; {other} is used instead")
    return other


def fault(folder: Path) -> str:
    """Return why *folder*, which exists, is not private to this user, "" if it is."""
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"a link to {folder.readlink()}"
    if not stat.S_ISDIR(status.st_mode):
        return "no folder"
    if status.st_uid != os.geteuid():
        return f"a folder of user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"a folder that others may write to (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def is_shared_unsafely(folder: Path) -> bool:
    """True if others may rename files in *folder*, and users other than this one and root have files there.

    A volume of a pod has mode 777, too (Kubernetes creates it so), but no other users.
    """
    mode = folder.stat().st_mode
    if not mode & stat.S_IWOTH or mode & stat.S_ISVTX:
        return False
    return any(entry.stat(follow_symlinks=False).st_uid not in (0, os.geteuid()) for entry in folders.entries(folder))


def _refused(folder: Path, error: OSError) -> ToolkitError:
    message = f"expected a folder for temporary files, cannot create it ({error.strerror})"
    if is_of_path(error):
        return UserError(message, where=str(folder), hint=HINT)
    return PlatformError(message, where=str(folder), hint="Make room there, or set TMPDIR to a folder on another disk.")


def _locked(folder: Path) -> int | None:
    """Return a descriptor that holds *folder*'s lock, None if another process has it or the file system has none."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _sweep(own_folder: Path) -> None:
    """Remove the folders beside *own_folder* whose runs have ended."""
    for folder in folders.matching(own_folder.parent, f"{RUN}*", folders.named_elsewhere):
        try:
            lock = None if folder == own_folder else _locked(folder)
        except OSError:
            continue  # A link, or just removed by its run or another one.
        if lock is not None:
            _remove(folder)
            os.close(lock)


def _remove(folder: Path) -> None:
    try:
        remove(folder)
    except OSError:
        pass  # What cannot be removed ends with the container.
