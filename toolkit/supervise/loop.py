"""What supervises a host from the first phase to the last: signals, console, guardian.

Goals, in this order: the exit statuses are true; a stop reaches the script at once and alone; nothing is orphaned; no
line is lost; nothing blocks (console writes only where they cannot, everything that may block is a process). One
thread, one `poll`. Times: time.monotonic, in nanoseconds for what is reported: a clock that is set changes nothing.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from toolkit.job.events import AllReady, Event, JobEnded, LeaderDone, NextAttempt, PeerFailed, Stop
from toolkit.job.outcome import Ended
from toolkit.job.plan import Locked, Need, Phase
from toolkit.log import Log
from toolkit.supervise import children, limits, waiting
from toolkit.supervise.console import Console
from toolkit.supervise.guardian import Guardian
from toolkit.supervise.hang import Stall
from toolkit.supervise.kernel import PR_SET_CHILD_SUBREAPER, prctl
from toolkit.supervise.others import Others, Rules
from toolkit.supervise.outlet import STALLED_STOP_S
from toolkit.supervise.pulse import Pulse
from toolkit.supervise.running import Running
from toolkit.supervise.signals import Signals, Wishes, stops


class Supervisor:
    """Runs phases, one after the other.

    *run_folder* is private to this run; *marker* ("NAME=value") stands in the environment of all we start; *python*
    runs the rank shims. *alone*: the job has no other host; *others* is None, too, where those cannot be talked to.
    """

    def __init__(
        self,
        *,
        signals: Signals,
        console: Console,
        log: Log,
        run_folder: Path,
        marker: str,
        python: str,
        alone: bool,
        others: Others | None = None,
        stall: Stall | None = None,
        rules: Rules | None = None,
    ) -> None:
        self.signals = signals
        self.console = console
        self.log = log
        self.run_folder = run_folder
        self.python = python
        self.alone = alone
        self.others = others
        self.stall = stall
        self.rules = rules
        self.pulse = Pulse(run_folder)
        self.peer_failed = False
        self.settled = False
        self._may_start = False
        self.leader_done = False
        self.prctl = prctl()
        self.open_files = limits.raise_open_files()
        self.prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._marker = marker
        self.guardian = None if os.getpid() == 1 else Guardian(marker, prctl=self.prctl)
        self.stopped_by: int | None = None
        self.stopped_at_ns: int | None = None
        self._wishes = Wishes()

    def run(self, phase: Phase) -> Ended | None:
        """Wait for the phase's needs, run its processes to their end, and return what was seen (None: skipped).

        Raises:
            UserError: its program cannot be started.
            PlatformError: this host has run out of descriptors, processes or memory.
        """
        try:
            return self._run(phase)
        except OSError as error:
            told = limits.exhausted(error)
            if told is None:
                raise
            raise told from error

    def _run(self, phase: Phase) -> Ended | None:
        with _locks(phase.needs, self.log.warning) as locks:
            missing = _Waiting(self, locks).run(phase.needs)
            if missing and not self.ends:
                return self._not_started(phase, missing)
            if not self.ends and phase.skip_if is not None and phase.skip_if.exists():
                return None
            if not self.ends and phase.together and self.others is not None:
                self.others.ready()
                self.attend(lambda: self._may_start or self.ends)
            if self.ends:
                return self._not_started(phase, ())
            return Running(self, phase).run()

    @property
    def ends(self) -> bool:
        """True if nothing new should be started: a stop came, another host failed, or the job's end is known."""
        return self.stopped_by is not None or self.peer_failed or self.settled

    def attend(self, done: Callable[[], bool], *fds: int, deadline_s: float | None = None) -> None:
        """Serve signals, the console and the other hosts until *done*, called at least whenever one of *fds* is ready.

        *deadline_s*: on the monotonic clock, when to give up.
        """
        while not done():
            poll = select.poll()
            for fd in (self.signals.fd, *fds):
                poll.register(fd, select.POLLIN)
            for outlet in self.console.outlets:
                if outlet.pending_bytes:
                    poll.register(outlet.fd, select.POLLOUT)
            waits = [1.0]
            if deadline_s is not None:
                waits.append(deadline_s - time.monotonic())
            if self.others is not None:
                poll.register(self.others.fd, select.POLLIN)
                waits.append(self.others.rest_s())
            if min(waits) > 0:
                poll.poll(min(waits) * 1000 + 1)
            self.pulse.beat(time.monotonic())
            self.take_signals()
            self.hear()
            for outlet in self.console.outlets:
                outlet.pump()
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return

    def hear(self) -> list[Event]:
        """Serve the link to the other hosts and return the events that came."""
        events = self.others.serve() if self.others is not None else []
        for event in events:
            if isinstance(event, Stop) and self.stopped_by is None:
                self._note_stop(event.signal)
            elif isinstance(event, NextAttempt):
                self.peer_failed = self.settled = self._may_start = self.leader_done = False
            self.peer_failed = self.peer_failed or isinstance(event, PeerFailed)
            self.settled = self.settled or isinstance(event, JobEnded)
            self.leader_done = self.leader_done or isinstance(event, LeaderDone)
            self._may_start = self._may_start or isinstance(event, AllReady)
        return events

    def finish(self) -> None:
        """Put out what the console still has to take, as long as it takes any, and dismiss the guardian."""
        self.console.outlets.flush()
        if self.guardian is not None:
            self.guardian.dismiss()

    def renew_guardian(self, pids: Iterable[int]) -> None:
        """Take another guardian in place of one that somebody has ended, and tell it of *pids*, which live."""
        if self.guardian is not None:
            self.guardian.close()
            self.guardian = Guardian(self._marker, prctl=self.prctl)
            for pid in pids:
                self.guardian.tell(pid)

    def take_signals(self) -> list[int]:
        """Return the signals that came, without repeats of the same wish to stop; the first stop signal is kept."""
        now_s = time.monotonic()
        numbers = [n for n in self.signals.take() if not stops(n) or self._wishes.is_new(n, now_s)]
        if signal.SIGCHLD in numbers and self.guardian is not None:
            self.guardian.wake()  # The kernel says in this way, too, that a child was stopped.
        if signal.SIGTSTP in numbers:
            self.log.info("SIGTSTP is ignored: a job cannot be suspended, and goes on")
        for number in numbers:
            if stops(number) and self.stopped_by is None:
                self._note_stop(number)
                if self.others is not None:
                    self.others.stop(Stop(host=self.console.host, signal=number))
        return numbers

    @property
    def insisted(self) -> bool:
        """True if this host was told to stop, and a second or more later told again."""
        return self._wishes.insisted

    def _note_stop(self, number: int) -> None:
        """Keep the first wish to stop; from now on less is waited for a console that takes nothing."""
        self.stopped_by = number
        self.stopped_at_ns = time.monotonic_ns()
        for outlet in self.console.outlets:
            outlet.patience_s = STALLED_STOP_S

    def _not_started(self, phase: Phase, missing: tuple[str, ...]) -> Ended:
        return Ended(
            phase=phase.name,
            failure=phase.failure,
            command=phase.main.argv,
            exits=(),
            main=phase.main.name,
            stopped_by=self.stopped_by,
            stopped_at_ns=self.stopped_at_ns,
            missing=missing,
            peer_failed=self.peer_failed or (self.settled and self.stopped_by is None),
        )


class _Waiting:
    """Waits for needs, by a process of its own, while signals and the console stay served."""

    def __init__(self, around: Supervisor, locks: dict[str, int]) -> None:
        self._around = around
        self._locks = locks
        self._missing: tuple[str, ...] = ()

    def run(self, needs: tuple[Need, ...]) -> tuple[str, ...]:
        """Return what was missing at the deadline, () if all needs are met or a stop came."""
        needs = tuple(n for n in needs if not (isinstance(n, Locked) and self._is_free(str(n.path))))
        self._around.take_signals()
        self._around.hear()
        if not needs or self._around.ends:
            return ()
        read_end, write_end = os.pipe()
        pid = children.fork_call(lambda: waiting.wait(needs, self._locks, write_end), prctl=self._around.prctl)
        os.close(write_end)
        with os.fdopen(read_end, "rb", buffering=0) as tells:
            os.set_blocking(read_end, False)
            return self._watch(pid, tells.fileno())

    def _is_free(self, path: str) -> bool:
        """True if nobody holds the lock at *path*, or it is one that is not waited for; now we hold it."""
        return path not in self._locks or waiting.take(self._locks[path])

    def _watch(self, pid: int, tells: int) -> tuple[str, ...]:
        ended: list[int] = []
        open_ends = [tells]

        def over() -> bool:
            if open_ends and not self._hear(tells):
                open_ends.clear()
            if self._around.ends:
                children.send(pid, signal.SIGKILL)
            ended.extend(status for reaped, status, _ in children.reap() if reaped == pid)
            return bool(ended)

        self._around.attend(over, tells)
        self._hear(tells)
        return self._missing if ended[0] and not self._around.ends else ()

    def _hear(self, tells: int) -> bool:
        """Say what the waiting process tells; False at its end."""
        try:
            told = os.read(tells, 1 << 16)
        except BlockingIOError:
            return True
        if told:
            self._missing = tuple(told.decode().rstrip("\n").rpartition("\n\n")[2].splitlines())
            self._around.log.info("waiting for " + "; for ".join(self._missing))
            if self._around.others is not None:
                self._around.others.waits(self._missing)
        return bool(told)


@contextlib.contextmanager
def _locks(needs: tuple[Need, ...], warn: Callable[[str], None]) -> Iterator[dict[str, int]]:
    locks = waiting.open_locks(needs, warn)
    try:
        yield locks
    finally:
        for lock in locks.values():
            os.close(lock)
