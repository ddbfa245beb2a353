"""The supervisor's liveness: files in the run's folder that its loop touches and `toolkit health` reads.

A loop that is stuck, or a `train` that was stopped, touches nothing. `toolkit health` only reads the files, so it never
waits for `train`. Their times are of the monotonic clock, so that setting the clock has no effect.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolkit import folders

BEAT, HANG, DOING = "pulse", "hang", "doing"
BEAT_EVERY_S = 2.0
# Far above BEAT_EVERY_S: a machine may be busy, and sources are copied between two beats.
STUCK_AFTER_S = 60.0


class Liveness:
    """Touches its file at most every BEAT_EVERY_S (monotonic). If no file can be made, it does nothing."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._doing = ""
        self._next_s = 0.0
        try:
            (run_folder / BEAT).touch()
            _stamp(run_folder / BEAT)
        except OSError:
            self._next_s = float("inf")

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until the next beat may be due."""
        return min(max(self._next_s - now_s, 0.0), BEAT_EVERY_S)

    def beat(self, now_s: float) -> None:
        """Touch the file if that is due."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + BEAT_EVERY_S
        try:
            _stamp(self._folder / BEAT)
        except OSError:
            self._next_s = float("inf")

    @contextmanager
    def doing(self, activity: str) -> Iterator[None]:
        """Within the block, record what `train` does before it starts the script: "installing" or "waiting"."""
        outer, self._doing = self._doing, activity
        self._write_doing()
        try:
            yield
        finally:
            self._doing = outer
            self._write_doing()

    def _write_doing(self) -> None:
        with suppress(OSError):
            if self._doing:
                (self._folder / DOING).write_text(self._doing, "utf-8")
            else:
                (self._folder / DOING).unlink()

    def note_hang(self, idle_s: float) -> None:
        """Record that no rank has been active for *idle_s*. While that lasts, call it again at about that interval."""
        try:
            (self._folder / HANG).write_text(f"{idle_s:.0f}", "utf-8")
            _stamp(self._folder / HANG)
        except OSError:
            pass  # The log reports it.


def state_of(scratch: Path, pid: int) -> str:
    """Return what the `train` *pid*, whose run's folder is in *scratch*, does: "starting", "running", or as in
    `Liveness.doing`."""
    for folder in _runs(scratch, f"run-{pid}-*"):
        try:
            if not _is_own(folder.parent):
                continue
            return (folder / DOING).read_text("utf-8") or "running"
        except FileNotFoundError:
            return "running" if folders.exists(folder / BEAT, folders.as_absent) else "starting"
        except (OSError, ValueError):
            continue
    return "starting"


def trouble(scratch: Path, now_s: float) -> str:
    """Return what is wrong with the run whose folder is in *scratch*, "" if nothing is wrong or no run is active.

    *now_s*: monotonic seconds.
    """
    for folder in _runs(scratch, "run-*"):
        if not _is_own(folder.parent):
            continue
        pid = folder.name.split("-")[1]
        if not folders.exists(f"/proc/{pid}"):
            continue  # Left by a run that was killed.
        still_s = now_s - _touched_s(folder / BEAT, now_s)
        if still_s > STUCK_AFTER_S:
            return f"train (pid {pid}) has not moved for {still_s:.0f} s"
        idle_s = _idle_s(folder / HANG)
        if now_s - _touched_s(folder / HANG, 0.0) < 2 * idle_s:
            return f"no rank has written or computed anything for {idle_s:.0f} s or more"
    return ""


def _runs(scratch: Path, pattern: str) -> Iterator[Path]:
    """Yield the folders of runs that match *pattern*, in *scratch* and beside it. Other users' cannot be listed."""
    for place in folders.matching(scratch.parent, f"{scratch.name}*", folders.named_elsewhere):
        yield from folders.matching(place, pattern, folders.named_elsewhere)


def _is_own(folder: Path) -> bool:
    """True if *folder*, whose name other users can know, belongs to this user and is not a link."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _stamp(path: Path) -> None:
    now_ns = time.monotonic_ns()
    os.utime(path, ns=(now_ns, now_ns))


def _touched_s(path: Path, missing_s: float) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return missing_s


def _idle_s(path: Path) -> float:
    try:
        return float(path.read_text("utf-8") or 0)
    except (OSError, ValueError):
        return 0.0
