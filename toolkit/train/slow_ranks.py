"""Carries the own work of ranks from each host's monitor to the leader's, and its requests for traces to all hosts.

The monitor and `train` exchange files (diagnosis/exchange.py); `train` and the other hosts exchange messages.
"""

from pathlib import Path

import msgspec

from toolkit.diagnosis import exchange
from toolkit.diagnosis.slow_rank import TRACED_STEPS
from toolkit.job.job import Job
from toolkit.job.rank_work import MOST_RANKS_SENT, OTHERS, OWN, OthersWork, OwnWork, RankWork, TraceAsked
from toolkit.log import Log
from toolkit.status_pages import pages
from toolkit.train.peers.messages import HostOwnWork, TraceRanks
from toolkit.train.supervise.stop_request import STATUS_FOLDER

LOOK_S = 1.0
# The most messages per second from all hosts together: each costs the leader some 0.2 ms for 8 ranks.
TOLD_PER_S = 200
# The leader's monitor gets what has come once in so many seconds.
WRITTEN_S = 2.0


class SlowRanks:
    """`train`'s part of the comparison. No method raises an OSError. Times are monotonic seconds."""

    def __init__(self, job: Job, run_folder: Path, log: Log) -> None:
        self._log = log
        self._me = job.cluster.current
        self._folder = run_folder
        self._every_s = len(job.cluster.hosts) / TOLD_PER_S
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Begin another attempt, whose ranks have done nothing yet."""
        for name in (OWN, OTHERS):
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                self._log.warning(f"{self._folder / name}: {error.strerror}")
        self._own = exchange.Newest(self._folder / OWN, OwnWork)
        self._looked_s = self._told_s = self._written_s = 0.0
        self._ranks: tuple[RankWork, ...] = ()
        self._asked = 0
        self._others: dict[str, tuple[RankWork, ...]] = {}
        self._has_news = False

    def take_due(self, now_s: float) -> list[HostOwnWork | TraceRanks]:
        """Return what to send now: this host's own work, and the leader's request for a trace."""
        if now_s < self._looked_s + LOOK_S:
            return []
        self._looked_s = now_s
        self._write(now_s)
        messages: list[HostOwnWork | TraceRanks] = []
        own_work = self._own.new()
        if own_work is not None:
            self._ranks = own_work.ranks
            if own_work.asked is not None and own_work.asked.number > self._asked:
                self._asked = own_work.asked.number
                messages.append(TraceRanks(request=own_work.asked))
        if self._ranks and now_s >= self._told_s + self._every_s:
            self._told_s = now_s
            messages.append(HostOwnWork(ranks=_extremes(self._ranks)))
            self._ranks = ()
        return messages

    def take_work(self, host: str, ranks: tuple[RankWork, ...]) -> None:
        """Take the own work of *host*'s ranks; the leader alone gets it."""
        if host != self._me:
            self._others[host] = tuple(msgspec.structs.replace(work, host=host) for work in ranks)
            self._has_news = True

    def trace(self, request: TraceAsked) -> None:
        """Have those of the two ranks that run on this host trace their next steps."""
        pair = (request.slow, request.healthy)
        try:
            pages.request_trace(self._folder / STATUS_FOLDER, steps=TRACED_STEPS, ranks=pair, number=-request.number)
        except OSError as error:
            self._log.warning(
                f"ranks {request.slow} and {request.healthy} were not asked for a trace: {error.strerror}"
            )

    def _write(self, now_s: float) -> None:
        if not self._has_news or now_s < self._written_s + max(WRITTEN_S, self._every_s):
            return
        self._written_s = now_s
        self._has_news = False
        try:
            others = tuple(work for ranks in self._others.values() for work in ranks)
            exchange.write(self._folder / OTHERS, OthersWork(ranks=others))
        except OSError:
            pass  # A full disk: the leader's monitor compares the ranks of its own host.


def _extremes(ranks: tuple[RankWork, ...]) -> tuple[RankWork, ...]:
    """Return the ranks that a message holds: of too many those with the least and the most work."""
    if len(ranks) <= MOST_RANKS_SENT:
        return ranks
    ordered = sorted(ranks, key=lambda work: work.own_s)
    return (*ordered[: MOST_RANKS_SENT // 2], *ordered[-MOST_RANKS_SENT // 2 :])
