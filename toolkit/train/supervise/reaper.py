"""Reaps the processes of a phase that have ended, and posts their ends as events."""

from collections.abc import Callable, Iterable
from typing import Protocol

from toolkit.job import events
from toolkit.job.outcome import Exit, signal_name
from toolkit.train.supervise import children
from toolkit.train.supervise.effects import WAITING
from toolkit.train.supervise.guardian import Guardian
from toolkit.train.supervise.phase_record import PhaseRecord
from toolkit.train.supervise.process import Process
from toolkit.train.supervise.processes import Processes
from toolkit.train.supervise.stop_machine import StopMachine


class Guarded(Protocol):
    """The part of loop.Supervisor, which outlives the phase, that reaping needs."""

    guardian: Guardian | None

    def renew_guardian(self, pids: Iterable[int]) -> None:
        """Start another guardian in place of one that was killed, and report *pids*, which live, to it."""


class Reaper:
    """*post* takes the events."""

    def __init__(
        self,
        around: Guarded,
        machine: StopMachine,
        processes: Processes,
        record: PhaseRecord,
        post: Callable[[events.Event], None],
    ) -> None:
        self._around = around
        self._machine = machine
        self._processes = processes
        self._record = record
        self._post = post

    def reap(self) -> None:
        """Reap all that have ended, then post events: a zombie that is signalled would count as ended by `train`."""
        ends: list[tuple[Process, Exit]] = []
        for pid, status, ended_ns in children.reap():
            process = self._processes.living.pop(pid, None)
            if process is not None:
                ends.append((process, self._record.end(process, status, ended_ns)))
            elif self._around.guardian is not None and pid == self._around.guardian.pid:
                self._around.renew_guardian(self._processes.living)
                self._record.note("the guardian process was ended by somebody; another has taken its place")
            # Any other is an orphan that `train` has inherited: its end has no effect on the outcome.
        for process, ended in ends:
            # While the script runs, nobody here has told a service to end.
            if process.gives and self._machine.undisturbed and all(each.is_service for each, _ in ends):
                self._record.note(_lost(process, ended))
            self._post(_end_of(process, ended))

    def look(self) -> None:
        """Look whether any descendant is left; one may have been forked since the last look, so kill again."""
        if self._machine.state == "killing":
            self._processes.kill_left()
        self.reap()
        if not self._processes.living and not self._processes.any_left():
            self._post(events.NothingLeft())


def _lost(process: Process, ended: Exit) -> str:
    how = f"was ended by {signal_name(ended.signal)}" if ended.signal else f"ended with code {ended.code}"
    return f"{process.name} {how}, not by the toolkit: from now on the job has no {process.gives}, and goes on without"


def _end_of(process: Process, ended: Exit) -> events.Event:
    if process.name == WAITING and (ended.ok or ended.signalled):
        return events.NobodyServed()
    if process.is_service:
        return events.ServiceEnded(exit=ended)
    return events.MainEnded(exit=ended) if process.is_main else events.RankEnded(exit=ended)
