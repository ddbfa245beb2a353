"""Writes down where every rank is, by py-spy where it is installed and by the faulthandler that the rank hook armed.

py-spy reads a process from outside, also one that is stopped; it needs ptrace, which containers often forbid.
faulthandler writes from inside on a signal, even while the main thread is in native code, but not in a stopped process.
Ranks open their file at the start (the hook), in the run's own folder; only after a hang it is copied to where people
look.
"""

import os
import re
import signal
from pathlib import Path

from toolkit.supervise import children

# Of the real-time signals, which no framework uses; its default action would end a process that does not expect it.
SIGNAL = int(signal.SIGRTMIN) + 7
WITHIN_S = 2.0
# A rank whose innermost Python frame is in one of these waits for its peers.
COLLECTIVES = ("torch/distributed/", "torch/nn/parallel/", "torch/autograd/", "mpi4py", "horovod/")
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$')
SPY = "py-spy"


class Dump:
    """The stacks of *ranks* (pid by name), on their way into *folder* as HOST-NAME.txt; `collect` after WITHIN_S."""

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
        folder.mkdir(parents=True, exist_ok=True)
        from shutil import which  # its import costs more than all of this file

        spy = which(SPY, path=environ.get("PATH"))
        for pid, target in self._targets.items():
            if spy is not None:
                _spy(spy, pid, target, environ, prctl)
            if _expects(pid):
                os.kill(pid, SIGNAL)

    def collect(self) -> list[str]:
        """Copy what ranks have written themselves; return the files in which there are stacks now."""
        for pid, target in self._targets.items():
            try:
                if not target.exists() or target.stat().st_size == 0:
                    target.write_bytes((self._prepared / str(pid)).read_bytes())
                if target.stat().st_size == 0:
                    target.unlink()
            except OSError:
                continue  # A rank without the hook, or the disk is full: it is not in the list.
        return [str(target) for target in self._targets.values() if target.exists()]

    def outside_collectives(self) -> list[tuple[str, str]]:
        """Return (rank, "is in f (train.py:7)") for each rank that does not wait in a collective: the others wait for
        it.

        Nothing where no rank is in one, or all are: then nobody can be told from the others.
        """
        places = {pid: innermost(target) for pid, target in self._targets.items()}
        found = {pid: place for pid, place in places.items() if place is not None}
        lagging = {pid: place for pid, place in found.items() if not any(each in place for each in COLLECTIVES)}
        return [(self._names[pid], f"is {place}") for pid, place in lagging.items()]


def innermost(file: Path) -> str | None:
    """Return "in f (/opt/ml/code/train.py:7)": the innermost frame of the main thread, None if there is none.

    faulthandler writes the main thread last, "most recent call first"; py-spy heads it "MainThread".
    """
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    spied = next((at for at, line in enumerate(lines) if "MainThread" in line), None)
    if spied is not None:
        return "in " + " ".join(lines[spied + 1].split()) if spied + 1 < len(lines) else None
    heads = [at for at, line in enumerate(lines) if line.endswith("(most recent call first):")]
    if not heads or heads[-1] + 1 >= len(lines):
        return None
    match = FRAME.match(lines[heads[-1] + 1])
    return f"in {match['function']} ({match['file']}:{match['line']})" if match else None


def _spy(spy: str, pid: int, target: Path, environ: dict[str, str], prctl: children.Prctl) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        children.spawn((spy, "dump", "--pid", str(pid)), environ, "/", stdout=out, stderr=null, prctl=prctl)
    finally:
        os.close(null)
        os.close(out)


def _expects(pid: int) -> bool:
    """True if the process has a handler for SIGNAL; otherwise the signal would end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()  # The name in it may be cut in the middle of a character.
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith(b"SigCgt:")), b"0")
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)
