"""Pure: decides when a job ends and with which report, and when it begins another attempt.

The leader asks after every event that may matter, and when `due_s` says.
"""

from collections.abc import Iterator

from toolkit.job.events import NextAttempt, Stop
from toolkit.job.restart import Budget, Failure, Restart, Steps
from toolkit.records import Record
from toolkit.train.peers.attempt import AttemptState
from toolkit.train.peers.barrier import StartBarrier
from toolkit.train.peers.failures import blame_early_exit
from toolkit.train.peers.members import Members
from toolkit.train.peers.messages import EndReport
from toolkit.train.peers.protocol import ANSWER_S, EARLY_S, HANG_ANSWER_S, RECONNECT_S, RESTART_S, STOPPED_S, Timeouts
from toolkit.train.peers.reports import cut_for_hosts, name_hosts, report_not_ended, report_stopped

# The furthest that a rank can have come.
FURTHEST = Steps(seen=True, highest=1 << 62)


class EndJob(Record, frozen=True, kw_only=True):
    """The job ends with *report*. `refusal`: why it is not restarted, if restarts are allowed."""

    report: EndReport
    refusal: str = ""


class FailJob(Record, frozen=True, kw_only=True):
    """The leader has found this failure: hosts take too long to end."""

    report: EndReport


class Repeat(Record, frozen=True, kw_only=True):
    """Another attempt begins."""

    next_attempt: NextAttempt


class AwaitEnds(Record, frozen=True, kw_only=True):
    """The failure may be worth another attempt, which is known when every host has ended."""


Decision = EndJob | FailJob | Repeat | AwaitEnds


class Decider:
    """Decides from an attempt's state. *restarts*: how many the job may have; the first of *hosts* is the leader."""

    def __init__(
        self, hosts: tuple[str, ...], times: Timeouts, members: Members, barrier: StartBarrier, restarts: int
    ) -> None:
        self._hosts = hosts
        self._times = times
        self._members = members
        self._barrier = barrier
        self.budget = Budget(allowed=restarts)

    def decide(
        self, attempt: AttemptState, stop: Stop | None, stopped_s: float | None, now_s: float
    ) -> Decision | None:
        """Return what happens now, None: nothing. *stop*: the job's first stop, which came at *stopped_s*."""
        if attempt.failing_s is not None:
            return self._after_failure(attempt, attempt.failing_s, stop, now_s)
        if not attempt.unended:
            return EndJob(report=(attempt.given_up if stop is None else None) or self._end_of_all(attempt, stop))
        if stopped_s is not None and now_s >= self._stop_ends_s(stopped_s):
            return EndJob(report=self._end_of_all(attempt, stop))
        finish_ends_s = self._finish_ends_s(attempt)
        if stop is None and finish_ends_s is not None and now_s >= finish_ends_s:
            missing = [host for host in self._hosts if host in attempt.unended]
            return FailJob(report=report_not_ended(missing, self._times.finish_timeout_s))
        return None

    def due_s(self, attempt: AttemptState, stopped_s: float | None) -> Iterator[float]:
        """Yield the times at which `decide` may have another answer."""
        if attempt.failing_s is not None:
            ends_s = attempt.failing_s + _answer_s(attempt)
            yield from (attempt.failing_s + EARLY_S, ends_s, ends_s + RECONNECT_S)
        if stopped_s is not None:
            yield self._stop_ends_s(stopped_s)
        finish_ends_s = self._finish_ends_s(attempt)
        if finish_ends_s is not None:
            yield finish_ends_s

    def complete_verdict(self, attempt: AttemptState, report: EndReport) -> EndReport:
        """Return *report* with what all hosts know, in a size for so many hosts."""
        return cut_for_hosts(attempt.failures.complete_report(report, self._hosts), len(self._hosts))

    def _stop_ends_s(self, stopped_s: float) -> float:
        return stopped_s + self._times.grace_s + STOPPED_S

    def _finish_ends_s(self, attempt: AttemptState) -> float | None:
        if attempt.first_end_s is None or self._times.finish_timeout_s <= 0:
            return None
        return attempt.first_end_s + self._times.finish_timeout_s

    def _after_failure(
        self, attempt: AttemptState, failing_s: float, stop: Stop | None, now_s: float
    ) -> Decision | None:
        since_s = now_s - failing_s
        # A host whose connection is lost may be the cause of all the others' collateral failures.
        late = since_s >= _answer_s(attempt) + (RECONNECT_S if self._members.away else 0.0)
        reported = attempt.failures.cause_report
        assert reported is not None
        worst = blame_early_exit(reported, attempt.failures.early)
        # All hosts have reported. A cause that only its consequences show waits EARLY_S for a direct one.
        is_known = not attempt.unanswered and worst.cause.primary and (reported.cause.primary or since_s >= EARLY_S)
        return self._end_or_repeat(attempt, worst, failing_s, stop, now_s) if late or is_known else None

    def _end_or_repeat(
        self, attempt: AttemptState, worst: EndReport, failing_s: float, stop: Stop | None, now_s: float
    ) -> Decision:
        """End the job with *worst*, or begin another attempt; while that is possible, wait for every host to end."""
        if not self.budget.allowed:
            return EndJob(report=worst)
        failure = Failure(
            kind=worst.cause.kind,
            exit_code=worst.exit_code,
            preempted=worst.cause.preempted,
            began=self._barrier.opened,
            stopped=stop is not None,
            gone=tuple(sorted(self._members.gone)),
        )
        # How far the ranks came is known only when all hosts have ended.
        awaited = bool(attempt.unended or self._members.away)
        refusal = self.budget.refusal(failure, FURTHEST if awaited else attempt.steps)
        if awaited and not refusal:
            if now_s < failing_s + self._times.grace_s + RESTART_S:
                return AwaitEnds()
            refusal = f"{name_hosts(sorted(attempt.unended.union(self._members.away)))} had not ended"
        return EndJob(report=worst, refusal=refusal) if refusal else self._repeat(attempt, worst, failure)

    def _repeat(self, attempt: AttemptState, worst: EndReport, failure: Failure) -> Repeat:
        worst = self.complete_verdict(attempt, worst)
        restart = Restart(
            attempt=attempt.number + 1,
            host="" if worst.of_job else worst.host,
            message=worst.cause.message,
            process=worst.cause.process,
            rank=worst.cause.rank,
            exit_code=worst.exit_code,
            failed_ns=worst.cause.failed_ns,
            counted=self.budget.counts(failure, attempt.steps),
        )
        self.budget = self.budget.after(failure, attempt.steps)
        return Repeat(next_attempt=NextAttempt(restart=restart, used=self.budget.used, allowed=self.budget.allowed))

    def _end_of_all(self, attempt: AttemptState, stop: Stop | None) -> EndReport:
        """Return the end of a job in which nothing failed; after a stop, the worst of the hosts' ends."""
        ends = list(attempt.ends.values())
        if stop is not None:
            late = f"had not ended {self._times.grace_s + STOPPED_S:g} s after the stop"
            ends += [report_stopped(host, stop.signal, late) for host in attempt.unended]
        worst = max(ends, key=lambda report: report.exit_code)
        return worst if worst.exit_code else EndReport(host=self._hosts[0], exit_code=0, stopped=stop is not None)


def _answer_s(attempt: AttemptState) -> float:
    return HANG_ANSWER_S if attempt.failures.is_hang else ANSWER_S
