"""Supervises a host from the first phase to the last: signals, console, guardian, link to the other hosts.

Goals, in this order: exit statuses are true; a stop reaches the script at once, and only the script; no process is
orphaned; no line is lost; nothing blocks (the console is written without blocking, and work that may block runs in a
process of its own). One thread, one `poll`. Times are time.monotonic, so that setting the clock changes nothing; those
that are reported are in nanoseconds.

phases.py runs a phase under a supervisor.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from toolkit.errors import assert_never
from toolkit.job.events import Heard, Stop
from toolkit.log import Log
from toolkit.train.supervise import limits
from toolkit.train.supervise.console import Console
from toolkit.train.supervise.deferred_work import DeferredWork
from toolkit.train.supervise.guardian import Guardian
from toolkit.train.supervise.hang import HangSettings
from toolkit.train.supervise.kernel import PR_SET_CHILD_SUBREAPER, keep_freed_memory, prctl
from toolkit.train.supervise.link import HostLineMonitors, HostLink
from toolkit.train.supervise.liveness import Liveness
from toolkit.train.supervise.outlet import STALLED_STOP_S
from toolkit.train.supervise.poll_loop import PollLoop
from toolkit.train.supervise.signals import Signals, stops
from toolkit.train.supervise.stop_actions import HurryConsole, JobAction, TellStop
from toolkit.train.supervise.stop_facts import HostFacts
from toolkit.train.supervise.stop_machine import StopMachine


class Supervisor:
    """Holds and serves all that the phases of a job share.

    *run_folder* is private to this run. *marker* ("NAME=value") is in the environment of every process that `train`
    starts. *python* runs the rank shims. *alone*: the job has no other host. *link* is None then, and also where
    there is no link to the other hosts. *once_running* is called once, shortly after the first process was started;
    *on_hang* at each hang, with the seconds for which no rank was active.
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
        link: HostLink | None = None,
        hang: HangSettings | None = None,
        line_monitors: HostLineMonitors | None = None,
        once_running: Callable[[], None] = lambda: None,
        on_hang: Callable[[float], None] = lambda _idle_s: None,
    ) -> None:
        self.signals = signals
        self.console = console
        self.log = log
        self.run_folder = run_folder
        self.python = python
        self.alone = alone
        self.link = link
        self.hang = hang
        self.on_hang = on_hang
        self.line_monitors = line_monitors
        self.deferred = DeferredWork(once_running)
        self.liveness = Liveness(run_folder)
        self.machine = StopMachine(console.host, linked=link is not None)
        self.prctl = prctl()
        self.open_files = limits.raise_open_files()
        self.prctl(PR_SET_CHILD_SUBREAPER, 1)
        keep_freed_memory()
        # The pids of children that belong to no phase, and whose end no phase waits for, until they are reaped.
        self.apart: set[int] = set()
        self._marker = marker
        self.guardian = None if os.getpid() == 1 else Guardian(marker, prctl=self.prctl)

    def attend(self, done: Callable[[], bool], *fds: int) -> None:
        """Serve signals, the console and the other hosts until *done* returns True. It is called at least once a second
        and whenever one of *fds* is ready."""
        poll_loop = PollLoop(self.console)
        link_fds = (self.link.fd,) if self.link is not None else ()
        for fd in (self.signals.fd, *fds, *link_fds):
            poll_loop.watch(fd, lambda: None)
        while not done():
            poll_loop.step(min(1.0, self.link.due_in_s()) if self.link is not None else 1.0)
            self.liveness.beat(time.monotonic())
            self.notice()
        poll_loop.release()

    def notice(self) -> None:
        """Handle the signals and the events of other hosts that came while no phase was running."""
        stops = [entry for entry in self.take_signals() if isinstance(entry, Stop)]
        for event in (*stops, *self.take_events()):
            for action in self.machine.note_for_job(event, HostFacts(now_ns=time.monotonic_ns())):
                self.carry_out(action)

    def take_events(self) -> list[Heard]:
        """Serve the link to the other hosts and return the events that came."""
        return self.link.serve() if self.link is not None else []

    def carry_out(self, action: JobAction) -> None:
        """Carry out an action that concerns no phase."""
        match action:
            case HurryConsole():
                for outlet in self.console.outlets:
                    outlet.patience_s = STALLED_STOP_S
            case TellStop(stop=stop):
                assert self.link is not None, "the machine has nothing to tell where there is no link"
                self.link.tell_stop(stop)
            case _:
                assert_never(action)

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
                self.guardian.note_process(pid)

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
