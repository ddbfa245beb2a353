"""A phase's reports of hangs: that no rank is active, and where its ranks are."""

import math
import time
from collections.abc import Callable

import msgspec

from toolkit.job.events import Hang, HangNoticed
from toolkit.job.outcome import DetectedHang
from toolkit.log import Log
from toolkit.train.supervise.hang import HangWatch, find_stopped
from toolkit.train.supervise.liveness import Liveness
from toolkit.train.supervise.phase_record import PhaseRecord
from toolkit.train.supervise.poll_loop import PollLoop
from toolkit.train.supervise.processes import Processes
from toolkit.train.supervise.stop_facts import OnHang


class HangReports:
    """*watch* None: this host does not look for hangs."""

    def __init__(
        self,
        watch: HangWatch | None,
        processes: Processes,
        record: PhaseRecord,
        poll_loop: PollLoop,
        liveness: Liveness,
        on_hang: Callable[[float], None],
        log: Log,
    ) -> None:
        self._watch = watch
        self._processes = processes
        self._record = record
        self._poll_loop = poll_loop
        self._liveness = liveness
        self._on_hang = on_hang
        self._log = log

    @property
    def policy(self) -> OnHang:
        """The consequence of a hang on this host."""
        if self._watch is None:
            return "unseen"
        return "stop" if self._watch.stops else "report"

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until something is due."""
        return self._watch.due_in_s(now_s) if self._watch is not None else math.inf

    def idle_s(self, now_s: float) -> float | None:
        """Return the seconds without activity of any rank here, 0 if that is no hang yet, None if no look is due."""
        if self._watch is None:
            return None
        idle_s = self._watch.idle_s(self._processes.written_bytes(), now_s)
        if idle_s and (stalled_s := self._poll_loop.stalled_s()):
            self._log.warning(
                f"the console has taken nothing for {stalled_s:.0f} s: ranks no longer wait for it, "
                "and further output is lost while it takes nothing"
            )
            self._poll_loop.give_up_stalled(0.0)
            return 0.0
        return idle_s

    def report(self, event: Hang | HangNoticed) -> None:
        """Log that no rank is active; if the hang ends the job, keep the ranks whose processes cannot run."""
        if self._watch is None:
            return
        stuck_ranks = find_stopped(self._processes.rank_pids)
        states = "".join(f"; {rank.process} is {rank.process_state}" for rank in stuck_ranks)
        stacks = f"their stacks go to {self._watch.folder}"
        self._log.error(f"no rank has written or computed anything for {event.seconds:.0f} s{states}: {stacks}")
        self._liveness.note_hang(event.seconds)
        self._on_hang(event.seconds)
        if isinstance(event, Hang) and self._watch.stops:
            self._record.hung = DetectedHang(idle_s=event.seconds, seen_ns=time.monotonic_ns(), stuck_ranks=stuck_ranks)

    def dump(self) -> bool:
        """Have the stacks of all ranks written; return False if they cannot be."""
        problem = self._watch.dump(self._processes.rank_pids) if self._watch is not None else ""
        if problem:
            self._record.note(problem)
        return not problem

    def collect(self, now_s: float) -> bool:
        """Read the stacks if they are due; return True if they were due, even if they could not be read."""
        return self._log.attempt("the stacks could not be collected", lambda: self._collect(now_s), True)

    def _collect(self, now_s: float) -> bool:
        written = self._watch.collected(now_s) if self._watch is not None else None
        if written is None:
            return False
        files, stuck, calls = written
        self._record.note(f"stacks: {files}")
        if self._record.hung is not None:
            self._record.hung = msgspec.structs.replace(self._record.hung, stuck_ranks=stuck, rank_calls=calls)
        return True
