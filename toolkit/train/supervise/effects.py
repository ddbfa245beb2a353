"""Carries out the stop machine's actions: signals to processes, messages to other hosts, lines in the log."""

import signal
import sys
from collections.abc import Callable, Iterable

from toolkit.errors import assert_never
from toolkit.job import events
from toolkit.job.outcome import Exit, signal_name
from toolkit.job.plan import Phase
from toolkit.own_module import own_module
from toolkit.train.supervise import children, waiting
from toolkit.train.supervise.daemons import Daemons
from toolkit.train.supervise.hang_reports import HangReports
from toolkit.train.supervise.phase_record import PhaseRecord
from toolkit.train.supervise.poll_loop import PollLoop
from toolkit.train.supervise.process import WAITING, PhaseProcess, command_name, why_unkilled
from toolkit.train.supervise.processes import Processes
from toolkit.train.supervise.reaper import Reaper
from toolkit.train.supervise.shim_server import ShimConnection
from toolkit.train.supervise.signals import passed_on
from toolkit.train.supervise.stop_actions import (
    AnswerShim,
    HoldShim,
    HostState,
    HurryConsole,
    PlainAction,
    ReleaseShims,
    ReportHang,
    ShowRankDone,
    StopAction,
    TellHosts,
    TellStop,
    UnfinalizedExit,
    WriteLog,
    WriteStopStep,
)
from toolkit.train.supervise.stop_request import StopRequest
from toolkit.train.supervise.stop_times import KILL_S
from toolkit.train.supervise.supervisor import Supervisor

# The time until every rank knows the step at which all stop: on one host, and across hosts (peers.protocol.AGREE_S plus
# the time on the network).
AGREED_WITHIN_S = 0.05
ALL_HOSTS_AGREED_WITHIN_S = 1.5


class Effects:
    """Carries out the actions of one phase. *post* takes the events that an action causes."""

    def __init__(
        self,
        supervisor: Supervisor,
        phase: Phase,
        processes: Processes,
        record: PhaseRecord,
        poll_loop: PollLoop,
        daemons: Daemons,
        hangs: HangReports,
        reaper: Reaper,
        post: Callable[[events.Event], None],
    ) -> None:
        self._supervisor = supervisor
        self._phase = phase
        self._machine = supervisor.machine
        self._processes = processes
        self._record = record
        self._poll_loop = poll_loop
        self._stop_request = StopRequest(supervisor.run_folder, supervisor.log)
        self._daemons = daemons
        self._hangs = hangs
        self._reaper = reaper
        self._post = post
        self._log = supervisor.log
        self._held: list[ShimConnection] = []
        self._killed: set[int] = set()

    def carry_out(self, action: StopAction) -> None:
        """Carry out *action*, which the machine returned."""
        match action:
            case HurryConsole() | TellStop():
                self._supervisor.carry_out(action)
            case PlainAction():
                self._carry_out_plain(action)
            case AnswerShim(exit=exit):
                self._answer_shim(exit)
            case HoldShim(exit=exit):
                self._hold_shim(exit)
            case ReleaseShims(exit=exit):
                self._release_shims(exit)
            case WriteStopStep(step=step):
                self._stop_request.write(step)
            case ShowRankDone(done=done):
                self._stop_request.show_done(done)
            case ReportHang(hang=hang):
                self._hangs.report(hang)
            case WriteLog():
                self._write_log(action)
            case TellHosts(message=message):
                self._tell_hosts(message)
            case _:
                assert_never(action)

    def _carry_out_plain(self, action: PlainAction) -> None:  # noqa: PLR0912 - a case for each action.
        match action:
            case PlainAction.FORWARD_SIGNAL:
                self._forward_signal()
            case PlainAction.TERMINATE_RANKS:
                self._terminate(self._processes.ranks)
            case PlainAction.TERMINATE_RANKS_OR_LAUNCHER:
                self._terminate(self._ranks_or_launcher())
            case PlainAction.TERMINATE_LAUNCHER:
                self._processes.signal(self._processes.main, signal.SIGTERM)
            case PlainAction.TERMINATE_LEFTOVERS:
                self._terminate_leftovers()
            case PlainAction.KILL_ALL:
                self._kill_all()
            case PlainAction.KILL_OPTIONAL:
                self._processes.kill_optional()
            case PlainAction.KILL_LAUNCHER:
                self._killed |= self._processes.kill_main(is_relayed=not self._machine.policy.ends_as_one)
            case PlainAction.CHECK_FOR_PROCESSES:
                self._reaper.check_for_processes()
            case PlainAction.DUMP_STACKS:
                self._dump_stacks()
            case PlainAction.BEGIN_DRAIN:
                self._poll_loop.begin_draining()
            case PlainAction.REPORT_SURVIVORS:
                self.report_survivors()
            case PlainAction.AWAIT_UNSERVED:
                self._await_unserved()
            case PlainAction.SERVE_DAEMONS:
                self._daemons.serve()
            case PlainAction.DISMISS_DAEMONS:
                self._daemons.on_leader_done()
            case PlainAction.LOG_NO_RANK:
                self._log_no_rank()
            case _:
                assert_never(action)

    def _tell_hosts(self, message: HostState | UnfinalizedExit | events.RankDone | events.LeaderDone) -> None:
        link = self._supervisor.link
        assert link is not None, "the machine has nothing to tell where there is no link"
        match message:
            case HostState.FAILING:
                link.tell_failure(self._record.so_far(self._processes))
            case HostState.OWN_FAILURE:
                link.tell_own_failure(self._record.so_far(self._processes))
            case HostState.RANKS_ENDED:
                link.tell_ranks_ended()
            case events.LeaderDone():
                link.tell_leader_done()
            case events.RankDone(process=process):
                link.tell_rank_done(process)
            case UnfinalizedExit(exit=exit):
                link.tell_unfinalized_rank(exit, len(self._processes.ranks))
            case _:
                assert_never(message)

    def _write_log(self, line: WriteLog) -> None:
        write = {"info": self._log.info, "warning": self._log.warning, "error": self._log.error}[line.level]
        write(line.text)

    # --- processes

    def signal_ranks(self, number: int, *, noted: bool = True) -> None:
        """Send *number* to every rank, or to the launcher if no rank was started yet."""
        self._processes.signal(self._ranks_or_launcher(), number, noted=noted)

    def report_survivors(self) -> None:
        """Note which processes have survived SIGKILL."""
        left = sorted(self._processes.descendants())
        if left:
            names = ", ".join(f"{command_name(pid)} (pid {pid}, {why_unkilled(pid)})" for pid in left)
            self._record.note(f"SIGKILL has not ended {names}; left alone after {KILL_S:g} s")

    def _ranks_or_launcher(self) -> list[PhaseProcess]:
        return self._processes.ranks or self._processes.main

    @property
    def _number(self) -> int:
        """The signal of the last stop request."""
        stop = self._machine.job.last_stop
        return stop.signal if stop is not None else signal.SIGTERM

    def _forward_signal(self) -> None:
        who = ", ".join(process.name for process in self._ranks_or_launcher())
        grace_s = self._machine.policy.grace_s
        self._request_stop(grace_s)
        number = passed_on(self._number)
        self.signal_ranks(number)
        as_what = "" if number == self._number else f" as {signal_name(number)}"
        stop = self._machine.job.last_stop
        came = "received" if stop is None or not stop.rule else f"for rule {stop.rule}"
        self._log.info(
            f"{signal_name(self._number)} {came} and passed on to {who}{as_what}; "
            f"SIGKILL in {grace_s:g} s, or at once at a second signal"
        )

    def _request_stop(self, grace_s: float) -> None:
        """Write the stop request to the status page, before the signal is sent."""
        self._stop_request.prepare(self._number, self._machine.job.stopped_at_ns, grace_s)
        link, pids = self._supervisor.link, tuple(self._processes.living)
        if link is None:
            self._stop_request.write(self._stop_request.step_by(pids, AGREED_WITHIN_S))
        else:
            self._stop_request.write(None)
            link.tell_step(self._stop_request.step_by(pids, ALL_HOSTS_AGREED_WITHIN_S))

    def _log_no_rank(self) -> None:
        self._log.info(f"{signal_name(self._number)} received; this host has no living rank, other hosts may")

    def _terminate(self, processes: Iterable[PhaseProcess]) -> None:
        """Send SIGTERM to *processes* once no rank holds a checkpoint open (toolkit.status). The deadline is not
        extended."""
        saving = self._stop_request.holding(self._processes.living.values())
        if saving:
            self._post(events.RanksSave(names=tuple(saving)))
        else:
            self._processes.signal(processes, signal.SIGTERM)

    def _terminate_leftovers(self) -> None:
        services = self._processes.services
        self._processes.signal(services, signal.SIGTERM)
        left = self._processes.descendants() - self._killed - {process.pid for process in services}
        if strangers := left - self._daemons.pids:
            self._log.attempt(
                "the processes that outlived the script could not be named",
                lambda: self._log_strangers(strangers),
                None,
            )
        children.send_all(left, signal.SIGTERM)

    def _log_strangers(self, pids: set[int]) -> None:
        names = ", ".join(sorted({command_name(pid) for pid in pids}))
        self._log.info(f"{len(pids)} process(es) outlived the script and get SIGTERM: {names}")

    def _kill_all(self) -> None:
        has_shim = self._processes.spec.has_rank_shim
        ranks = [process for process in self._processes.at_work if process.rank is not None or not has_shim]
        if ranks:
            self._record.forced = True
            self._record.note(f"SIGKILL to {', '.join(process.name for process in ranks)}, which had not ended")
        self._processes.kill_all()

    def _dump_stacks(self) -> None:
        if not self._hangs.dump():
            self._post(events.StacksWritten())

    def _await_unserved(self) -> None:
        served = self._phase.served
        assert served is not None
        self._log.info(f"this host's services stay until nothing listens on {served.address}:{served.port}")
        process = PhaseProcess(WAITING, is_main=False, rank=None, local_rank=None, is_service=True)
        program = own_module(sys.executable, waiting.__name__)
        self._processes.add(
            process, children.fork_call(lambda: waiting.wait_gone_apart(served, program), prctl=self._supervisor.prctl)
        )

    # --- after the end of a process

    def _answer_shim(self, exit: Exit) -> None:
        shim = self._record.gone[exit.pid].shim
        if shim is not None:
            shim.answer(code=exit.code, number=exit.signal)

    def _hold_shim(self, exit: Exit) -> None:
        shim = self._record.gone[exit.pid].shim
        if shim is not None:
            self._held.append(shim)

    def _release_shims(self, exit: Exit) -> None:
        for shim in self._held:
            shim.answer(code=0, number=None)
        role = self._processes.spec.mpi_role
        if role:
            self._daemons.main_ended(exit.status, leads=role == "agent")
