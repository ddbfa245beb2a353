"""Answers mpirun's agents and daemons (toolkit/rank/hook/mpi_agent.py).

The leader forwards mpirun's commands to the other hosts. On each of them, `train` gives the command to its main
process, which executes it.
"""

from typing import Protocol

from toolkit.job.events import DaemonEnded, Launch
from toolkit.train.supervise.shim_server import ShimConnection


class DaemonLink(Protocol):
    """The part of the link that daemons use."""

    def forward_launch(self, launch: Launch) -> bool:
        """Send *launch* to its host; return False if that is none of the job's other hosts."""

    def read_command(self) -> str | None:
        """Return the command that this host is to run, None if none has come yet."""

    def tell_daemon_ended(self, code: int) -> None:
        """Report the exit code of this host's daemon."""

    def take_daemon_ends(self) -> list[DaemonEnded]:
        """Return the reports that came since the last call."""

    def tell_leader_done(self) -> None:
        """Report that the leader's main process has ended and will launch no more daemons."""


class Daemons:
    """The agents and daemons connected to `train` during one phase."""

    def __init__(self, link: DaemonLink | None) -> None:
        self._link = link
        self._agents: dict[str, list[ShimConnection]] = {}
        # The pids of agents. They end after mpirun, and are not reported as processes left behind.
        self.pids: set[int] = set()
        self._waiter: ShimConnection | None = None
        self._dismissed = False
        self._given = False

    def on_launch(self, agent: ShimConnection, launch: Launch) -> str:
        """Forward an agent's request; return why it cannot be met, "" if it can."""
        if self._link is None:
            agent.answer(code=69, number=None)
            return f"mpirun wants to start {launch.host}, but there is no link to it"
        if not self._link.forward_launch(launch):
            agent.answer(code=68, number=None)
            return f"mpirun wants to start {launch.host}, which is none of this job's other hosts"
        self._agents.setdefault(launch.host, []).append(agent)
        self.pids.add(agent.peer)
        return ""

    def on_waiter(self, waiter: ShimConnection) -> None:
        """Register this host's main process, which waits for its command."""
        self._waiter = waiter
        self.serve()
        if self._dismissed:
            waiter.dismiss()

    def serve(self) -> None:
        """Handle commands and daemon ends that came over the link."""
        if self._link is None:
            return
        if self._waiter is not None and not self._given and (command := self._link.read_command()) is not None:
            self._given = True
            self._waiter.give(command)
        for report in self._link.take_daemon_ends():
            for agent in self._agents.pop(report.host, []):
                agent.answer(code=report.code, number=None)

    def on_leader_done(self) -> None:
        """Handle the end of the leader's mpirun."""
        self._dismissed = True
        if self._waiter is not None and not self._given:
            self._waiter.dismiss()

    def main_ended(self, code: int, *, leads: bool) -> None:
        """Report the end of this host's main process to the other hosts."""
        if self._link is not None:
            self._link.tell_leader_done() if leads else self._link.tell_daemon_ended(code)
