"""Runs one phase: from the start of its first process to the last byte of output.

Everything that happens becomes an event (job/events.py), one at a time. The stop machine answers each event with
actions, and effects.py carries them out.
"""

import math
import signal
import time
from collections import deque

from toolkit.job import events
from toolkit.job.outcome import PhaseEnd
from toolkit.job.plan import Phase
from toolkit.train.supervise import children
from toolkit.train.supervise.daemons import Daemons
from toolkit.train.supervise.effects import Effects
from toolkit.train.supervise.hang import HangWatch
from toolkit.train.supervise.hang_reports import HangReports
from toolkit.train.supervise.phase_record import PhaseRecord
from toolkit.train.supervise.poll_loop import PollLoop
from toolkit.train.supervise.processes import Processes
from toolkit.train.supervise.reaper import Reaper
from toolkit.train.supervise.shim_requests import ShimRequests
from toolkit.train.supervise.signals import FORWARDED
from toolkit.train.supervise.stop_facts import HostFacts, policy_of
from toolkit.train.supervise.stop_request import STATUS_FOLDER
from toolkit.train.supervise.stop_times import KILL_S
from toolkit.train.supervise.supervisor import Supervisor


class PhaseRun:
    """Runs one phase; `run` returns what was observed."""

    def __init__(self, supervisor: Supervisor, phase: Phase) -> None:
        self._supervisor = supervisor
        self._phase = phase
        self._log = supervisor.log
        self._machine = supervisor.machine
        self._poll_loop = PollLoop(supervisor.console)
        status_folder = supervisor.run_folder / STATUS_FOLDER
        self._record = PhaseRecord(phase, self._machine, status_folder, supervisor.open_files, self._log.warning)
        self._processes = Processes(supervisor, phase, self._poll_loop, self._record.note)
        self._daemons = Daemons(supervisor.link)
        watched = supervisor.hang if phase.together else None
        watch = HangWatch(watched, phase.main.environ, supervisor.prctl) if watched is not None else None
        self._hangs = HangReports(
            watch, self._processes, self._record, self._poll_loop, supervisor.liveness, supervisor.on_hang, self._log
        )
        self._reaper = Reaper(supervisor, self._processes, self._record, self._post)
        self._effects = Effects(
            supervisor,
            phase,
            self._processes,
            self._record,
            self._poll_loop,
            self._daemons,
            self._hangs,
            self._reaper,
            self._post,
        )
        linked = supervisor.link is not None
        self._policy = policy_of(phase, alone=supervisor.alone, linked=linked, on_hang=self._hangs.policy)
        self._events: deque[events.Event] = deque()
        self._answering = False
        self._child_ended = False

    def run(self) -> PhaseEnd:
        """Start the phase's process and return when no process of the phase is left and all output is read.

        Raises:
            UserError: it cannot be started.
        """
        self._machine.begin(self._policy, time.monotonic())
        self._poll_loop.watch(self._supervisor.signals.fd, self._on_signal)
        if self._supervisor.link is not None:
            self._poll_loop.watch(self._supervisor.link.fd, self._on_link)
        shims = ShimRequests(
            self._poll_loop, self._processes, self._daemons, self._record, self._machine, self._log, self._post
        )
        try:
            for service in self._phase.services:
                self._processes.start_service(service)
            self._processes.start_main()
            self._supervisor.deferred.note_start(time.monotonic())
            self._child_ended = True  # A child may have ended already; looking costs one system call.
            while self._machine.state != "done":
                self._poll_loop.step(self._timeout_s())
                self._on_step(time.monotonic())
        finally:
            shims.close()
            if self._machine.state != "done":  # After an internal error.
                self._abandon()
            self._machine.end()
        self._hangs.collect(math.inf)
        self._poll_loop.end()
        self._log.attempt("the ranks' files could not be closed", self._processes.close_files, None)
        return self._record.so_far(self._processes)

    def _abandon(self) -> None:
        """Kill everything that this phase started, and relay the output that is left."""
        self._processes.kill_all()
        ends_s = time.monotonic() + KILL_S
        while self._processes.any_left() and time.monotonic() < ends_s:
            self._processes.kill_left()
            for pid, _, _ in children.reap():
                self._supervisor.apart.discard(pid)
        self._effects.report_survivors()
        self._poll_loop.drain()
        self._poll_loop.end()

    # --- events and answers

    def _post(self, event: events.Event) -> None:
        """Queue *event*; the machine answers events in the order in which they came."""
        self._events.append(event)
        if self._answering:
            return
        self._answering = True
        try:
            while self._events:
                next_event = self._events.popleft()
                for action in self._machine.on(next_event, self._facts())[1]:
                    self._effects.carry_out(action)
        finally:
            self._answering = False

    def _facts(self) -> HostFacts:
        processes = self._processes
        ranks = len(processes.ranks)
        return HostFacts(
            now_ns=time.monotonic_ns(),
            ranks=ranks,
            main=bool(processes.main),
            living=bool(processes.living),
            had_ranks=processes.had_ranks,
            ranks_ended_well=self._record.ranks_ended_well == len(processes.spec.starts_ranks),
            drained=self._poll_loop.drained,
            drained_by_s=self._poll_loop.patience_ends_s(),
        )

    def _timeout_s(self) -> float | None:
        now_s = time.monotonic()
        supervisor = self._supervisor
        waits = [supervisor.liveness.due_in_s(now_s), supervisor.deferred.due_in_s(now_s)]
        waits += [self._machine.due_in_s(now_s), self._hangs.due_in_s(now_s)]
        if self._supervisor.link is not None:
            waits.append(self._supervisor.link.due_in_s())
        line_monitors = self._supervisor.line_monitors
        monitors_due_in_s = line_monitors.due_in_s() if line_monitors is not None else None
        if monitors_due_in_s is not None and not isinstance(self._machine.cause, events.RuleMatched):
            waits.append(monitors_due_in_s)
        due_in_s = min(waits)
        return due_in_s if due_in_s < math.inf else None

    def _on_step(self, now_s: float) -> None:
        """Do what no descriptor triggers: reap children, check deadlines, hangs and log rules."""
        if self._child_ended:
            self._child_ended = False
            self._reaper.reap()
        if self._supervisor.link is not None and self._supervisor.link.due_in_s() <= 0.01:
            self._on_link()
        self._supervisor.liveness.beat(now_s)
        self._supervisor.deferred.serve(now_s)
        if self._machine.hurries:
            self._poll_loop.give_up_stalled()
        self._check_for_hang(now_s)
        self._apply_rules()
        if self._machine.is_due(now_s):
            self._post(events.Tick())

    # --- sources of events

    def _on_signal(self) -> None:
        for entry in self._supervisor.take_signals():
            if isinstance(entry, events.Stop):
                self._post(entry)
            elif entry in FORWARDED:
                self._effects.signal_ranks(entry, noted=False)
            elif entry == signal.SIGCHLD:
                self._child_ended = True

    def _on_link(self) -> None:
        for event in self._supervisor.take_events():
            if isinstance(event, events.PeerFailed):
                self._reaper.reap()  # A rank that has failed by now failed by itself: `train` has not signalled it yet.
            self._post(event)

    def _check_for_hang(self, now_s: float) -> None:
        idle_s = self._hangs.idle_s(now_s) if self._machine.undisturbed else None
        if idle_s is not None and self._supervisor.link is not None:
            self._supervisor.link.tell_idle(idle_s)
        elif idle_s:
            self._post(events.Hang(seconds=idle_s))
        if self._hangs.collect(now_s):
            if self._record.hung is not None and self._supervisor.link is not None:
                self._supervisor.link.tell_own_failure(self._record.so_far(self._processes))
            self._post(events.StacksWritten())

    def _apply_rules(self) -> None:
        line_monitors = self._supervisor.line_monitors
        if line_monitors is None or not self._phase.together or isinstance(self._machine.cause, events.RuleMatched):
            return
        if line_monitors.due_in_s() == 0:
            line_monitors.tick()
        if line_monitors.ruled is not None and self._machine.undisturbed:
            self._post(events.RuleMatched(ruled=line_monitors.ruled))
        if line_monitors.stop_rule and self._machine.undisturbed:
            host = self._supervisor.console.host
            self._post(events.Stop(host=host, signal=signal.SIGTERM, rule=line_monitors.stop_rule))
