"""The supervisor's signs of life: files in the run's folder that its loop touches and `toolkit health` looks at.

A loop that is stuck, or a `train` that was stopped, touches nothing. Nobody has to answer, so nobody can block on it.
The files' times are of the monotonic clock: a clock that is set makes nobody look dead.
"""

import os
import stat
import time
from pathlib import Path

PULSE, STALLED = "pulse", "stalled"
EVERY_S = 2.0
# Far above EVERY_S: a machine may be busy, and sources are put in place between two beats.
STILL_S = 60.0


class Pulse:
    """Beats at most every EVERY_S; times are monotonic seconds. Where no file can be made, nothing is said."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._next_s = 0.0
        try:
            (run_folder / PULSE).touch()
            _stamp(run_folder / PULSE)
        except OSError:
            self._next_s = float("inf")

    def rest_s(self, now_s: float) -> float:
        """Return the seconds until a beat may be due."""
        return min(max(self._next_s - now_s, 0.0), EVERY_S)

    def beat(self, now_s: float) -> None:
        """Beat if it is time."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        try:
            _stamp(self._folder / PULSE)
        except OSError:
            self._next_s = float("inf")

    def stalled(self, idle_s: float) -> None:
        """Leave word that no rank has moved for *idle_s*. While that goes on, it is called about as often again."""
        try:
            (self._folder / STALLED).write_text(f"{idle_s:.0f}", "utf-8")
            _stamp(self._folder / STALLED)
        except OSError:
            pass  # The log has it.


def trouble(scratch: Path, now_s: float) -> str:
    """Return what is wrong with the run whose folder lies in *scratch*, "" if nothing is, or none is under way.

    *now_s*: monotonic seconds.
    """
    for folder in sorted(scratch.parent.glob(f"{scratch.name}*/run-*")):
        if not _is_own(folder.parent):
            continue
        pid = folder.name.split("-")[1]
        if not Path("/proc", pid).exists():
            continue  # Left by one that was killed.
        still_s = now_s - _touched_s(folder / PULSE, now_s)
        if still_s > STILL_S:
            return f"train (pid {pid}) has not moved for {still_s:.0f} s"
        idle_s = _idle_s(folder / STALLED)
        if now_s - _touched_s(folder / STALLED, 0.0) < 2 * idle_s:
            return f"no rank has written or computed anything for {idle_s:.0f} s or more"
    return ""


def _is_own(folder: Path) -> bool:
    """True if *folder*, whose name anybody can know, is this user's and no link."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


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
