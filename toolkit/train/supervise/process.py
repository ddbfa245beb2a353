"""A running process: its part in the job, and how it ended."""

import os
import signal
import time
from pathlib import Path

from toolkit.job.outcome import Exit
from toolkit.train.supervise.kernel import is_exiting
from toolkit.train.supervise.shim_server import ShimConnection

# The name of the process that waits until no host uses this one's services.
WAITING = "waiting"


class PhaseProcess:
    """A running process. A service is neither the main process nor a rank, and its status is not the job's."""

    def __init__(
        self, name: str, *, is_main: bool, rank: int | None, local_rank: int | None, is_service: bool = False
    ) -> None:
        self.name = name
        self.pid = 0
        self.is_main = is_main
        self.is_service = is_service
        self.is_optional = False
        self.gives = ""
        self.rank = rank
        self.local_rank = local_rank
        self.started_ns = 0
        self.signalled_ns: int | None = None
        self.killed = False
        self.shim: ShimConnection | None = None

    def note_start(self, pid: int) -> None:
        """Note that it was started as *pid*."""
        self.pid = pid
        self.started_ns = time.monotonic_ns()

    def note_signal(self) -> None:
        """Note that `train` signals it. Only the first signal counts, and only if the process is not ending already."""
        if self.signalled_ns is None and not (self.pid and is_exiting(self.pid)):
            self.signalled_ns = time.monotonic_ns()

    def note_kill(self) -> None:
        """Note that `train` sends it SIGKILL."""
        self.note_signal()
        self.killed = True

    def exit(self, status: int, ended_ns: int, raised_ns: int | None, raised_code: int = 1) -> Exit:
        """Return how it ended, from its wait status and the time of the exception that the rank hook recorded.

        An exception raised before `train`'s signal is the rank's own failure, even if the signal killed it during
        teardown. Its code is then *raised_code*, as Python was about to return: 1 after an exception, sys.exit's own
        code otherwise. A SIGKILL from another sender is also the rank's own failure, even if `train` had sent SIGTERM:
        it may have come before that, since a killed process takes time to disappear.

        *raised_code* 0: at *raised_ns* the process began to end well. If its status is not 0, it failed after that.
        """
        by_signal = os.WIFSIGNALED(status)
        if by_signal and raised_ns is not None and self.signalled_ns is not None and raised_ns <= self.signalled_ns:
            status, by_signal = raised_code << 8, False
        if raised_code == 0 and status != 0:
            raised_ns = None
        failed_ns = raised_ns or ended_ns
        others = by_signal and os.WTERMSIG(status) == signal.SIGKILL and not self.killed
        return Exit(
            process=self.name,
            pid=self.pid,
            started_ns=self.started_ns,
            ended_ns=ended_ns,
            code=None if by_signal else os.WEXITSTATUS(status),
            signal=os.WTERMSIG(status) if by_signal else None,
            rank=self.rank,
            local_rank=self.local_rank,
            signalled=self.signalled_ns is not None and self.signalled_ns < failed_ns and not others,
            exception_raised_ns=raised_ns,
        )


def command_name(pid: int) -> str:
    """Return the kernel's name of a process in printable characters, its pid if it is gone. The kernel cuts a name
    after 15 bytes, even inside a character, and a process may name itself with any bytes, newlines included."""
    try:
        name = Path(f"/proc/{pid}/comm").read_bytes().decode("utf-8", "replace").strip()
    except OSError:
        return str(pid)
    return "".join(character if character.isprintable() else "\ufffd" for character in name)


def why_unkilled(pid: int) -> str:
    """Return why `train`'s SIGKILL has not ended a process: it waits in the kernel, or now belongs to another user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return "another user's"
    except ProcessLookupError:
        return "gone by now"
    return "in the kernel"
