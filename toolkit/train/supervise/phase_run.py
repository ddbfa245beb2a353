"""Runs one phase: from the start of its first process to the last byte of output.

Everything that happens becomes an event (job/events.py), one at a time. The stop machine answers each event with
actions, and effects.py carries them out.
"""

import math
import signal
import time
from collections import deque
from typing import Protocol

from toolkit.job import events
from toolkit.job.outcome import Ended
from toolkit.job.plan import Phase
from toolkit.train.supervise import children
from toolkit.train.supervise.daemons import Daemons
from toolkit.train.supervise.deferred_work import Later
from toolkit.train.supervise.effects import Around, Effects
from toolkit.train.supervise.hang import HangSettings, HangWatch
from toolkit.train.supervise.hang_reports import HangReports
from toolkit.train.supervise.liveness import Pulse
from toolkit.train.supervise.phase_record import PhaseRecord
from toolkit.train.supervise.poll_loop import Flow
from toolkit.train.supervise.processes import Processes
from toolkit.train.supervise.reaper import Guarded, Reaper
from toolkit.train.supervise.shim_requests import ShimRequests
from toolkit.train.supervise.signals import FORWARDED, Signals
from toolkit.train.supervise.stop_facts import Facts, policy_of
from toolkit.train.supervise.stop_machine import StopMachine
from toolkit.train.supervise.stop_request import STATUS_FOLDER, Asking
from toolkit.train.supervise.stop_table import Action
from toolkit.train.supervise.stop_times import KILL_S


class Supervision(Around, Guarded, Protocol):
    """The part of loop.Supervisor, which outlives the phase, that a phase uses."""

    machine: StopMachine
    signals: Signals
    alone: bool
    hang: HangSettings | None
    pulse: Pulse
    later: Later

    def take_signals(self) -> list[events.Stop | int]:
        """Return the signals that came: a Stop for one that stops the job, the number of any other."""

    def hear(self) -> list[events.Heard]:
        """Serve the link to the other hosts and return the events that came."""


class Running:
    """Runs one phase; `run` returns what was observed."""

    def __init__(self, around: Supervision, phase: Phase) -> None:
        self._around = around
        self._phase = phase
        self._log = around.log
        self._machine = around.machine
        self._flow = Flow(around.console)
        status_folder = around.run_folder / STATUS_FOLDER
        self._record = PhaseRecord(phase, self._machine, status_folder, around.open_files, self._log.warning)
        self._processes = Processes(around, phase, self._flow, self._record.note)
        self._daemons = Daemons(around.others)
        watched = around.hang if phase.together else None
        watch = HangWatch(watched, phase.main.environ, around.prctl) if watched is not None else None
        self._hangs = HangReports(watch, self._processes, self._record, self._flow, around.pulse, self._log)
        self._effects = Effects(
            around,
            phase,
            self._machine,
            self._processes,
            self._record,
            self._flow,
            Asking(around.run_folder, around.log),
            self._daemons,
            self._hangs,
            self._post,
        )
        self._reaper = Reaper(around, self._machine, self._processes, self._record, self._post)
        linked = around.others is not None
        self._policy = policy_of(phase, alone=around.alone, linked=linked, on_hang=self._hangs.policy)
        self._events: deque[events.Event] = deque()
        self._answering = False
        self._child_ended = False

    def run(self) -> Ended:
        """Start the phase's process and return when no process of the phase is left and all output is read.

        Raises:
            UserError: it cannot be started.
        """
        self._machine.begin(self._policy, time.monotonic())
        self._flow.watch(self._around.signals.fd, self._on_signal)
        if self._around.others is not None:
            self._flow.watch(self._around.others.fd, self._on_others)
        shims = ShimRequests(
            self._flow, self._processes, self._daemons, self._record, self._machine, self._log, self._post
        )
        try:
            for service in self._phase.services:
                self._processes.start_service(service)
            self._processes.start_main()
            self._around.later.begin(time.monotonic())
            self._child_ended = True  # A child may have ended already; looking costs one system call.
            while self._machine.state != "done":
                self._flow.step(self._timeout_s())
                self._on_step(time.monotonic())
        finally:
            shims.close()
            if self._machine.state != "done":  # After an internal error.
                self._abandon()
            self._machine.end()
        self._hangs.collect(math.inf)
        self._flow.end()
        self._log.attempt("the ranks' files could not be closed", self._processes.close_files, None)
        return self._record.so_far(self._processes)

    def _abandon(self) -> None:
        """Kill everything that this phase started, and relay the output that is left."""
        self._processes.kill_all()
        ends_s = time.monotonic() + KILL_S
        while self._processes.any_left() and time.monotonic() < ends_s:
            self._processes.kill_left()
            for _ in children.reap():
                pass
        self._effects.name_left()
        self._flow.drain()
        self._flow.end()

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
                    if action is Action.LOOK:
                        self._reaper.look()
                    else:
                        self._effects.do(action, next_event)
        finally:
            self._answering = False

    def _facts(self) -> Facts:
        processes = self._processes
        ranks = len(processes.ranks)
        return Facts(
            now_ns=time.monotonic_ns(),
            ranks=ranks,
            main=bool(processes.main),
            living=bool(processes.living),
            had_ranks=processes.had_ranks,
            ranks_ended_well=self._record.ranks_ended_well == len(processes.spec.starts_ranks),
            drained=self._flow.drained,
            drained_by_s=self._flow.patience_ends_s(),
        )

    def _timeout_s(self) -> float | None:
        now_s = time.monotonic()
        around = self._around
        waits = [around.pulse.rest_s(now_s), around.later.rest_s(now_s)]
        waits += [self._machine.rest_s(now_s), self._hangs.rest_s(now_s)]
        if self._around.others is not None:
            waits.append(self._around.others.rest_s())
        rules_rest_s = self._around.rules.rest_s() if self._around.rules is not None else None
        if rules_rest_s is not None and not isinstance(self._machine.cause, events.RuleMatched):
            waits.append(rules_rest_s)
        rest_s = min(waits)
        return rest_s if rest_s < math.inf else None

    def _on_step(self, now_s: float) -> None:
        """Do what no descriptor triggers: reap children, check deadlines, hangs and log rules."""
        if self._child_ended:
            self._child_ended = False
            self._reaper.reap()
        if self._around.others is not None and self._around.others.rest_s() <= 0.01:
            self._on_others()
        self._around.pulse.beat(now_s)
        self._around.later.serve(now_s)
        if self._machine.hurries:
            self._flow.give_up_stalled()
        self._look_for_hang(now_s)
        self._heed_rules()
        if self._machine.is_due(now_s):
            self._post(events.Tick())

    # --- sources of events

    def _on_signal(self) -> None:
        for came in self._around.take_signals():
            if isinstance(came, events.Stop):
                self._post(came)
            elif came in FORWARDED:
                self._effects.signal_ranks(came, noted=False)
            elif came == signal.SIGCHLD:
                self._child_ended = True

    def _on_others(self) -> None:
        for event in self._around.hear():
            if isinstance(event, events.PeerFailed):
                self._reaper.reap()  # A rank that has failed by now failed by itself: `train` has not signalled it yet.
            self._post(event)

    def _look_for_hang(self, now_s: float) -> None:
        idle_s = self._hangs.idle_s(now_s) if self._machine.undisturbed else None
        if idle_s is not None and self._around.others is not None:
            self._around.others.idle(idle_s)
        elif idle_s:
            self._post(events.Hang(seconds=idle_s))
        if self._hangs.collect(now_s):
            if self._record.hung is not None and self._around.others is not None:
                self._around.others.answer(self._record.so_far(self._processes))
            self._post(events.StacksWritten())

    def _heed_rules(self) -> None:
        rules = self._around.rules
        if rules is None or not self._phase.together or isinstance(self._machine.cause, events.RuleMatched):
            return
        if rules.rest_s() == 0:
            rules.tick()
        if rules.ruled is not None and self._machine.undisturbed:
            self._post(events.RuleMatched(ruled=rules.ruled))
        if rules.stop_rule and self._machine.undisturbed:
            host = self._around.console.host
            self._post(events.Stop(host=host, signal=signal.SIGTERM, rule=rules.stop_rule))
