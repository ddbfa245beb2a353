"""Writes the stacks of every rank: with py-spy where it works, else with faulthandler, which the rank hook enables.

py-spy reads a process from outside, also a stopped one. It needs ptrace, which containers often forbid. faulthandler
writes from inside on a signal, even while the main thread is in native code, but not in a stopped process.
The rank hook opens each rank's file at the start, in the run's own folder; `collect` copies it to the output.
"""

import os
import signal
from itertools import islice
from pathlib import Path

from toolkit import files
from toolkit.folders import as_absent, exists, make, status
from toolkit.job.stuck import StuckRank
from toolkit.train.supervise import children
from toolkit.train.supervise.activity import STOPPED, unusual_state

# A real-time signal: no framework uses it. Its default action would end a process that has no handler for it.
SIGNAL = int(signal.SIGRTMIN) + 7
WITHIN_S = 2.0
MOST_PATH = 4096
MOST_NAME = 512
SPY = "py-spy"


class StackDump:
    """Has the stacks of *ranks* (pid by name) written to *folder*/HOST-NAME.txt; call `collect` after WITHIN_S."""

    def __init__(
        self,
        ranks: dict[str, int],
        folder: Path,
        host: str,
        *,
        environ: dict[str, str],
        prepared: Path,
        prctl: children.Prctl,
    ) -> None:
        self._targets = {pid: folder / f"{host}-{name.replace(' ', '-')}.txt" for name, pid in ranks.items()}
        self._prepared = prepared
        self._names = {pid: name for name, pid in ranks.items()}
        self._asked: set[int] = set()
        self._states = {pid: unusual_state(pid) for pid in self._names}
        make(folder)
        from shutil import which  # This import costs more than the rest of the file.

        spy = which(SPY, path=environ.get("PATH"))
        for pid, target in self._targets.items():
            if spy is not None:
                _spy(spy, pid, target, environ, prctl)
            if _expects(pid):
                os.kill(pid, SIGNAL)
                self._asked.add(pid)

    def collect(self) -> list[str]:
        """Copy the stacks that ranks have written themselves; return the files that now have stacks."""
        for pid, target in self._targets.items():
            try:
                if not _size(target):
                    target.write_bytes(files.read(self._prepared / str(pid)))
                if not _size(target):
                    target.unlink()
            except OSError:
                continue  # A rank without the hook, or a full disk: the list leaves it out.
        return [str(target) for target in self._targets.values() if exists(target, as_absent)]

    @property
    def missing(self) -> str:
        """Return the reason for which `collect` found no stacks."""
        if self._asked:
            return "none (ranks were asked to write theirs; one that is stopped, or blocks signals, does not)"
        return "none (no rank has the start-up hook, and py-spy is not here)"

    def stuck(self) -> tuple[StuckRank, ...]:
        """Return where each rank is; call it after `collect`."""
        return tuple(self._stuck(pid, name) for pid, name in self._names.items())

    def _stuck(self, pid: int, name: str) -> StuckRank:
        # A rank may briefly wait for a disk, or for py-spy as its debugger. It is stuck only if it was in that state
        # when `train` asked for its stack, too.
        state = unusual_state(pid)
        if state != STOPPED and state != self._states[pid]:
            state = ""
        try:
            text = files.read(self._targets[pid]).decode("utf-8", "replace")
        except OSError:
            text = ""
        if not text:
            return StuckRank(
                process=name, process_state=state, activity="silent" if pid in self._asked else "unobserved"
            )
        from toolkit.train.supervise import frames  # Only a hang needs this import.

        stack = frames.parse_frames(text)
        user = frames.users(stack)
        kind = frames.kind(stack, _line(stack[0].file, stack[0].line) if stack else "")
        if user is None:
            return StuckRank(process=name, process_state=state, activity=kind)
        return StuckRank(
            process=name,
            process_state=state,
            activity=kind,
            file=user.file[-MOST_PATH:],
            line=user.line,
            function=user.function[:MOST_NAME],
            call=frames.called(stack)[:MOST_NAME] if kind == "waits" else "",
        )


def _size(target: Path) -> int:
    entry = status(target)
    return 0 if entry is None else entry.st_size


def _line(file: str, number: int) -> str:
    """Return the text of a line of a Python file, "" if it cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return next(islice(source, number - 1, None), "")
    except (OSError, ValueError):
        return ""


def _spy(spy: str, pid: int, target: Path, environ: dict[str, str], prctl: children.Prctl) -> None:
    out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        null = os.open(os.devnull, os.O_WRONLY)
    except OSError:
        null = os.dup(out)  # An image without /dev/null.
    try:
        children.spawn(
            (spy, "dump", "--full-filenames", "--pid", str(pid)), environ, "/", stdout=out, stderr=null, prctl=prctl
        )
    finally:
        os.close(null)
        os.close(out)


def _expects(pid: int) -> bool:
    """True if the process has a handler for SIGNAL; otherwise the signal would end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()  # As bytes: the name in it may be cut inside a character.
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith(b"SigCgt:")), b"0")
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)
