"""Carries out the stop machine's actions: signals to processes, messages to other hosts, lines in the log."""

import signal
from collections.abc import Callable, Iterable
from typing import Protocol

from toolkit.job import events
from toolkit.job.outcome import Exit, signal_name
from toolkit.job.plan import Phase
from toolkit.train.supervise import children, waiting
from toolkit.train.supervise.daemons import Daemons
from toolkit.train.supervise.hang_reports import HangReports
from toolkit.train.supervise.link import Others
from toolkit.train.supervise.phase_record import PhaseRecord
from toolkit.train.supervise.poll_loop import Flow
from toolkit.train.supervise.process import Process, command_name, why_unkilled
from toolkit.train.supervise.processes import Home, Processes
from toolkit.train.supervise.shim_server import ShimConnection
from toolkit.train.supervise.signals import passed_on
from toolkit.train.supervise.stop_machine import StopMachine
from toolkit.train.supervise.stop_request import Asking
from toolkit.train.supervise.stop_table import Action
from toolkit.train.supervise.stop_times import KILL_S, LEADER_DONE_S

# The time until every rank knows the step at which all stop: on one host, and across hosts (peers.protocol.AGREE_S plus
# the time on the network).
AGREED_WITHIN_S = 0.05
OTHERS_AGREED_WITHIN_S = 1.5
# The name of the process that waits until no host uses this one's services.
WAITING = "waiting"


class Around(Home, Protocol):
    """The part of loop.Supervisor, which outlives the phase, that actions use."""

    others: Others | None

    def carry_out(self, action: Action, event: events.Event) -> None:
        """Carry out an action that concerns no phase."""


class Effects:
    """Carries out the actions of one phase. *post* takes the events that an action causes."""

    def __init__(
        self,
        around: Around,
        phase: Phase,
        machine: StopMachine,
        processes: Processes,
        record: PhaseRecord,
        flow: Flow,
        asking: Asking,
        daemons: Daemons,
        hangs: HangReports,
        post: Callable[[events.Event], None],
    ) -> None:
        self._around = around
        self._phase = phase
        self._machine = machine
        self._processes = processes
        self._record = record
        self._flow = flow
        self._asking = asking
        self._daemons = daemons
        self._hangs = hangs
        self._post = post
        self._log = around.log
        self._held: list[ShimConnection] = []
        self._killed: set[int] = set()

    def do(self, action: Action, event: events.Event) -> None:
        """Carry out *action*, which the machine returned for *event*."""
        if action in _ON_PROCESSES:
            _ON_PROCESSES[action](self)
        elif isinstance(event, events.RankEnded | events.MainEnded | events.ServiceEnded) and action in _ON_EXIT:
            _ON_EXIT[action](self, event.exit)
        elif isinstance(event, events.RanksSave) and action is Action.SAY_SAVING:
            self._log.info(f"{', '.join(event.names)} is writing a checkpoint: the others wait for it")
        elif isinstance(event, events.StopStep) and action is Action.AGREE_STEP:
            self._asking.agree(event.step)
        elif isinstance(event, events.RankDone) and action is Action.SHOW_RANK_DONE:
            self._asking.show_done(event)
        elif isinstance(event, events.Hang | events.HangNoticed) and action is Action.SAY_HANG:
            self._hangs.say(event)
        elif action in _TO_OTHERS and self._around.others is not None:
            _TO_OTHERS[action](self, self._around.others)
        else:
            self._around.carry_out(action, event)

    # --- processes

    def signal_ranks(self, number: int, *, noted: bool = True) -> None:
        """Send *number* to every rank, or to the launcher if no rank was started yet."""
        self._processes.signal(self._whom(), number, noted=noted)

    def name_left(self) -> None:
        """Note which processes have survived SIGKILL."""
        left = sorted(self._processes.descendants())
        if left:
            names = ", ".join(f"{command_name(pid)} (pid {pid}, {why_unkilled(pid)})" for pid in left)
            self._record.note(f"SIGKILL has not ended {names}; left alone after {KILL_S:g} s")

    def _whom(self) -> list[Process]:
        return self._processes.ranks or self._processes.main

    @property
    def _number(self) -> int:
        """The signal of the last stop request."""
        stop = self._machine.job.last_stop
        return stop.signal if stop is not None else signal.SIGTERM

    def _forward(self) -> None:
        who = ", ".join(process.name for process in self._whom())
        grace_s = self._machine.policy.grace_s
        self._ask(grace_s)
        number = passed_on(self._number)
        self.signal_ranks(number)
        as_what = "" if number == self._number else f" as {signal_name(number)}"
        stop = self._machine.job.last_stop
        came = "received" if stop is None or not stop.rule else f"for rule {stop.rule}"
        self._log.info(
            f"{signal_name(self._number)} {came} and passed on to {who}{as_what}; "
            f"SIGKILL in {grace_s:g} s, or at once at a second signal"
        )

    def _ask(self, grace_s: float) -> None:
        """Write the stop request to the status page, before the signal is sent."""
        self._asking.stop(self._number, self._machine.job.stopped_at_ns, grace_s)
        others, pids = self._around.others, tuple(self._processes.living)
        if others is None:
            self._asking.agree(self._asking.step_by(pids, AGREED_WITHIN_S))
        else:
            self._asking.agree(None)
            others.propose(self._asking.step_by(pids, OTHERS_AGREED_WITHIN_S))

    def _say_no_rank(self) -> None:
        self._log.info(f"{signal_name(self._number)} received; this host has no living rank, other hosts may")

    def _stop(self, processes: Iterable[Process]) -> None:
        """Send SIGTERM to *processes* once no rank holds a checkpoint open (toolkit.status). The deadline is not
        extended."""
        saving = self._asking.holding(self._processes.living.values())
        if saving:
            self._post(events.RanksSave(names=tuple(saving)))
        else:
            self._processes.signal(processes, signal.SIGTERM)

    def _tell_launcher(self) -> None:
        self._processes.signal(self._processes.main, signal.SIGTERM)

    def _kill_launcher(self) -> None:
        self._killed |= self._processes.kill_main(heard=not self._machine.policy.ends_as_one)

    def _sweep(self) -> None:
        services = self._processes.services
        self._processes.signal(services, signal.SIGTERM)
        left = self._processes.descendants() - self._killed - {process.pid for process in services}
        if strangers := left - self._daemons.pids:
            self._log.attempt(
                "the processes that outlived the script could not be named",
                lambda: self._say_strangers(strangers),
                None,
            )
        children.send_all(left, signal.SIGTERM)

    def _say_strangers(self, pids: set[int]) -> None:
        names = ", ".join(sorted({command_name(pid) for pid in pids}))
        self._log.info(f"{len(pids)} process(es) outlived the script and get SIGTERM: {names}")

    def _kill(self) -> None:
        has_shim = self._processes.spec.has_rank_shim
        ranks = [process for process in self._processes.at_work if process.rank is not None or not has_shim]
        if ranks:
            self._record.forced = True
            self._record.note(f"SIGKILL to {', '.join(process.name for process in ranks)}, which had not ended")
        self._processes.kill_all()

    def _dump(self) -> None:
        if not self._hangs.dump():
            self._post(events.StacksWritten())

    def _wait_unserved(self) -> None:
        served = self._phase.served
        assert served is not None
        self._log.info(f"this host's services stay until nothing listens on {served.address}:{served.port}")
        process = Process(WAITING, is_main=False, rank=None, local_rank=None, is_service=True)
        self._processes.add(process, children.fork_call(lambda: waiting.wait_gone(served), prctl=self._around.prctl))

    def _say_leader_done(self) -> None:
        self._log.info(f"the leader's script ended well {LEADER_DONE_S:g} s ago; ending this host's")

    def _say_left_wait(self) -> None:
        self._log.error("a rank ended without MPI_Finalize; stopping the ranks that wait for it")

    # --- after the end of a process

    def _answer_shim(self, ended: Exit) -> None:
        shim = self._record.gone[ended.pid].shim
        if shim is not None:
            shim.answer(code=ended.code, number=ended.signal)

    def _hold_shim(self, ended: Exit) -> None:
        shim = self._record.gone[ended.pid].shim
        if shim is not None:
            self._held.append(shim)

    def _release_shims(self, ended: Exit) -> None:
        for shim in self._held:
            shim.answer(code=0, number=None)
        role = self._processes.spec.mpi_role
        if role:
            self._daemons.main_ended(ended.status, leads=role == "agent")

    def _say_rank_failed(self, ended: Exit) -> None:
        self._log.error(f"{_named(ended)} ended with {_how(ended)}; stopping this host's other ranks")

    def _say_service_failed(self, ended: Exit) -> None:
        self._log.error(f"{_named(ended)} ended with {_how(ended)}; stopping this host")

    def _say_left(self, ended: Exit) -> None:
        self._log.warning(f"{_named(ended)} ended with 0 and without MPI_Finalize")

    def _tell_left(self, ended: Exit) -> None:
        if self._around.others is not None:
            self._around.others.left(ended, len(self._processes.ranks))

    def _tell_rank_done(self, ended: Exit) -> None:
        if self._around.others is not None:
            self._around.others.rank_done(ended.process)
        else:
            self._post(events.RankDone(host=self._machine.job.host, process=ended.process))


_ON_PROCESSES: dict[Action, Callable[[Effects], None]] = {
    Action.FORWARD: Effects._forward,
    Action.STOP_RANKS: lambda effects: effects._stop(effects._processes.ranks),
    Action.STOP_HERE: lambda effects: effects._stop(effects._whom()),
    Action.TELL_LAUNCHER: Effects._tell_launcher,
    Action.SWEEP: Effects._sweep,
    Action.KILL: Effects._kill,
    Action.KILL_OPTIONAL: lambda effects: effects._processes.kill_optional(),
    Action.KILL_LAUNCHER: Effects._kill_launcher,
    Action.END_LAUNCHER: Effects._kill_launcher,
    Action.DUMP: Effects._dump,
    Action.BEGIN_DRAIN: lambda effects: effects._flow.begin_draining(),
    Action.WAIT_UNSERVED: Effects._wait_unserved,
    Action.SERVE_DAEMONS: lambda effects: effects._daemons.serve(),
    Action.DISMISS_DAEMONS: lambda effects: effects._daemons.on_leader_done(),
    Action.SAY_NO_RANK: Effects._say_no_rank,
    Action.SAY_LEADER_DONE: Effects._say_leader_done,
    Action.SAY_LEFT_WAIT: Effects._say_left_wait,
    Action.NAME_LEFT: Effects.name_left,
}
_ON_EXIT: dict[Action, Callable[[Effects, Exit], None]] = {
    Action.ANSWER_SHIM: Effects._answer_shim,
    Action.HOLD_SHIM: Effects._hold_shim,
    Action.RELEASE_SHIMS: Effects._release_shims,
    Action.SAY_RANK_FAILED: Effects._say_rank_failed,
    Action.SAY_SERVICE_FAILED: Effects._say_service_failed,
    Action.SAY_LEFT: Effects._say_left,
    Action.TELL_LEFT: Effects._tell_left,
    Action.TELL_RANK_DONE: Effects._tell_rank_done,
}
_TO_OTHERS: dict[Action, Callable[[Effects, Others], None]] = {
    Action.TELL_FAILING: lambda effects, others: others.failing(effects._record.so_far(effects._processes)),
    Action.TELL_OWN_FAILURE: lambda effects, others: others.answer(effects._record.so_far(effects._processes)),
    Action.TELL_RANKS_ENDED: lambda _, others: others.ranks_ended(),
    Action.TELL_LEADER_DONE: lambda _, others: others.leader_done(),
}


def _named(ended: Exit) -> str:
    return f"{ended.process} (pid {ended.pid})"


def _how(ended: Exit) -> str:
    return f"code {ended.code}" if ended.signal is None else signal_name(ended.signal)
