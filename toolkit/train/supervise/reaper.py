"""Reaps the processes of a phase that have ended, and posts their ends as events."""

from collections.abc import Callable

from toolkit.job import events
from toolkit.job.outcome import Exit, signal_name
from toolkit.train.supervise import children
from toolkit.train.supervise.phase_record import PhaseRecord
from toolkit.train.supervise.process import WAITING, PhaseProcess
from toolkit.train.supervise.processes import Processes
from toolkit.train.supervise.supervisor import Supervisor


class Reaper:
    """*post* takes the events."""

    def __init__(
        self,
        supervisor: Supervisor,
        processes: Processes,
        record: PhaseRecord,
        post: Callable[[events.Event], None],
    ) -> None:
        self._supervisor = supervisor
        self._machine = supervisor.machine
        self._processes = processes
        self._record = record
        self._post = post

    def reap(self) -> None:
        """Reap all that have ended, then post events: a zombie that is signalled would count as ended by `train`."""
        ends: list[tuple[PhaseProcess, Exit]] = []
        for pid, status, ended_ns in children.reap():
            self._supervisor.apart.discard(pid)  # The kernel may give its pid to a rank.
            process = self._processes.living.pop(pid, None)
            if process is not None:
                ends.append((process, self._record.end(process, status, ended_ns)))
            elif self._supervisor.guardian is not None and pid == self._supervisor.guardian.pid:
                self._supervisor.renew_guardian(self._processes.living)
                self._record.note("the guardian process was ended by somebody; another has taken its place")
            # Any other is an orphan that `train` has inherited: its end has no effect on the outcome.
        for process, exit in ends:
            # While the script runs, nobody here has told a service to end.
            if process.gives and self._machine.undisturbed and all(process.is_service for process, _ in ends):
                self._record.note(_lost(process, exit))
            self._post(_end_of(process, exit))

    def check_for_processes(self) -> None:
        """Check whether any descendant is left; one may have been forked since the last check, so kill again."""
        if self._machine.state == "killing":
            self._processes.kill_left()
        self.reap()
        if not self._processes.living and not self._processes.any_left():
            self._post(events.NothingLeft())


def _lost(process: PhaseProcess, exit: Exit) -> str:
    how = f"was ended by {signal_name(exit.signal)}" if exit.signal else f"ended with code {exit.code}"
    return f"{process.name} {how}, not by the toolkit: from now on the job has no {process.gives}, and goes on without"


def _end_of(process: PhaseProcess, exit: Exit) -> events.Event:
    if process.name == WAITING and (exit.ok or exit.signalled):
        return events.NobodyServed()
    if process.is_service:
        return events.ServiceEnded(exit=exit)
    return events.MainEnded(exit=exit) if process.is_main else events.RankEnded(exit=exit)
