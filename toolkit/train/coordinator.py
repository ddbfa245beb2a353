"""The job coordinator of one host: it tells the other hosts how this host ended, and makes this host's outcome of the
job's verdict."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from toolkit.collectives.records import fit_calls
from toolkit.job.events import DaemonEnded, Heard, JobEnded, Launch, LeaderDone, NextAttempt, PeerFailed, RankDone, Stop
from toolkit.job.job import Job
from toolkit.job.outcome import Exit, MemoryUse, Outcome, PhaseEnd
from toolkit.job.restart import Restart, Steps
from toolkit.job.restart import news as restart_news
from toolkit.log import Log
from toolkit.train import outcomes
from toolkit.train.joining import join
from toolkit.train.peers import messages
from toolkit.train.peers.messages import EndReport
from toolkit.train.peers.protocol import HostStepTimes, LogLine, RanksWork, Send
from toolkit.train.peers.reports import HANG, describe_failure
from toolkit.train.step_times import StepTimes
from toolkit.train.supervise.supervisor import Supervisor
from toolkit.train.verdict import early, judge, mpi

if TYPE_CHECKING:
    from toolkit.train.slow_ranks import SlowRanks

# Beyond the grace: how long a stopped job's hosts have to report how they ended.
STOPPED_S = 15.0
# How many of the needs that this host waits for it tells the others.
SHOWN = 4
# Characters of what mpirun says of a rank's abort; of a cause, its traceback and its fingerprint.
ABORT_TEXT = 1024
TEXT = 8192
TRACEBACK = 65536
FINGERPRINT = 1024
# Of a message, which has 256 KiB: for the collectives of this host's ranks.
CALLS_BYTES = 128 << 10


class Coordinator:
    """Tells the other hosts of this one, and hears from them, to the verdict at the end (supervise.link.HostLink)."""

    def __init__(
        self,
        job: Job,
        log: Log,
        memory: Callable[[], MemoryUse],
        step_times: StepTimes | None,
        completed: Callable[[Outcome], Outcome],
        slow_ranks: "SlowRanks | None" = None,
    ) -> None:
        """*completed* adds to an outcome what a framework plug-in left of it."""
        self._job = job
        self._completed = completed
        self._slow_ranks = slow_ranks
        self._memory = memory
        self._step_times = step_times
        self._repeat: Restart | None = None
        self._log = log
        self._link = join(job, log, step_times)
        self._was_idle = False
        self._named = ""
        self._command: str | None = None
        self._daemons: list[DaemonEnded] = []

    @property
    def fd(self) -> int:
        return self._link.fd

    def serve(self) -> list[Heard]:
        """Serve the link; log what it reports, and return the events that came."""
        self._link.serve()
        self._tell_steps()
        self._tell_own_work()
        events: list[Heard] = []
        for action in self._link.take():
            if isinstance(action, LogLine):
                (self._log.warning if action.warns else self._log.info)(action.text)
            elif isinstance(action, RanksWork | messages.TraceRanks):
                self._take_comparison(action)
            elif not isinstance(action, Send | HostStepTimes):
                self._note(action)
                events.append(action)
        return events

    def _take_comparison(self, action: RanksWork | messages.TraceRanks) -> None:
        """Take what concerns the comparison of ranks, if this host has a monitor."""
        if self._slow_ranks is None:
            return
        if isinstance(action, RanksWork):
            self._slow_ranks.take_work(action.host, action.ranks)
        else:
            self._slow_ranks.trace(action.request)

    def _note(self, event: Heard) -> None:
        """Log *event*, and keep what it brings until it is asked for."""
        if isinstance(event, Stop):
            self._log.info(f"host {event.host} received a stop signal; stopping this host, too")
        elif isinstance(event, PeerFailed):
            self._named = event.text
            self._log.error(f"{event.text}; stopping this host")
        elif isinstance(event, NextAttempt):
            self._repeat = event.restart
            hosts = len(self._job.cluster.hosts)
            self._log.warning(restart_news(event.restart, event.used, event.allowed, hosts))
            self._command, self._daemons, self._named = None, [], ""
            if self._slow_ranks is not None:
                self._slow_ranks.begin_attempt()
        elif isinstance(event, Launch):
            self._command = event.command
        elif isinstance(event, DaemonEnded):
            self._daemons.append(event)
        elif isinstance(event, JobEnded) and self._link.verdict is not None:
            self._name_cause(self._link.verdict)

    def due_in_s(self) -> float:
        return self._link.due_in_s()

    def tell_ready(self) -> None:
        self._link.tell(messages.Ready())

    def tell_needs(self, missing: tuple[str, ...]) -> None:
        more = f"; for {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        self._link.tell(messages.NotReady(needs="; for ".join(missing[:SHOWN]) + more))

    def tell_stop(self, stop: Stop) -> None:
        self._link.tell(stop)

    def tell_idle(self, seconds: float) -> None:
        if seconds or self._was_idle:
            self._was_idle = bool(seconds)
            settings = self._job.settings
            self._link.tell(
                messages.Idle(seconds=seconds, limit_s=settings.stall_s, stops=settings.stall_action == "stop")
            )

    def tell_unfinalized_rank(self, exit: Exit, living_ranks: int) -> None:
        early_exit = early.first_early_exit(self._job.cluster.current, (exit,))
        if early_exit is not None:
            self._link.tell(messages.UnfinalizedRank(early=early_exit, living_ranks=living_ranks))

    def tell_rank_done(self, process: str) -> None:
        self._link.tell(RankDone(host=self._job.cluster.current, process=process))

    def tell_step(self, step: int) -> None:
        self._link.tell(messages.CommonStep(step=step))

    def forward_launch(self, launch: Launch) -> bool:
        is_other_host = launch.host in self._job.cluster.hosts and launch.host != self._job.cluster.current
        if is_other_host:
            self._link.tell(launch)
        return is_other_host

    def read_command(self) -> str | None:
        return self._command

    def tell_daemon_ended(self, code: int) -> None:
        self._link.tell(DaemonEnded(code=code))

    def take_daemon_ends(self) -> list[DaemonEnded]:
        ends, self._daemons = self._daemons, []
        return ends

    def tell_leader_done(self) -> None:
        self._link.tell(LeaderDone())

    def tell_ranks_ended(self) -> None:
        self._link.tell(messages.RanksEnded())

    def tell_failure(self, so_far: PhaseEnd) -> None:
        failure = self._judge_failure(so_far)
        if failure is not None:
            self._link.tell(messages.Failing(report=self._make_report(failure)))

    def tell_own_failure(self, so_far: PhaseEnd) -> None:
        failure = judge.judge(self._job, so_far) if so_far.hang is not None else self._judge_failure(so_far)
        # Also where nothing failed here: the rank that ended early may be this host's.
        healthy = Outcome(status="succeeded", exit_code=0, exits=so_far.exits)
        report = self._make_report(failure or healthy)
        if so_far.hang is not None:
            report = msgspec.structs.replace(report, rank_calls=fit_calls(so_far.hang.rank_calls, CALLS_BYTES))
        abort = mpi.find_abort_elsewhere(so_far)
        if abort is not None:
            report = msgspec.structs.replace(
                report, abort_text=self._log.mask(abort.text)[:ABORT_TEXT], abort_rank=abort.rank
            )
        self._link.tell(messages.OwnFailure(report=report if failure or report.early or report.abort_text else None))

    def finish_job(self, supervisor: Supervisor, outcome: Outcome, steps: Steps) -> Outcome | Restart:
        """Tell how this host ended and how far its ranks came, wait for the job's verdict, and return this host's
        outcome in its light, or what begins another attempt."""
        self._tell_steps(last=True)
        self._repeat = None
        self._link.tell(messages.HostEnded(report=self._make_report(outcome), steps=steps))
        self._log.debug("waiting for the other hosts to end")

        def given_up() -> bool:
            if (
                supervisor.machine.job.insisted
            ):  # Told twice to stop, a host waits for nobody; the others keep their grace.
                return True
            at_ns = supervisor.machine.job.stopped_at_ns
            return at_ns is not None and time.monotonic_ns() > at_ns + int((self._job.grace_s + STOPPED_S) * 1e9)

        supervisor.attend(lambda: self._link.verdict is not None or self._repeat is not None or given_up())
        if self._repeat is not None:
            return self._repeat
        supervisor.attend(lambda: self._link.is_finished or given_up())
        self.serve()  # What came with the verdict is still to be said.
        verdict = self._link.verdict
        if verdict is None:
            self._link.tell(messages.Bye())  # The leader need not wait for this host to take the verdict.
            return outcome
        return self._make_final_outcome(outcome, verdict)

    def close(self) -> None:
        """Say what was refused, and close."""
        for reason, count in self._link.refused.items():
            if count > 1:
                self._log.warning(f"link: refused {reason}, {count} times")
        self._link.close()

    def _name_cause(self, verdict: EndReport) -> None:
        """Log the job's cause at once where this host knew a collateral failure only: its own ranks may take long to
        end."""
        text = describe_failure(verdict)
        elsewhere = verdict.failed and verdict.host != self._job.cluster.current and verdict.cause.kind != HANG
        if elsewhere and text != self._named:
            self._log.error(text)

    def _tell_steps(self, *, last: bool = False) -> None:
        times = self._step_times.take_due(time.monotonic(), last=last) if self._step_times is not None else ()
        if times:
            self._link.tell(messages.RankStepTimes(times=times))

    def _tell_own_work(self) -> None:
        for message in self._slow_ranks.take_due(time.monotonic()) if self._slow_ranks is not None else ():
            self._link.tell(message)

    def _judge_failure(self, so_far: PhaseEnd) -> Outcome | None:
        failure = judge.judge_failed(self._job, msgspec.structs.replace(so_far, memory=self._memory()))
        return None if failure is None else self._completed(outcomes.advised(self._job, failure))

    def _make_report(self, outcome: Outcome) -> EndReport:
        cause = outcome.cause.masked(self._log.mask)
        cause = msgspec.structs.replace(
            cause,
            message=cause.message[:TEXT],
            traceback=cause.traceback[-TRACEBACK:],
            fingerprint=cause.fingerprint[:FINGERPRINT],
            failed_ns=cause.failed_ns or time.monotonic_ns(),
        )
        me = self._job.cluster.current
        return EndReport(
            host=me,
            exit_code=outcome.exit_code,
            stopped=outcome.status == "stopped",
            cause=cause,
            stuck_ranks=outcome.stuck_ranks,
            early=early.first_early_exit(me, outcome.exits),
        )

    def _make_final_outcome(self, outcome: Outcome, verdict: EndReport) -> Outcome:
        me = self._job.cluster.current
        own_cause, theirs = outcome.cause, verdict.cause
        is_of_this_host = verdict.host == me and verdict.exit_code == outcome.exit_code and theirs.kind != HANG
        if is_of_this_host and (own_cause.primary or own_cause.process) and not theirs.is_early_exit:
            more = max(own_cause.identical_failures, theirs.identical_failures)
            text = theirs.message if verdict.abort_text else own_cause.message
            cause = msgspec.structs.replace(own_cause, message=text, identical_failures=more)
            return msgspec.structs.replace(outcome, cause=cause)
        if verdict.exit_code == 0:
            return outcome
        if verdict.stopped and outcome.status == "stopped" and outcome.exit_code == verdict.exit_code:
            return outcome
        part = "" if verdict.host == me or theirs.kind == HANG else _describe_part(outcome, verdict)
        this_host = f"this host, {me}, {part}" if part else ""
        process_end = "; ".join(filter(None, (theirs.process_end, this_host)))
        return Outcome(
            status="stopped" if verdict.stopped else "failed",
            exit_code=verdict.exit_code,
            cause_host="" if verdict.of_job else verdict.host,
            cause=msgspec.structs.replace(theirs, process_end=process_end),
            this_host_end=part,
            stuck_ranks=outcome.stuck_ranks,
            collectives=verdict.collectives,
            command=outcome.command,
            exits=outcome.exits,
            notes=outcome.notes,
        )


def _describe_part(outcome: Outcome, verdict: EndReport) -> str:
    """Return what part a host had in the end of a job that another host caused."""
    if outcome.cause.primary:
        return f"failed, too ({outcome.cause.process_end or outcome.cause.kind})"
    if outcome.cause.process:
        return "lost it" if verdict.cause.is_early_exit else "ended with it"
    return "was stopped" if outcome.status == "stopped" else "was healthy"
