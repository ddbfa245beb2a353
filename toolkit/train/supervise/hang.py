"""Watches one host's ranks for a hang (activity.py), and has their stacks written if there is one (stacks.py)."""

import time
from collections.abc import Mapping
from pathlib import Path

from toolkit.collectives.records import RankCalls
from toolkit.errors import UserError
from toolkit.job.stuck import StuckRank
from toolkit.records import Record
from toolkit.train.supervise import children, stacks
from toolkit.train.supervise.activity import RankActivity, unusual_state, used_ticks
from toolkit.train.supervise.collective_dumps import CollectiveDumps

# How much longer than stacks may take, to wait for the lines of collectives: before the leader stops waiting for an
# answer (peers/protocol.py: HANG_ANSWER_S), and the ranks are stopped (stop_times.py: DUMP_S).
LINES_S = 1.5
AGAIN_S = 0.1


class HangSettings(Record, frozen=True, kw_only=True):
    """The settings of the watch for hangs on this host."""

    after_s: float
    """A hang: no rank has been active for so long."""
    stops: bool
    """A hang ends the job; else it is only reported."""
    folder: Path
    """The output folder of the stacks."""
    prepared: Path
    """The folder in which the ranks write them."""
    collectives: Path | None
    """The folder in which they write their collectives (collective_dumps.py), None: they write none."""
    host: str


class HangWatch:
    """Looks at regular intervals. Times are monotonic seconds. `folder`: where the stacks are written. `stops`: a hang
    ends the job."""

    def __init__(self, settings: HangSettings, environ: Mapping[str, str], prctl: children.Prctl) -> None:
        self.folder = settings.folder
        self.stops = settings.stops
        self._settings = settings
        self._environ = dict(environ)
        self._prctl = prctl
        self._every_s = min(max(settings.after_s / 8, 0.1), 10.0)
        self._progress = RankActivity(time.monotonic())
        self._looked_s = time.monotonic()
        self._dump: stacks.StackDump | None = None
        self._collectives: CollectiveDumps | None = None
        self._collect_s = 0.0
        self._longest_s = 0.0

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until something is due."""
        due_s = self._looked_s + self._every_s
        return max(min(due_s, self._collect_s if self._dump is not None else due_s) - now_s, 0.0)

    def idle_s(self, written_bytes: Mapping[int, int], now_s: float) -> float | None:
        """Return the seconds without activity of any rank, 0 if that is no hang yet, None if no look is due.

        *written_bytes*: of each rank, by pid. No look is due while stacks are being written.
        """
        if now_s - self._looked_s < self._every_s or self._dump is not None or not written_bytes:
            return None
        self._looked_s = now_s
        idle_s = self._progress.look({pid: (size, used_ticks(pid)) for pid, size in written_bytes.items()}, now_s)
        return idle_s if idle_s >= self._settings.after_s else 0.0

    def dump(self, ranks: Mapping[str, int]) -> str:
        """Have the stacks of *ranks* (pid by name) written; return why they cannot be, "" if they can."""
        settings = self._settings
        self._progress = RankActivity(time.monotonic())
        self._collectives = None
        if settings.collectives is not None:
            self._collectives = CollectiveDumps(ranks, settings.collectives)
        try:
            self._dump = stacks.StackDump(
                dict(ranks),
                settings.folder,
                settings.host,
                environ=self._environ,
                prepared=settings.prepared,
                prctl=self._prctl,
            )
        except (OSError, UserError) as error:
            return f"no stacks could be written: {error}"
        self._collect_s = time.monotonic() + stacks.WITHIN_S
        self._longest_s = self._collect_s + LINES_S
        return ""

    def collected(self, now_s: float) -> tuple[str, tuple[StuckRank, ...], tuple[RankCalls, ...]] | None:
        """Return, once the stacks are written, a text that names their files, where each rank is, and the collectives
        of those that have written theirs; None before."""
        if self._dump is None or now_s < self._collect_s:
            return None
        if self._collectives is not None and self._collectives.is_awaited and now_s < self._longest_s:
            self._collect_s = now_s + AGAIN_S
            return None
        dump, self._dump = self._dump, None
        calls = () if self._collectives is None else self._collectives.collect()
        return ", ".join(dump.collect()) or dump.missing, dump.stuck(), calls


def find_stopped(ranks: Mapping[str, int]) -> tuple[StuckRank, ...]:
    """Return those of *ranks* (pid by name) whose processes cannot run: "rank 1 is stopped (SIGSTOP)"."""
    return tuple(
        StuckRank(process=name, activity="unobserved", process_state=state)
        for name, pid in ranks.items()
        if (state := unusual_state(pid))
    )
