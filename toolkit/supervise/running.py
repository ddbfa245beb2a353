"""One phase's processes, from the start of the first to the last byte of the last: stop.py's table, carried out."""

import math
import signal
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from toolkit.job.events import (
    AllRanksEnded,
    DaemonEnded,
    Hang,
    JobEnded,
    Launch,
    LeaderDone,
    PeerFailed,
    Stalled,
    Stop,
    StopStep,
)
from toolkit.job.events import Event as Heard
from toolkit.job.outcome import UNFINISHED_S, Ended, Exit, Hung, Ruled
from toolkit.job.plan import Phase, ProcessSpec
from toolkit.job.stuck import Stuck
from toolkit.supervise import children, stacks, waiting
from toolkit.supervise.asking import STATUS_FOLDER, Asking
from toolkit.supervise.daemons import Daemons
from toolkit.supervise.evidence import Evidence, last_on
from toolkit.supervise.flow import Flow
from toolkit.supervise.hang import HangWatch, Stall, stopped
from toolkit.supervise.others import Others, Rules
from toolkit.supervise.process import Process, command_name, why_unkilled
from toolkit.supervise.processes import Home, Processes
from toolkit.supervise.pulse import Pulse
from toolkit.supervise.shim_server import Request, Serve, ShimConnection, ShimServer
from toolkit.supervise.signals import FORWARDED, Signals, name_of, passed_on, stops
from toolkit.supervise.stop import Action, Event, answer
from toolkit.supervise.stop import Phase as StopPhase

# Ranks that hang rarely hear a signal: a Python handler does not run while the main thread is in a collective.
HUNG_GRACE_S = 5.0
LAUNCHER_S = 1.0
# Within which every rank knows the step at which all stop: on one host, and across hosts (peers.protocol.AGREE_S and a
# way).
AGREED_WITHIN_S = 0.05
OTHERS_AGREED_WITHIN_S = 1.5
# A stopped launcher may have more to do, or wait for other hosts, whose ranks are still saving.
STOPPED_LAUNCHER_S = 5.0
# A rank that calls MPI_Abort has its launcher end all ranks before it ends itself. It must not be told to by us first,
# or its code would be lost; a launcher waits longer than this before it kills.
ABORT_S = 0.25
SWEEP_S = 1.0
# How long other hosts' scripts may go on when the leader's has ended well, where services serve all hosts: the last
# steps of a worker; one that only serves goes on for ever.
LEADER_DONE_S = 10.0
KILL_S = 5.0
LOOK_S = 0.05
# The process that looks whether the leader's services are still needed.
WAITING = "waiting"


class Around(Home, Protocol):
    """What outlives a phase (loop.Supervisor)."""

    signals: Signals
    alone: bool
    stopped_by: int | None
    stopped_at_ns: int | None
    others: Others | None
    stall: Stall | None
    pulse: Pulse
    peer_failed: bool
    leader_done: bool

    def hear(self) -> list[Heard]:
        """Serve the link to the other hosts and return the events that came."""

    def take_signals(self) -> list[int]:
        """Return the signals that came, without repeats of one wish to stop; the first stop signal is kept."""

    def renew_guardian(self, pids: Iterable[int]) -> None:
        """Take another guardian in place of one that somebody has ended, and tell it of *pids*, which live."""


class Running:
    """Runs one phase; `run` returns what was seen."""

    def __init__(self, around: Around, phase: Phase) -> None:
        self._around = around
        self._phase = phase
        self._log = around.log
        self._flow = Flow(around.console)
        self._notes: list[str] = []
        self._processes = Processes(around, phase, self._flow, self._note)
        self._evidence = Evidence(around.run_folder / STATUS_FOLDER)
        self._asking = Asking(around.run_folder, around.log)
        self._exits: list[Exit] = []
        self._daemons = Daemons(around.others)
        self._held: list[ShimConnection] = []
        self._killed: set[int] = set()
        self._aborted: set[int] = set()
        self._aborts_s: float | None = None
        # When the others have waited long enough for a rank that left without MPI_Finalize, on an only host.
        self._left_s: float | None = None
        self._ranks_end_s: float | None = None
        self._main_exit: Exit | None = None
        self._stays = False
        self._leader_done_s: float | None = None
        self._over = False
        self._launcher_first = False
        self._all_rested = False
        self._state: StopPhase = "running"
        self._deadline_s: float | None = None
        self._stop_number = int(signal.SIGTERM)
        self._child_ended = False
        self._looked_s = 0.0
        self._forced = False
        self._stopped_here = False
        self._hung: Hung | None = None
        self._ruled: Ruled | None = None
        watched = around.stall if phase.together else None
        self._hangs = HangWatch(watched, phase.main.environ, around.prctl) if watched is not None else None
        self._waiting_to_stop: Callable[[], list[Process]] | None = None

    @property
    def _living(self) -> dict[int, Process]:
        return self._processes.living

    @property
    def _spec(self) -> ProcessSpec:
        return self._processes.spec

    def run(self) -> Ended:
        """Start the phase's process and stay until everything is over.

        Raises:
            UserError: it cannot be started.
        """
        self._flow.watch(self._around.signals.fd, self._on_signal)
        if self._around.others is not None:
            self._flow.watch(self._around.others.fd, self._on_others)
        server = self._open_shim_server()
        try:
            for service in self._phase.services:
                self._processes.start_service(service)
            self._processes.start_main()
            self._child_ended = True  # One may have ended before this line; looking costs one system call.
            while self._state != "done":
                self._flow.step(self._timeout_s())
                if self._child_ended:
                    self._child_ended = False
                    self._reap()
                if self._around.others is not None and self._around.others.rest_s() <= 0.01:
                    self._on_others()
                self._tick(time.monotonic())
        finally:
            if server is not None:
                server.close()
            if self._state != "done":  # After an error of our own.
                self._abandon()
        self._look_for_stacks(math.inf)
        self._flow.end()
        return self._ended()

    def _abandon(self) -> None:
        """End everything that this phase started, and put out what it has said."""
        self._processes.kill_all()
        ends_s = time.monotonic() + KILL_S
        while self._processes.any_left() and time.monotonic() < ends_s:
            self._processes.kill_left()
            for _ in children.reap():
                pass
        self._name_left()
        self._flow.drain()
        self._flow.end()

    def _open_shim_server(self) -> ShimServer | None:
        server = self._processes.open_shim_server()
        if server is None:
            return None

        def on_connect() -> None:
            while (shim := server.accept()) is not None:
                self._flow.watch(shim.fd, lambda shim=shim: self._on_shim(shim))  # type: ignore[misc]

        self._flow.watch(server.fd, on_connect)
        return server

    # --- what happens

    def _on_signal(self) -> None:
        for number in self._around.take_signals():
            if stops(number):
                self._stop_number = number
                # Again: to this host. Platforms stop all hosts at once, and another's stop may be here first.
                self._event(Event.STOP_AGAIN if self._stopped_here else Event.STOP)
                self._stopped_here = True
            elif number in FORWARDED:
                self._signal_ranks(number, told=False)
            elif number == signal.SIGCHLD:
                self._child_ended = True

    def _on_others(self) -> None:
        for event in self._around.hear():
            self._on_heard(event)

    def _on_heard(self, event: Heard) -> None:
        if isinstance(event, Stop):
            self._stop_number = event.signal
            self._event(Event.STOP)
        elif isinstance(event, StopStep):
            self._asking.agree(event.step)
        elif isinstance(event, Hang):
            self._on_hang(event.seconds)
        elif isinstance(event, Stalled):
            self._on_stalled(event.seconds)
        elif isinstance(event, Launch | DaemonEnded):
            self._daemons.serve()
        elif isinstance(event, LeaderDone):
            self._daemons.on_leader_done()
        elif isinstance(event, AllRanksEnded):
            self._all_rested = True
            self._event(Event.ALL_RESTED)
            self._services_end()
        elif isinstance(event, JobEnded):
            self._all_rested = True  # As far as this host will ever hear.
            if self._state == "leaving" and self._around.stopped_by is not None:
                self._event(Event.ALL_RESTED)
            self._services_end()
        elif isinstance(event, PeerFailed):
            self._reap()  # What has failed here by now is evidence, not what we end.
            self._event(Event.PEER_FAILED)
            if self._around.others is not None:
                self._around.others.answer(self._so_far())

    def _on_shim(self, shim: ShimConnection) -> None:
        numbers, gone = shim.read()
        if gone:
            self._flow.unwatch(shim.fd)
            shim.close()
        elif shim.asked is not None and shim.pid is None and not shim.answered:
            self._on_asked(shim, shim.asked)
        if (gone or numbers) and shim.pid in self._living:
            self._on_launcher_stops(shim.pid)

    def _on_launcher_stops(self, pid: int) -> None:
        self._launcher_first = self._launcher_first or self._state == "running"
        if not self._spec.stop.as_one:
            self._event(Event.LAUNCHER_STOPS)
            return
        self._aborted.add(pid)
        if self._aborts_s is None:
            self._aborts_s = time.monotonic() + ABORT_S

    def _on_asked(self, connection: ShimConnection, asked: Request | Launch | Serve) -> None:
        if isinstance(asked, Request) and self._state != "running":
            connection.answer(code=None, number=signal.SIGTERM)
        elif isinstance(asked, Request):
            self._processes.start_rank(connection, asked)
            self._child_ended = True
        elif isinstance(asked, Launch):
            problem = self._daemons.on_launch(connection, asked)
            if problem:
                self._log.error(problem)
        else:
            self._daemons.on_waiter(connection)

    def _reap(self) -> None:
        """Take all that have ended before anything is done about one: a signal to a zombie would count as told."""
        ends: list[tuple[Process, Exit]] = []
        for pid, status, ended_ns in children.reap():
            process = self._living.pop(pid, None)
            if process is not None:
                ended = process.exit(status, ended_ns, *self._evidence.raised_by(pid))
                ends.append((process, self._with_others(process, ended)))
            elif self._around.guardian is not None and pid == self._around.guardian.pid:
                self._around.renew_guardian(self._living)
                self._note("the guardian process was ended by somebody; another has taken its place")
            # Else an orphan that we adopted: reaped, and no business of the outcome.
        self._exits += [ended for process, ended in ends if self._counts(process, ended)]
        for process, ended in ends:
            self._on_exit(process, ended)

    def _with_others(self, process: Process, ended: Exit) -> Exit:
        """Return *ended*; as told, where a rank crashed while MPI was aborted (MPICH's do): another is the cause. One
        that had already left word of its own end, and then crashed or failed on the way out (in MPI_Abort or in
        MPI_Finalize, where MPI's own programs are gone): its own code is the end."""
        if not self._spec.stop.as_one or process.shim is None:
            return ended
        if ended.ok:
            left = not ended.told and self._state == "running" and self._evidence.unfinished(process.pid)
            return msgspec.structs.replace(ended, left=True) if left else ended
        if ended.raised_ns is not None and not ended.told:
            own = self._evidence.raised_by(process.pid)[1]
            return msgspec.structs.replace(ended, code=own, signal=None) if own else ended
        if ended.signal is None:
            return ended
        numbers, gone = process.shim.read()
        aborted = bool(numbers) or gone or process.pid in self._aborted
        return msgspec.structs.replace(ended, told=True) if aborted else ended

    def _counts(self, process: Process, ended: Exit) -> bool:
        """True if an end is the job's business: a service's only where it failed while it was needed."""
        return not process.is_service or (self._state == "running" and not ended.ok and not ended.told)

    def _on_exit(self, process: Process, ended: Exit) -> None:
        if not ended.ok and not ended.told and self._state == "running" and self._around.others is not None:
            self._around.others.failing(self._so_far())
        if ended.left and self._state == "running":
            self._on_left(process, ended)
        if process.is_service:
            self._on_service_exit(process, ended)
            return
        if process.shim is not None and self._is_held(ended):
            self._held.append(process.shim)
        elif process.shim is not None:
            process.shim.answer(code=ended.code, number=ended.signal)
        if process.is_main:
            self._main_exit = ended
            for shim in self._held:
                shim.answer(code=0, number=None)
        if process.is_main and self._spec.mpi_role:
            self._daemons.main_ended(ended.status, leads=self._spec.mpi_role == "agent")
        if not self._processes.at_work:
            self._on_all_ended()
        elif process.is_main:
            self._launcher_first = self._launcher_first or self._state == "running"
            self._event(Event.LAUNCHER_STOPS)
        else:
            if not ended.ok:
                self._say_failed(process, ended)
                self._event(Event.RANK_FAILED)
            if not self._processes.ranks:
                self._event(Event.RANKS_ENDED)
                if self._around.others is None:
                    self._daemons.on_leader_done()

    def _on_left(self, process: Process, ended: Exit) -> None:
        """A rank ended with 0 and without MPI_Finalize. MPICH does not notice, and the others would wait for ever."""
        self._log.warning(f"{process.name} (pid {process.pid}) ended with 0 and without MPI_Finalize")
        if self._around.others is not None:
            self._around.others.left(ended, len(self._processes.ranks))
        elif self._left_s is None:
            self._left_s = time.monotonic() + UNFINISHED_S

    def _miss_the_left(self, left_s: float, now_s: float) -> None:
        """End the ranks that still wait for one that left."""
        if now_s >= left_s:
            self._left_s = math.inf
            if self._state == "running" and self._processes.ranks:
                self._log.error("a rank ended without MPI_Finalize; stopping the ranks that wait for it")
                self._event(Event.RANK_FAILED)

    def _on_all_ended(self) -> None:
        """Launcher and ranks have ended; services stay as long as other hosts' may need them."""
        well = self._main_exit is not None and self._main_exit.ok
        self._stays = self._phase.serves_all and (self._state == "stopping" or (self._state == "running" and well))
        others, served = self._around.others, self._phase.served
        if self._stays and others is not None:
            if self._phase.leads:
                others.leader_done()
            others.rested()
        elif self._stays and served is not None:
            self._log.info(f"this host's services stay until nothing listens on {served.address}:{served.port}")
            process = Process(WAITING, is_main=False, rank=None, local_rank=None, is_service=True)
            pid = children.fork_call(lambda: waiting.wait_gone(served), prctl=self._around.prctl)
            self._processes.add(process, pid)
            self._child_ended = True
        else:
            self._stays = False
            self._event(Event.ALL_ENDED)

    def _services_end(self) -> None:
        """Nobody needs this host's services any more."""
        if self._stays:
            self._stays = False
            self._event(Event.ALL_ENDED)

    def _on_service_exit(self, process: Process, ended: Exit) -> None:
        if not ended.ok and not ended.told and self._state == "running":
            self._log.error(f"{process.name} (pid {process.pid}) ended with {_how(ended)}; stopping this host")
            self._event(Event.SERVICE_FAILED)
        elif process.name == WAITING or not self._living:
            self._services_end()

    def _is_held(self, ended: Exit) -> bool:
        """True if the launcher is not to hear of this end: it would end ranks that still save, on every host. Nor is
        torchrun to hear of a failure, which it would log and summarize before it is killed with the last rank."""
        if self._ends_as_one:
            return self._state in ("stopping", "failing", "leaving") or not ended.ok
        silent = self._ends_with_ranks and not self._launcher_first
        return silent and (self._state in ("failing", "leaving") or not ended.ok)

    @property
    def _ends_as_one(self) -> bool:
        # Without the link only the launcher can tell the other hosts.
        return self._spec.stop.as_one and not (self._spec.mpi_role and self._around.others is None)

    @property
    def _ends_with_ranks(self) -> bool:
        # Without the link nobody knows of other hosts' ranks, which its torchrun may serve.
        return self._spec.stop.with_ranks and (self._around.alone or self._around.others is not None)

    @property
    def _at_rest(self) -> bool:
        """True if all that is left of the script is a launcher whose ranks have ended."""
        waits = self._spec.stop.as_one or self._ends_with_ranks
        return waits and self._processes.had_ranks and not self._processes.ranks and bool(self._processes.main)

    def _say_failed(self, process: Process, ended: Exit) -> None:
        if self._state == "running":
            self._log.error(
                f"{process.name} (pid {process.pid}) ended with {_how(ended)}; stopping this host's other ranks"
            )

    # --- what is done about it

    def _event(self, event: Event) -> None:
        self._state, actions = answer(self._state, event)
        for action in actions:
            _ACTIONS[action](self)
        if self._state == "failing" and not self._processes.at_work:
            self._services_end()
        if self._state in ("sweeping", "killing"):
            self._look_around()

    def _timeout_s(self) -> float:
        waits = [self._around.pulse.rest_s(time.monotonic())]
        if self._state in ("sweeping", "killing") or self._waiting_to_stop is not None:
            waits.append(LOOK_S)
        if self._around.others is not None:
            waits.append(self._around.others.rest_s())
        rules_rest_s = self._around.rules.rest_s() if self._around.rules is not None else None
        if rules_rest_s is not None and self._ruled is None:
            waits.append(rules_rest_s)
        if self._hangs is not None:
            waits.append(self._hangs.rest_s(time.monotonic()))
        for when_s in (self._deadline_s, self._aborts_s, self._leader_done_s, self._left_s):
            if when_s is not None and when_s < math.inf:
                waits.append(max(when_s - time.monotonic(), 0.0))
        return min(waits)

    def _tick(self, now_s: float) -> None:
        self._around.pulse.beat(now_s)
        if self._state in ("sweeping", "killing") and now_s - self._looked_s >= LOOK_S:
            self._look_around()
        if self._state == "draining":
            if self._flow.drained:
                self._event(Event.DRAINED)
            else:
                self._deadline_s = self._flow.patience_ends_s()
        if self._state not in ("running", "draining") or self._around.stopped_by is not None:
            self._flow.give_up_stalled()
        if self._hangs is not None:
            self._look_for_hang(self._hangs, now_s)
        if self._around.rules is not None and self._ruled is None and self._phase.together:
            self._heed(self._around.rules)
        if self._waiting_to_stop is not None:
            self._stop_unless_holding(self._waiting_to_stop)
        if self._phase.serves_all and self._around.leader_done and self._state == "running" and self._processes.at_work:
            self._end_after_leader(now_s)
        if self._left_s is not None:
            self._miss_the_left(self._left_s, now_s)
        if self._aborts_s is not None and now_s >= self._aborts_s:
            self._aborts_s = math.inf
            self._event(Event.LAUNCHER_STOPS)
        if self._deadline_s is not None and now_s >= self._deadline_s:
            self._deadline_s = None
            self._event(Event.DEADLINE)

    def _end_after_leader(self, now_s: float) -> None:
        if self._leader_done_s is None:
            self._leader_done_s = now_s + LEADER_DONE_S
        elif now_s >= self._leader_done_s:
            self._leader_done_s = None
            self._over = True
            self._log.info(f"the leader's script ended well {LEADER_DONE_S:g} s ago; ending this host's")
            self._event(Event.LEADER_DONE)

    def _heed(self, rules: Rules) -> None:
        if rules.rest_s() == 0:
            rules.tick()
        if rules.ruled is not None and self._state == "running":
            self._ruled = rules.ruled
            if self._around.others is not None:
                self._around.others.failing(self._so_far())
            self._event(Event.RULED)

    def _look_for_hang(self, watch: HangWatch, now_s: float) -> None:
        if self._state == "running":
            idle_s = watch.idle_s(self._processes.written_bytes(), now_s)
            if idle_s and (stalled_s := self._flow.stalled_s()):
                self._log.warning(
                    f"the console has taken nothing for {stalled_s:.0f} s: ranks no longer wait for it, "
                    "and what it does not take is lost"
                )
                self._flow.give_up_stalled(0.0)
                idle_s = 0.0
            if idle_s is not None and self._around.others is not None:
                self._around.others.idle(idle_s)
            elif idle_s:
                self._on_hang(idle_s)
        self._look_for_stacks(now_s)

    def _on_hang(self, idle_s: float) -> None:
        if self._state != "running":
            return
        if self._hangs is None:  # Other hosts watch for hangs; this one was not told to, and ends with them.
            self._event(Event.PEER_FAILED)
            return
        found = self._say_hang(self._hangs, idle_s)
        if self._hangs.stops:
            self._hung = Hung(idle_s=idle_s, seen_ns=time.monotonic_ns(), stuck=found)
            self._event(Event.HUNG)
        else:
            self._dump()

    def _on_stalled(self, idle_s: float) -> None:
        """No host's ranks move, and no host ends for it."""
        if self._state == "running" and self._hangs is not None:
            self._say_hang(self._hangs, idle_s)
            self._dump()

    def _say_hang(self, watch: HangWatch, idle_s: float) -> tuple[Stuck, ...]:
        """Say that no rank moves; return those that cannot."""
        found = stopped(self._processes.rank_pids)
        told = "".join(f"; {each.name} is {each.state}" for each in found)
        where = f"their stacks go to {watch.folder}"
        self._log.error(f"no rank has written or computed anything for {idle_s:.0f} s{told}: {where}")
        self._around.pulse.stalled(idle_s)
        return found

    def _dump(self) -> None:
        if self._hangs is not None and (problem := self._hangs.dump(self._processes.rank_pids)):
            self._note(problem)

    def _look_for_stacks(self, now_s: float) -> None:
        def look() -> None:
            written = self._hangs.collected(now_s) if self._hangs is not None else None
            if written is not None:
                self._on_stacks(*written)

        self._log.attempt("the stacks could not be collected", look, None)

    def _on_stacks(self, files: str, stuck: tuple[Stuck, ...]) -> None:
        self._note(f"stacks: {files}")
        if self._hung is not None:
            self._hung = msgspec.structs.replace(self._hung, stuck=stuck)
            if self._around.others is not None:
                self._around.others.answer(self._so_far())

    def _look_around(self) -> None:
        """See whether any descendant is left; a new one may have been forked since the last look, so kill again."""
        self._looked_s = time.monotonic()
        if self._state == "killing":
            self._processes.kill_left()
        self._reap()
        if not self._living and not self._processes.any_left():
            self._event(Event.QUIET)

    def _whom(self) -> list[Process]:
        """Return the living ranks; before there is one, the launcher."""
        return self._processes.ranks or self._processes.main

    def _signal_ranks(self, number: int, *, told: bool = True) -> None:
        self._processes.signal(self._whom(), number, told=told)

    def _forward(self) -> None:
        if self._at_rest or not self._processes.at_work:
            self._log.info(f"{name_of(self._stop_number)} received; no rank lives here, those of other hosts may")
            if self._at_rest:
                self._event(Event.RANKS_ENDED)
            return
        who = ", ".join(process.name for process in self._whom())
        grace_s = self._spec.stop.grace_s
        self._ask(grace_s)
        number = passed_on(self._stop_number)
        self._signal_ranks(number)
        as_what = "" if number == self._stop_number else f" as {name_of(number)}"
        self._log.info(
            f"{name_of(self._stop_number)} received and passed on to {who}{as_what}; "
            f"SIGKILL in {grace_s:g} s, or at once if told again"
        )

    def _ask(self, grace_s: float) -> None:
        """Tell scripts that use toolkit.status before the signal does."""
        self._asking.stop(self._stop_number, self._around.stopped_at_ns, grace_s)
        others, pids = self._around.others, tuple(self._living)
        if others is None:
            self._asking.agree(self._asking.step_by(pids, AGREED_WITHIN_S))
        else:
            self._asking.agree(None)
            others.propose(self._asking.step_by(pids, OTHERS_AGREED_WITHIN_S))

    def _stop_ranks(self) -> None:
        self._stop_unless_holding(lambda: self._processes.ranks)

    def _stop_here(self) -> None:
        if self._at_rest and self._ends_with_ranks:
            self._event(Event.RANKS_ENDED)
        else:
            self._stop_unless_holding(self._whom)

    def _stop_unless_holding(self, whom: Callable[[], list[Process]]) -> None:
        """SIGTERM to *whom*, once no rank holds a checkpoint open (toolkit.status); the deadline runs all the same."""
        holding = self._asking.holding(self._living.values())
        if not holding:
            self._waiting_to_stop = None
            self._processes.signal(whom(), signal.SIGTERM)
        elif self._waiting_to_stop is None:
            self._log.info(f"{', '.join(holding)} is writing a checkpoint: the others wait for it")
            self._waiting_to_stop = whom

    def _tell_launcher(self) -> None:
        self._processes.signal(self._processes.main, signal.SIGTERM)

    def _sweep(self) -> None:
        services = self._processes.services
        self._processes.signal(services, signal.SIGTERM)
        left = self._processes.descendants() - self._killed - {process.pid for process in services}
        if strangers := left - self._daemons.pids:
            self._log.attempt(
                "what outlived the script could not be named", lambda: self._say_strangers(strangers), None
            )
        children.send_all(left, signal.SIGTERM)

    def _say_strangers(self, pids: set[int]) -> None:
        names = ", ".join(sorted({command_name(pid) for pid in pids}))
        self._log.info(f"{len(pids)} process(es) outlived the script and get SIGTERM: {names}")

    def _kill(self) -> None:
        ranks = [
            process for process in self._processes.at_work if process.rank is not None or not self._spec.has_rank_shim
        ]
        if ranks:
            self._forced = True
            self._note(f"SIGKILL to {', '.join(process.name for process in ranks)}, which had not ended")
        self._processes.kill_all()

    def _name_left(self) -> None:
        left = sorted(self._processes.descendants())
        if left:
            names = ", ".join(f"{command_name(pid)} (pid {pid}, {why_unkilled(pid)})" for pid in left)
            self._note(f"SIGKILL has not ended {names}; left alone after {KILL_S:g} s")

    def _arm(self, seconds: float) -> None:
        self._deadline_s = time.monotonic() + seconds

    def _arm_ranks(self, seconds: float) -> None:
        self._arm(min(self._spec.stop.grace_s, seconds))
        self._ranks_end_s = self._deadline_s

    def _say_done(self) -> None:
        well = [ended for ended in self._exits if ended.rank is not None and ended.ok]
        if self._ends_with_ranks and len(well) == len(self._spec.starts_ranks):
            self._say_rested()

    def _rest(self) -> None:
        if not self._ends_as_one and not self._ends_with_ranks:
            self._arm(STOPPED_LAUNCHER_S)
            return
        self._deadline_s = self._ranks_end_s
        self._say_rested()

    def _say_rested(self) -> None:
        if self._all_rested or self._around.others is None:
            self._event(Event.ALL_RESTED)
        else:
            self._around.others.rested()

    def _kill_launcher(self) -> None:
        self._over = self._over or bool(self._processes.main)
        self._killed |= self._processes.kill_main(heard=not self._ends_as_one)

    def _end_launcher(self) -> None:
        if self._ends_as_one or (self._ends_with_ranks and not self._launcher_first):
            self._killed |= self._processes.kill_main(heard=not self._ends_as_one)

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._log.warning(text)

    def _ended(self) -> Ended:
        self._log.attempt("the ranks' files could not be closed", self._processes.close_files, None)
        return self._so_far()

    def _so_far(self) -> Ended:
        exits = (*self._exits, *self._evidence.doomed(self._living.values()))
        streams = self._processes.streams
        return Ended(
            phase=self._phase.name,
            failure=self._phase.failure,
            command=self._processes.command,
            exits=exits,
            main=self._spec.name,
            tails={name: (err.tail.text(), out.tail.text()) for name, (out, err) in streams.items()},
            last_on={name: last_on(*pair) for name, pair in streams.items()},
            raised=self._evidence.raised(exits),
            raised_by_children=self._evidence.raised_by_children(exits),
            stopped_by=self._around.stopped_by,
            stopped_at_ns=self._around.stopped_at_ns,
            forced=self._forced,
            peer_failed=self._around.peer_failed,
            launcher_first=self._launcher_first,
            over=self._over,
            hung=self._hung,
            ruled=self._ruled,
            long_lines=sum(stream.lines.long_lines for pair in streams.values() for stream in pair),
            notes=tuple(self._notes),
        )


_ACTIONS: dict[Action, Callable[[Running], None]] = {
    Action.FORWARD: Running._forward,
    Action.STOP_RANKS: Running._stop_ranks,
    Action.DUMP: Running._dump,
    Action.ARM_DUMP: lambda running: running._arm(stacks.WITHIN_S),
    Action.ARM_HUNG: lambda running: running._arm(min(running._spec.stop.grace_s, HUNG_GRACE_S)),
    Action.STOP_HERE: Running._stop_here,
    Action.TELL_LAUNCHER: Running._tell_launcher,
    Action.SWEEP: Running._sweep,
    Action.KILL: Running._kill,
    Action.NAME_LEFT: Running._name_left,
    Action.ARM_GRACE: lambda running: running._arm_ranks(running._spec.stop.grace_s),
    Action.SAY_DONE: Running._say_done,
    Action.REST: Running._rest,
    Action.KILL_LAUNCHER: Running._kill_launcher,
    Action.END_LAUNCHER: Running._end_launcher,
    Action.ARM_FAILURE: lambda running: running._arm_ranks(running._spec.stop.failure_s),
    Action.ARM_LAUNCHER: lambda running: running._arm(LAUNCHER_S),
    Action.ARM_SWEEP: lambda running: running._arm(SWEEP_S),
    Action.ARM_KILL: lambda running: running._arm(KILL_S),
    Action.ARM_DRAIN: lambda running: running._flow.begin_draining(),
}


def _how(ended: Exit) -> str:
    return f"code {ended.code}" if ended.signal is None else name_of(ended.signal)
