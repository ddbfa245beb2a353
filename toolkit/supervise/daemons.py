"""Answers mpirun's agents and daemons (toolkit/standalone/mpi_agent.py).

The leader forwards mpirun's commands to the other hosts; each of them gives its main process the command that it
becomes.
"""

from typing import Protocol

from toolkit.job.events import DaemonEnded, Launch
from toolkit.supervise.shim_server import ShimConnection


class Wire(Protocol):
    """The link, as far as daemons need it."""

    def launch(self, launch: Launch) -> bool:
        """Pass *launch* on; False if its host is none of the job's other hosts."""

    def launched(self) -> str | None:
        """Return the command that this host is to run, None while there is none."""

    def daemon_ended(self, code: int) -> None:
        """Say how this host's daemon ended."""

    def daemons_ended(self) -> list[DaemonEnded]:
        """Return those that came since the last call."""

    def leader_done(self) -> None:
        """Say that the leader's main process has ended, and nothing will be launched any more."""


class Daemons:
    """The agents and daemons connected to `train` during one phase."""

    def __init__(self, wire: Wire | None) -> None:
        self._wire = wire
        self._agents: dict[str, list[ShimConnection]] = {}
        # Of agents, which end after mpirun: they are not reported as left behind.
        self.pids: set[int] = set()
        self._waiter: ShimConnection | None = None
        self._dismissed = False
        self._given = False

    def on_launch(self, agent: ShimConnection, asked: Launch) -> str:
        """Pass an agent's request on; return why it cannot be met, "" if it can."""
        if self._wire is None:
            agent.answer(code=69, number=None)
            return f"mpirun wants to start {asked.host}, but there is no link to it"
        if not self._wire.launch(asked):
            agent.answer(code=68, number=None)
            return f"mpirun wants to start {asked.host}, which is none of this job's other hosts"
        self._agents.setdefault(asked.host, []).append(agent)
        self.pids.add(agent.peer)
        return ""

    def on_waiter(self, waiter: ShimConnection) -> None:
        """Take this host's main process, which waits for its command."""
        self._waiter = waiter
        self.serve()
        if self._dismissed:
            waiter.dismiss()

    def serve(self) -> None:
        """Do what the link has brought."""
        if self._wire is None:
            return
        if self._waiter is not None and not self._given and (command := self._wire.launched()) is not None:
            self._given = True
            self._waiter.give(command)
        for ended in self._wire.daemons_ended():
            for agent in self._agents.pop(ended.host, []):
                agent.answer(code=ended.code, number=None)

    def on_leader_done(self) -> None:
        """The leader's mpirun has ended."""
        self._dismissed = True
        if self._waiter is not None and not self._given:
            self._waiter.dismiss()

    def main_ended(self, code: int, *, leads: bool) -> None:
        """Tell the other hosts that this one's main process has ended."""
        if self._wire is not None:
            self._wire.leader_done() if leads else self._wire.daemon_ended(code)
