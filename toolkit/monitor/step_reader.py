"""Collects the steps of this host's ranks: from the start-up hook's rings, else from heartbeats (toolkit.status)."""

import os
from pathlib import Path

from toolkit.monitor.processes import ancestors
from toolkit.monitor.rings import MOST_RINGS, Ring, step_of
from toolkit.series import pauses, start_up
from toolkit.series.pauses import RankPauses
from toolkit.series.start_up import RankStart
from toolkit.series.step_records import SECONDS, StepRecord
from toolkit.status_pages import pages
from toolkit.status_pages.layout import PAUSES_NAME, RANK_NAME, START_NAME, STEPS_NAME

_RING = STEPS_NAME.partition("%")[0]


class StepReader:
    """`drain` returns what is new. Call it about once a second: a ring keeps 4,096 steps, a page only the last one."""

    def __init__(self, folder: Path, attempt: int, offset_s: float) -> None:
        """*offset_s*: seconds since the epoch less seconds of the monotonic clock."""
        self._folder = folder
        self._attempt = attempt
        self._offset_s = offset_s
        self._ranks: dict[int, int] = {}
        self._rings: dict[int, Ring] = {}
        self._rank_of: dict[int, int] = {}
        self._beats: dict[int, int] = {}
        self._changed_ns = 0
        self._pauses: dict[int, RankPauses] = {}
        self._pauses_changed_ns: dict[int, int] = {}
        self._starts: dict[int, RankStart] = {}
        self._started: set[int] = set()

    def add(self, rank: int, pid: int) -> None:
        """Note that *rank* runs as *pid*."""
        self._ranks[pid] = rank

    def drain(self) -> list[StepRecord]:
        """Return the steps that ended since the last call, by rank."""
        self._open()
        steps = []
        for pid, ring in tuple(self._rings.items()):
            rank = self._rank(pid)
            if rank is None:
                continue
            try:
                new = list(ring.new())
            except (OSError, ValueError):
                continue  # A file that was cut: the rank's own doing.
            steps += [step_of(rank, self._attempt, self._offset_s, *fields) for fields in new]
        return steps + self._heartbeats()

    def read_pauses(self) -> dict[int, RankPauses] | None:
        """Return where each rank was in its pauses, None if nothing is new since the last call."""
        is_new = False
        for pid in self._rings:
            path = self._folder / (PAUSES_NAME % pid)
            try:
                changed_ns = path.stat().st_mtime_ns
            except OSError:
                continue  # It has not paused yet.
            rank = self._rank(pid)
            if rank is None or self._pauses_changed_ns.get(pid) == changed_ns:
                continue
            self._pauses_changed_ns[pid] = changed_ns
            new = pauses.read_rank(path)
            # Of several processes of a rank, the one that pauses most counts.
            if new is not None and new.samples >= self._pauses.get(rank, RankPauses()).samples:
                self._pauses[rank], is_new = new, True
        return self._pauses if is_new else None

    def read_starts(self) -> dict[int, RankStart] | None:
        """Return what each rank did before its first step, None if nothing is new since the last call."""
        is_new = False
        for pid in self._rings.keys() - self._started:
            rank = self._rank(pid)
            start = start_up.read_rank(self._folder / (START_NAME % pid)) if rank is not None else None
            if rank is None or start is None:
                continue  # It is written just after the ring.
            self._started.add(pid)
            if start.before_s >= self._starts.get(rank, start).before_s:
                self._starts[rank], is_new = start, True
        return self._starts if is_new else None

    def close(self) -> None:
        for ring in self._rings.values():
            ring.close()

    def _open(self) -> None:
        """Open the rings that were made since the last look."""
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
            if changed_ns == self._changed_ns or len(self._rings) >= MOST_RINGS:
                return
            self._changed_ns = changed_ns
            names = [name for name in os.listdir(self._folder) if name.startswith(_RING)]
        except OSError:
            return  # No rank has started yet.
        for name in names:
            digits = name.removeprefix(_RING)
            if digits.isdecimal() and int(digits) not in self._rings:
                try:
                    self._rings[int(digits)] = Ring(self._folder / name)
                except (OSError, ValueError):
                    self._changed_ns = 0  # It is being written: look again.

    def _rank(self, pid: int) -> int | None:
        """Return the rank that *pid* is, or that started it; the only rank, if *pid* has ended."""
        if pid in self._ranks:
            return self._ranks[pid]
        if pid not in self._rank_of:
            above = next((self._ranks[ancestor] for ancestor in ancestors(pid) if ancestor in self._ranks), None)
            if above is None and len(self._ranks) == 1:
                above = next(iter(self._ranks.values()))
            if above is None:
                return None
            self._rank_of[pid] = above
        return self._rank_of[pid]

    def _heartbeats(self) -> list[StepRecord]:
        """Return the newest heartbeat of each rank whose steps the hook does not measure."""
        steps = []
        measured = {self._rank(pid) for pid in self._rings}
        for pid, rank in self._ranks.items():
            if rank in measured:
                continue
            page = pages.read_rank(self._folder / (RANK_NAME % pid))
            if (
                page is None
                or page.step is None
                or page.step_time_ns is None
                or self._beats.get(pid) == page.heartbeats
            ):
                continue
            self._beats[pid] = page.heartbeats
            step_s = page.step_ns / 1e9 if page.step_ns else None
            durations = (step_s, *[None] * (len(SECONDS) - 1))
            steps.append(step_of(rank, self._attempt, self._offset_s, page.step, page.step_time_ns, durations))
        return steps
