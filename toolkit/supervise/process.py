"""A process under way: what it is in the job, and how it ended."""

import os
import time
from pathlib import Path

from toolkit.job.outcome import Exit
from toolkit.supervise.ranks import StandIn


class Process:
    """A process under way."""

    def __init__(self, name: str, *, is_main: bool, rank: int | None, local_rank: int | None) -> None:
        self.name = name
        self.pid = 0
        self.is_main = is_main
        self.rank = rank
        self.local_rank = local_rank
        self.started_ns = 0
        self.told = False
        self.standin: StandIn | None = None

    def started(self, pid: int) -> None:
        """Note that it runs as *pid* from now on."""
        self.pid = pid
        self.started_ns = time.time_ns()

    def exit(self, status: int, ended_ns: int) -> Exit:
        """Return how it ended, from its wait status."""
        signalled = os.WIFSIGNALED(status)
        return Exit(
            process=self.name,
            pid=self.pid,
            started_ns=self.started_ns,
            ended_ns=ended_ns,
            code=None if signalled else os.WEXITSTATUS(status),
            signal=os.WTERMSIG(status) if signalled else None,
            rank=self.rank,
            local_rank=self.local_rank,
            told=self.told,
        )


def command_name(pid: int) -> str:
    """Return the kernel's name for a process, its pid if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return str(pid)
