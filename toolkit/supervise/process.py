"""A process under way: what it is in the job, and how it ended."""

import os
import signal
import time
from pathlib import Path

from toolkit.job.outcome import Exit
from toolkit.supervise.kernel import is_exiting
from toolkit.supervise.shim_server import ShimConnection


class Process:
    """A process under way. A service is neither the main process nor a rank, and no status of the job's."""

    def __init__(
        self, name: str, *, is_main: bool, rank: int | None, local_rank: int | None, is_service: bool = False
    ) -> None:
        self.name = name
        self.pid = 0
        self.is_main = is_main
        self.is_service = is_service
        self.rank = rank
        self.local_rank = local_rank
        self.started_ns = 0
        self.told_ns: int | None = None
        self.killed = False
        self.shim: ShimConnection | None = None

    def started(self, pid: int) -> None:
        """Note that it runs as *pid* from now on."""
        self.pid = pid
        self.started_ns = time.monotonic_ns()

    def tell(self) -> None:
        """Note that it gets a signal from us; only the first counts, and only where it is not ending already."""
        if self.told_ns is None and not (self.pid and is_exiting(self.pid)):
            self.told_ns = time.monotonic_ns()

    def kill(self) -> None:
        """Note that it gets SIGKILL from us."""
        self.tell()
        self.killed = True

    def exit(self, status: int, ended_ns: int, raised_ns: int | None, raised_code: int = 1) -> Exit:
        """Return how it ended, from its wait status and the time of the exception it left.

        What had failed before we told it to end has failed by itself, however long its teardown then took; and where
        our signal cut that teardown short, it ends all the same with *raised_code*, as Python was about to: with 1
        after an exception, with sys.exit's own code. Nor is a SIGKILL that is not ours an answer to our SIGTERM: it may
        have come before, for a killed process takes its time to be gone.

        *raised_code* 0: at *raised_ns* it had begun to end well. Where it ended badly all the same, that came later.
        """
        signalled = os.WIFSIGNALED(status)
        if signalled and raised_ns is not None and self.told_ns is not None and raised_ns <= self.told_ns:
            status, signalled = raised_code << 8, False
        if raised_code == 0 and status != 0:
            raised_ns = None
        failed_ns = raised_ns or ended_ns
        others = signalled and os.WTERMSIG(status) == signal.SIGKILL and not self.killed
        return Exit(
            process=self.name,
            pid=self.pid,
            started_ns=self.started_ns,
            ended_ns=ended_ns,
            code=None if signalled else os.WEXITSTATUS(status),
            signal=os.WTERMSIG(status) if signalled else None,
            rank=self.rank,
            local_rank=self.local_rank,
            told=self.told_ns is not None and self.told_ns < failed_ns and not others,
            raised_ns=raised_ns,
        )


def command_name(pid: int) -> str:
    """Return the kernel's name for a process in printable characters, its pid if it is gone. The kernel cuts a name
    after 15 bytes, also in the middle of a character; a process may give itself any bytes, newlines too."""
    try:
        name = Path(f"/proc/{pid}/comm").read_bytes().decode("utf-8", "replace").strip()
    except OSError:
        return str(pid)
    return "".join(character if character.isprintable() else "\ufffd" for character in name)


def why_unkilled(pid: int) -> str:
    """Return what keeps a process from ending on our SIGKILL: it waits in the kernel, or it became another user's."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return "another user's"
    except ProcessLookupError:
        return "gone by now"
    return "in the kernel"
