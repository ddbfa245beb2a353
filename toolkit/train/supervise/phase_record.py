"""Collects what was observed in one phase, from its first process to its last, for the verdict."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from toolkit.job.events import RuleMatched
from toolkit.job.outcome import DetectedHang, Exit, PhaseEnd
from toolkit.job.plan import Phase
from toolkit.train.supervise.process import PhaseProcess
from toolkit.train.supervise.processes import Processes
from toolkit.train.supervise.rank_records import RankRecords, last_on
from toolkit.train.supervise.stop_machine import StopMachine


class PhaseRecord:
    """`exits`: the ends of all processes that matter to the outcome. `aborted`: pids of ranks that their launcher wants
    to end. `forced`: SIGKILL was needed. `hung`: the hang that ends the job. `gone`: by pid, the processes that have
    ended."""

    def __init__(
        self,
        phase: Phase,
        machine: StopMachine,
        status_folder: Path,
        open_files: tuple[int, int] | None,
        warn: Callable[[str], None],
    ) -> None:
        self._phase = phase
        self._machine = machine
        self._rank_records = RankRecords(status_folder)
        self._open_files = open_files
        self._warn = warn
        self._notes: list[str] = []
        self.exits: list[Exit] = []
        self.gone: dict[int, PhaseProcess] = {}
        self.aborted: set[int] = set()
        self.forced = False
        self.hung: DetectedHang | None = None

    def note(self, text: str) -> None:
        """Log *text*, and keep it for the outcome."""
        self._notes.append(text)
        self._warn(text)

    def end(self, process: PhaseProcess, status: int, ended_ns: int) -> Exit:
        """Record the end of *process*, which was reaped with *status*, and return it."""
        exit = self._with_others(process, process.exit(status, ended_ns, *self._rank_records.raised_by(process.pid)))
        self.gone[process.pid] = process
        # A service's end matters only if it failed while it was needed.
        if not process.is_service or (self._machine.undisturbed and not exit.ok and not exit.signalled):
            self.exits.append(exit)
        return exit

    def _with_others(self, process: PhaseProcess, exit: Exit) -> Exit:
        """Return *exit*, corrected for what MPI does to ranks.

        A rank that crashed while MPI was aborted, as MPICH's do, is marked as signalled: another rank is the
        cause. A rank that had recorded its own exit and then crashed or failed in MPI_Abort or MPI_Finalize, because
        MPI's own processes were gone, ends with the code that it recorded.
        """
        if not self._phase.main.stop.as_one or process.shim is None:
            return exit
        if exit.ok:
            left = not exit.signalled and self._machine.undisturbed and self._rank_records.unfinished(process.pid)
            return msgspec.structs.replace(exit, without_mpi_finalize=True) if left else exit
        if exit.exception_raised_ns is not None and not exit.signalled:
            recorded_code = self._rank_records.raised_by(process.pid)[1]
            return msgspec.structs.replace(exit, code=recorded_code, signal=None) if recorded_code else exit
        if exit.signal is None:
            return exit
        numbers, gone = process.shim.read()
        aborted = bool(numbers) or gone or process.pid in self.aborted
        return msgspec.structs.replace(exit, signalled=True) if aborted else exit

    @property
    def ranks_ended_well(self) -> int:
        """The number of ranks that have ended with 0."""
        return sum(exit.rank is not None and exit.ok for exit in self.exits)

    def so_far(self, processes: Processes) -> PhaseEnd:
        """Return what was observed until now."""
        machine, streams = self._machine, processes.streams
        exits = (*self.exits, *self._rank_records.doomed(processes.living.values()))
        return PhaseEnd(
            name=self._phase.name,
            failure_kind=self._phase.failure,
            command=processes.command,
            exits=exits,
            main=processes.spec.name,
            tails={name: (err.tail.text(), out.tail.text()) for name, (out, err) in streams.items()},
            last_on={name: last_on(*pair) for name, pair in streams.items()},
            exceptions=self._rank_records.raised(exits),
            child_exceptions=self._rank_records.raised_by_children(exits),
            stopped_by=machine.job.stop.signal if machine.job.stop is not None else None,
            stopped_at_ns=machine.job.stopped_at_ns,
            stop_rule=machine.job.stop.rule if machine.job.stop is not None else "",
            forced=self.forced,
            peer_failed=machine.job.peer_failed,
            launcher_first=machine.launcher_first,
            job_finished=machine.over,
            hang=self.hung,
            rule_match=machine.cause.ruled if isinstance(machine.cause, RuleMatched) else None,
            open_files=self._open_files,
            long_lines=sum(stream.lines.long_lines for pair in streams.values() for stream in pair),
            notes=tuple(self._notes),
        )
