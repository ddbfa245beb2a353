"""The private folder for temporary files, below TMPDIR or /tmp, where other users may have laid something out for us.

The folder's name can be known beforehand: what stands there is used only if it is a folder of ours that nobody else may
write to, never through a link. In it each run has a folder of its own, which it holds locked while it lives (flock), so
that the next run can tell the folders of those that were killed and remove them: also where containers share the place
and each has a process 1.
"""

import fcntl
import os
import re
import stat
from pathlib import Path

from toolkit.errors import UserError
from toolkit.log import Log

HINT = "Let the user of the container write to /tmp, or set TMPDIR to a folder it can write to."
RUN = "run-"
# What every program takes as a path in a command for a shell, in an option, in a socket's address. mpirun splits the
# paths of its agent and of its daemons' files at a space; sockets below TMPDIR may have 107 bytes.
PLAIN = re.compile(r"[A-Za-z0-9._/+-]{1,90}")


class RunFolder:
    """A run's own folder, open to its user alone; `path` stays until `close`. `plain` is the same
    folder by a name without odd characters."""

    def __init__(self, asked: Path, name: str, log: Log) -> None:
        """Make the folder *name* in *asked* (see `private`), and remove those of runs that were killed.

        Raises:
            UserError: it cannot be made.
        """
        for tries_left in (2, 1, 0):
            scratch = private(asked, log)
            new = scratch / f".new-{name}"
            self.path = scratch / f"{RUN}{name}"
            try:
                new.mkdir(mode=0o700)
                self._lock = _locked(new)  # Before it has its name: a run's folder is never without its lock.
                new.rename(self.path)
                break
            except FileNotFoundError as error:  # Another run has ended just now, and removed *scratch* behind it.
                if not tries_left:
                    raise _refused(self.path, error) from None
            except OSError as error:
                raise _refused(self.path, error) from None
        _sweep(self.path)
        self.plain = self._plainly(log)

    def _plainly(self, log: Log) -> Path:
        """Return the folder by a name that launchers take: its own, or that of a link in a private folder of /tmp."""
        if PLAIN.fullmatch(str(self.path)):
            return self.path
        folder = Path("/tmp", f"toolkit-{os.urandom(8).hex()}")
        try:
            folder.mkdir(mode=0o700)
            (folder / self.path.name).symlink_to(self.path, target_is_directory=True)
        except OSError as error:
            log.warning(
                f"{folder}: {error.strerror}; mpirun may not take the folder for temporary files, {self.path}: its name"
                " is long, or has a space or other odd characters. Set TMPDIR to another one."
            )
            return self.path
        return folder / self.path.name

    @property
    def scratch(self) -> Path:
        """The folder that all runs of this user and base share."""
        return self.path.parent

    def close(self) -> None:
        """Remove the folder, and the one that it is in where nothing else is left there."""
        if self.plain != self.path:
            _remove(self.plain.parent)
        _remove(self.path)
        if self._lock is not None:
            os.close(self._lock)
        try:
            self.scratch.rmdir()
        except OSError:
            pass  # Other runs, or what is known to be installed.


def private(asked: Path, log: Log) -> Path:
    """Return *asked*, made if absent; where something else stands there, a new folder beside it, and say so.

    Raises:
        UserError: neither can be made.
    """
    try:
        asked.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(asked):
            asked.mkdir(mode=0o700)
    except OSError as error:
        raise _refused(asked, error) from None
    if is_shared_unsafely(asked.parent):
        log.warning(
            f"{asked.parent}: other users have files there and may replace ours (no sticky bit). chmod +t it, or set"
            " TMPDIR to a folder of this user."
        )
    reason = fault(asked)
    if not reason:
        return asked
    other = asked.with_name(f"{asked.name}-{os.urandom(8).hex()}")
    try:
        other.mkdir(mode=0o700)
    except OSError as error:
        raise _refused(other, error) from None
    log.warning(f"{asked}: expected a folder of this user alone, found {reason}; it is left alone, {other} is used")
    return other


def fault(folder: Path) -> str:
    """Return why *folder*, which is there, is not ours alone, "" if it is."""
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        return f"a link to {folder.readlink()}"
    if not stat.S_ISDIR(found.st_mode):
        return "something that is no folder"
    if found.st_uid != os.geteuid():
        return f"one of user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"one that others may write to (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


def is_shared_unsafely(folder: Path) -> bool:
    """True if others may rename what is in *folder*, and other users than this one and root have something there.

    Without the others it is a volume of a pod, which Kubernetes makes with mode 777, and nobody is there to do it.
    """
    mode = folder.stat().st_mode
    if not mode & stat.S_IWOTH or mode & stat.S_ISVTX:
        return False
    with os.scandir(folder) as entries:
        return any(entry.stat(follow_symlinks=False).st_uid not in (0, os.geteuid()) for entry in entries)


def _refused(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"expected a folder for temporary files, cannot make it ({error.strerror})", where=str(folder), hint=HINT
    )


def _locked(folder: Path) -> int | None:
    """Return a descriptor that holds *folder*'s lock, None if somebody else holds it or its file system has none."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _sweep(own: Path) -> None:
    """Remove the folders beside *own* whose runs are over."""
    for folder in [each for each in own.parent.iterdir() if each.name.startswith(RUN)]:
        try:
            lock = None if folder == own else _locked(folder)
        except OSError:
            continue  # A link, or removed by its run or by another one just now.
        if lock is not None:
            _remove(folder)
            os.close(lock)


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)  # Temporary files; what cannot go, the container's end takes.
