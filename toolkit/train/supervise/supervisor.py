"""Supervises a host from the first phase to the last: signals, console, guardian.

Goals, in this order: exit statuses are true; a stop reaches the script at once, and only the script; no process is
orphaned; no line is lost; nothing blocks (the console is written without blocking, and work that may block runs in a
process of its own). One thread, one `poll`. Times are time.monotonic, so that setting the clock changes nothing; those
that are reported are in nanoseconds.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from toolkit.folders import as_absent, exists
from toolkit.job.events import Event, Heard, Stop
from toolkit.job.outcome import SIGNALLING_S, Ended
from toolkit.job.plan import Locked, Need, Phase
from toolkit.log import Log
from toolkit.train.supervise import children, limits, waiting
from toolkit.train.supervise.console import Console
from toolkit.train.supervise.deferred_work import Later
from toolkit.train.supervise.guardian import Guardian
from toolkit.train.supervise.hang import HangSettings
from toolkit.train.supervise.kernel import PR_SET_CHILD_SUBREAPER, keep_freed_memory, prctl
from toolkit.train.supervise.link import Others, Rules
from toolkit.train.supervise.liveness import Pulse
from toolkit.train.supervise.outlet import STALLED_STOP_S
from toolkit.train.supervise.phase_run import Running
from toolkit.train.supervise.poll_loop import Flow
from toolkit.train.supervise.signals import Signals, stops
from toolkit.train.supervise.stop_facts import Facts
from toolkit.train.supervise.stop_machine import StopMachine
from toolkit.train.supervise.stop_table import Action


class Supervisor:
    """Runs phases, one after the other.

    *run_folder* is private to this run. *marker* ("NAME=value") is in the environment of every process that `train`
    starts. *python* runs the rank shims. *alone*: the job has no other host. *others* is None then, and also where
    there is no link to them. *once_running* is called once, shortly after the first process was started.
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
        hang: HangSettings | None = None,
        rules: Rules | None = None,
        once_running: Callable[[], None] = lambda: None,
    ) -> None:
        self.signals = signals
        self.console = console
        self.log = log
        self.run_folder = run_folder
        self.python = python
        self.alone = alone
        self.others = others
        self.hang = hang
        self.rules = rules
        self.later = Later(once_running)
        self.pulse = Pulse(run_folder)
        self.machine = StopMachine(console.host, linked=others is not None)
        self.prctl = prctl()
        self.open_files = limits.raise_open_files()
        self.prctl(PR_SET_CHILD_SUBREAPER, 1)
        keep_freed_memory()
        self._marker = marker
        self.guardian = None if os.getpid() == 1 else Guardian(marker, prctl=self.prctl)

    def run(self, phase: Phase) -> Ended | None:
        """Wait for the phase's needs, run its processes to their end, and return what was observed (None: skipped).

        Raises:
            UserError: its program cannot be started.
            PlatformError: this host has run out of descriptors, processes or memory.
        """
        try:
            return self._run(phase)
        except OSError as error:
            limit = limits.exhausted(error)
            if limit is None:
                raise
            raise limit from error

    def _run(self, phase: Phase) -> Ended | None:
        with _locks(phase.needs, self.log.warning) as locks:
            missing = _Waiting(self, locks).run(phase.needs)
            if missing and not self.machine.job.ends:
                return self._not_started(phase, missing)
            if not self.machine.job.ends and phase.skip_if is not None and exists(phase.skip_if, as_absent):
                return None
            if not self.machine.job.ends and phase.together and self.others is not None:
                self.others.ready()
                with self.pulse.doing("waiting"):
                    self.attend(lambda: self.machine.job.may_start or self.machine.job.ends)
            if self.machine.job.ends:
                return self._not_started(phase, ())
            return self._with_late_stop(Running(self, phase).run())

    def _with_late_stop(self, ended: Ended) -> Ended:
        """Return *ended* with the stop signal that the script may have got before `train`.

        A platform that signals each process of a job, one after the other, may reach `train` last, after the script
        has ended. The guardian has then been signalled as well, so wait for `train`'s own signal.
        """
        sent = self.guardian.was_sent() if self.guardian is not None else set()
        if not sent:
            return ended
        ends_s = time.monotonic() + SIGNALLING_S
        self.attend(lambda: self.stopped_by is not None or time.monotonic() >= ends_s)
        if self.stopped_by not in sent:
            return ended
        at_ns = ended.stopped_at_ns or time.monotonic_ns()
        return msgspec.structs.replace(ended, stopped_by=self.stopped_by, stopped_at_ns=at_ns, signalled_each=True)

    def attend(self, done: Callable[[], bool], *fds: int) -> None:
        """Serve signals, the console and the other hosts until *done* returns True. It is called at least once a second
        and whenever one of *fds* is ready."""
        flow = Flow(self.console)
        others = (self.others.fd,) if self.others is not None else ()
        for fd in (self.signals.fd, *fds, *others):
            flow.watch(fd, lambda: None)
        while not done():
            flow.step(min(1.0, self.others.rest_s()) if self.others is not None else 1.0)
            self.pulse.beat(time.monotonic())
            self.notice()
        flow.release()

    def notice(self) -> None:
        """Handle the signals and the events of other hosts that came while no phase was running."""
        events = [came for came in self.take_signals() if isinstance(came, Stop)]
        for event in (*events, *self.hear()):
            for action in self.machine.on(event, Facts(now_ns=time.monotonic_ns()))[1]:
                self.carry_out(action, event)

    def hear(self) -> list[Heard]:
        """Serve the link to the other hosts and return the events that came."""
        return self.others.serve() if self.others is not None else []

    def carry_out(self, action: Action, event: Event) -> None:
        """Carry out an action that concerns no phase."""
        if action is Action.HURRY:
            for outlet in self.console.outlets:
                outlet.patience_s = STALLED_STOP_S
        elif action is Action.TELL_STOP and isinstance(event, Stop) and self.others is not None:
            self.others.stop(event)

    def finish(self) -> None:
        """Write what is pending for the console, as long as it takes any, and dismiss the guardian."""
        self.console.outlets.flush()
        if self.guardian is not None:
            self.guardian.dismiss()

    def renew_guardian(self, pids: Iterable[int]) -> None:
        """Start another guardian in place of one that was killed, and report *pids*, which live, to it."""
        if self.guardian is not None:
            self.guardian.close()
            self.guardian = Guardian(self._marker, prctl=self.prctl)
            for pid in pids:
                self.guardian.tell(pid)

    def take_signals(self) -> list[Stop | int]:
        """Return the signals that came: a Stop for one that stops the job, the number of any other."""
        numbers = self.signals.take()
        if signal.SIGCHLD in numbers and self.guardian is not None:
            self.guardian.wake()  # The kernel also sends SIGCHLD when a child was stopped.
        if signal.SIGTSTP in numbers:
            self.log.info("SIGTSTP is ignored: a job cannot be suspended")
        return [Stop(host=self.console.host, signal=number) if stops(number) else number for number in numbers]

    @property
    def stopped_by(self) -> int | None:
        """The first stop signal that came to any host."""
        return self.machine.job.stop.signal if self.machine.job.stop is not None else None

    def _not_started(self, phase: Phase, missing: tuple[str, ...]) -> Ended:
        return Ended(
            phase=phase.name,
            failure=phase.failure,
            command=phase.main.argv,
            exits=(),
            main=phase.main.name,
            stopped_by=self.stopped_by,
            stopped_at_ns=self.machine.job.stopped_at_ns,
            missing=missing,
            peer_failed=self.machine.job.peer_failed or (self.machine.job.job_ended and self.machine.job.stop is None),
        )


class _Waiting:
    """Waits for needs in a process of its own, while signals and the console are still served."""

    def __init__(self, around: Supervisor, locks: dict[str, int]) -> None:
        self._around = around
        self._locks = locks
        self._missing: tuple[str, ...] = ()

    def run(self, needs: tuple[Need, ...]) -> tuple[str, ...]:
        """Return the needs that were not met at the deadline, () if all are met or a stop came."""
        needs = tuple(n for n in needs if not (isinstance(n, Locked) and self._is_free(str(n.path))))
        self._around.notice()
        if not needs or self._around.machine.job.ends:
            return ()
        read_end, write_end = os.pipe()
        pid = children.fork_call(lambda: waiting.wait(needs, self._locks, write_end), prctl=self._around.prctl)
        os.close(write_end)
        with self._around.pulse.doing("waiting"), os.fdopen(read_end, "rb", buffering=0) as tells:
            os.set_blocking(read_end, False)
            return self._watch(pid, tells.fileno())

    def _is_free(self, path: str) -> bool:
        """True if this process now holds the lock at *path*, or does not wait for that lock."""
        return path not in self._locks or waiting.take(self._locks[path])

    def _watch(self, pid: int, tells: int) -> tuple[str, ...]:
        ended: list[int] = []
        open_ends = [tells]

        def over() -> bool:
            if open_ends and not self._hear(tells):
                open_ends.clear()
            if self._around.machine.job.ends:
                children.send(pid, signal.SIGKILL)
            ended.extend(status for reaped, status, _ in children.reap() if reaped == pid)
            return bool(ended)

        self._around.attend(over, tells)
        self._hear(tells)
        return self._missing if ended[0] and not self._around.machine.job.ends else ()

    def _hear(self, tells: int) -> bool:
        """Log what the waiting process reports; return False at its end."""
        try:
            text = os.read(tells, 1 << 16)
        except BlockingIOError:
            return True
        if text:
            self._missing = tuple(text.decode().rstrip("\n").rpartition("\n\n")[2].splitlines())
            self._around.log.info("waiting for " + "; for ".join(self._missing))
            if self._around.others is not None:
                self._around.others.waits(self._missing)
        return bool(text)


@contextlib.contextmanager
def _locks(needs: tuple[Need, ...], warn: Callable[[str], None]) -> Iterator[dict[str, int]]:
    locks = waiting.open_locks(needs, warn)
    try:
        yield locks
    finally:
        for lock in locks.values():
            os.close(lock)
