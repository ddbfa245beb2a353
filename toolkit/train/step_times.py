"""Compares ranks' step times to find stragglers: within this host, or across all hosts if they have a link.

Step times are a metric named step_time or, in a job without one, the times between heartbeats (toolkit.status). With a
link each host sends some of its step times to the leader, at most once a second, and the leader compares all ranks.
Without one, ranks are compared within their host.
"""

from collections.abc import Sequence
from pathlib import Path

from toolkit.job.job import Job
from toolkit.metrics.sample import Sample
from toolkit.status_pages import pages
from toolkit.status_pages.layout import RANK_NAME
from toolkit.train.attempt_monitor import AttemptMonitor
from toolkit.train.launchers import table as launchers
from toolkit.train.log_rules.event import RuleEvent
from toolkit.train.log_rules.straggler import STEP_TIME, Beats, Stragglers, Thinned
from toolkit.train.supervise.stop_request import STATUS_FOLDER

Times = tuple[tuple[int, int, float], ...]
EVERY_S = 1.0
# The most step times per second from all hosts together: each costs the leader about 0.1 ms.
TOLD_PER_S = 1000


class StepTimes(AttemptMonitor):
    """Collects step times of this host's ranks and, on the leader, of other hosts. Times are monotonic seconds."""

    def __init__(self, job: Job, run_folder: Path, *, linked: bool) -> None:
        self._job = job
        self._status_folder = run_folder / STATUS_FOLDER
        self._linked = linked
        hosts = len(job.cluster.hosts) if linked else 1
        # Under a launcher that starts one process on each host (script), each of them is rank 0.
        self._ranks = max(launchers.world_size(job), hosts) if linked else job.processes_per_host
        self._by_metric = any(name == STEP_TIME for name, _ in job.spec.metric_definitions)
        self._tell_every_s = max(EVERY_S, hosts / TOLD_PER_S)
        self._told_s = 0.0
        self._looked_s = 0.0
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Reset for ranks that are started again."""
        self._pids: dict[int, int] = {}
        self._who: list[tuple[str, int]] = []
        self._number: dict[tuple[str, int], int] = {}
        self._beats = Beats()
        self._kept = Thinned()
        settings = self._job.settings
        self._stragglers = Stragglers(
            ranks=self._ranks,
            factor=settings.straggler_factor,
            steps=settings.straggler_steps,
            name=self._name if self._linked else "rank {}".format,
        )

    # --- this host's ranks

    def note_rank(self, rank: int, pid: int) -> None:
        """Note that *rank* runs as process *pid*."""
        self._pids[rank] = pid

    def take_samples(self, samples: Sequence[Sample]) -> list[RuleEvent]:
        """Take samples of this host; return what they show, if ranks are compared here."""
        if not self._linked:
            return self._stragglers.samples(samples)
        self._kept.samples(samples)
        return []

    def due_in_s(self, now_s: float) -> float | None:
        """Return the seconds until `tick` is due, None if heartbeats are not used."""
        return None if self._by_metric else max(self._looked_s + EVERY_S - now_s, 0.0)

    def tick(self, now_s: float) -> list[RuleEvent]:
        """Read this host's heartbeats if that is due; return what they show, if ranks are compared here."""
        events: list[RuleEvent] = []
        if self.due_in_s(now_s) != 0.0:
            return events
        self._looked_s = now_s
        for rank, pid in self._pids.items():
            page = pages.read_rank(self._status_folder / (RANK_NAME % pid))
            if page is None or page.step is None or page.step_time_ns is None:
                continue
            for _, step, seconds in self._beats.look(rank, page.step, page.step_time_ns):
                if self._linked:
                    self._kept.step(rank, step, seconds)
                else:
                    events += self._stragglers.step(rank, step, seconds, now_s=now_s)
        return events

    # --- all hosts'

    def take_due(self, now_s: float, *, last: bool = False) -> Times:
        """Return the step times to send to the leader now; all that are left if it is the *last* time."""
        if not last and now_s < self._told_s + self._tell_every_s:
            return ()
        self._told_s = now_s
        return self._kept.take()

    def judge(self, host: str, times: Times) -> list[tuple[str, str]]:
        """Return (host, line for its log) for each rank that *host*'s times show to be slow or recovered."""
        events = []
        for rank, step, seconds in times:
            who = self._number.setdefault((host, rank), len(self._who))
            if who == len(self._who):
                self._who.append((host, rank))
            events += self._stragglers.step(who, step, seconds, now_s=0.0)
        return [self._told(event) for event in events]

    def _told(self, event: RuleEvent) -> tuple[str, str]:
        assert event.rank is not None
        host, rank = self._who[event.rank]
        return host, f"rule {event.rule}, {event.kind} (rank {rank} of host {host}): {event.text}"

    def _name(self, who: int) -> str:
        host, rank = self._who[who]
        return f"rank {rank} of host {host}"
