"""Pure: what the leader knows of one attempt: which hosts have ended or failed, and what the others are told of it."""

from toolkit.job.events import Launch, LeaderDone, NextAttempt, RankDone
from toolkit.job.outcome import UNFINISHED_S
from toolkit.job.restart import Steps
from toolkit.train.peers.failures import FailureReports
from toolkit.train.peers.hang import JobHang
from toolkit.train.peers.messages import CommonStep, EndReport, RanksEnded
from toolkit.train.peers.protocol import AGREE_S


class AttemptState:
    """The state of one attempt, that *begun_by* began (None: the first) at *now_s* with *hosts*. Times in seconds."""

    def __init__(self, begun_by: NextAttempt | None, hosts: set[str], now_s: float) -> None:
        self.begun_by = begun_by
        self.number = begun_by.restart.attempt if begun_by is not None else 0
        # Of the hosts that joined and have not vanished: those that have not ended, and those that have not answered.
        self.unended = set(hosts)
        self.unanswered = set(hosts)
        self.ends: dict[str, EndReport] = {}
        # What a host that had ended well said when it gave the leader up: it has ended with that already.
        self.given_up: EndReport | None = None
        self.first_end_s: float | None = None
        self.failures = FailureReports()
        self.failing_s: float | None = None
        # True while the leader waits for all hosts to end, because the failure may be worth another attempt.
        self.awaits_all_ends = False
        self.hang = JobHang(now_s)
        self.stop_steps = StopSteps()
        self.unfinished = UnfinishedRanks()
        # How far the ranks of the hosts that have ended came.
        self.steps = Steps()
        # The hosts of which no rank lives any more, and the message that says so of the whole job.
        self.without_ranks: set[str] = set()
        self.ranks_ended: RanksEnded | None = None
        # By host: the daemon of mpirun that it has to start. The message that the host of mpirun needs none any more.
        self.launches: dict[str, Launch] = {}
        self.leader_done: LeaderDone | None = None
        # The first rank that ended with 0, where others may wait for all ranks.
        self.rank_done: RankDone | None = None

    def note_connection(self, host: str) -> None:
        self.unended.add(host)
        self.unanswered.add(host)

    def stop_awaiting(self, host: str) -> None:
        """Note that *host* has ended or vanished."""
        self.unended.discard(host)
        self.unanswered.discard(host)

    def note_end(self, host: str, report: EndReport, now_s: float) -> None:
        self.stop_awaiting(host)
        self.ends[host] = report
        self.failures.note_early(report.early)
        self.hang.restart_count(now_s)
        if self.first_end_s is None:
            self.first_end_s = now_s

    def take_ranks_ended(self) -> RanksEnded | None:
        """Return, once, the message that no rank of the job lives any more, when hosts wait for it."""
        if not self.without_ranks or self.ranks_ended is not None or not self.unended <= self.without_ranks:
            return None
        self.ranks_ended = RanksEnded()
        return self.ranks_ended


class StopSteps:
    """The steps at which the ranks of each host could stop, and the one at which all do."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self.agreed: CommonStep | None = None

    def note_step(self, host: str, step: int) -> None:
        self._steps[host] = step

    def agree(self, unended: set[str], stopped_s: float | None, now_s: float) -> CommonStep | None:
        """Return, once, the step at which all stop: when every host has reported its step, or AGREE_S after the stop
        at *stopped_s*."""
        if self.agreed is not None or stopped_s is None or not self._steps:
            return None
        # The lengths first: with 10,000 hosts the sets are compared only when they may fit.
        if now_s < stopped_s + AGREE_S and (len(self._steps) < len(unended) or not unended <= self._steps.keys()):
            return None
        self.agreed = CommonStep(step=max(self._steps.values()))
        return self.agreed


class UnfinishedRanks:
    """Ranks that ended with 0 without MPI_Finalize: the others wait for them, unless they end soon."""

    def __init__(self) -> None:
        # By host with such a rank: how many of its ranks live.
        self._living_ranks: dict[str, int] = {}
        self.due_s: float | None = None

    def note_rank(self, host: str, living_ranks: int, now_s: float) -> float:
        """Note that a rank of *host* ended so; return when the others have waited too long for the first of these."""
        self._living_ranks[host] = living_ranks
        if self.due_s is None:
            self.due_s = now_s + UNFINISHED_S
        return self.due_s

    def hold_up(self, unended: set[str], now_s: float) -> bool:
        """True once the ranks of a host that has not ended have waited too long for such a rank."""
        if self.due_s is None or now_s < self.due_s:
            return False
        return any(self._living_ranks.get(host) != 0 for host in unended)
