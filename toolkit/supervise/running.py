"""One phase's processes, from the start of the first to the last byte of the last: stop.py's table, carried out."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from toolkit import slate
from toolkit.errors import UserError
from toolkit.job.outcome import Ended, Exit, Hung, Ruled
from toolkit.job.plan import Phase, ProcessSpec
from toolkit.log import Log
from toolkit.supervise import children, stacks, waiting
from toolkit.supervise.console import Console
from toolkit.supervise.daemons import Daemons
from toolkit.supervise.flow import Flow
from toolkit.supervise.hang import HangWatch, Stall, odd
from toolkit.supervise.kernel import descendants
from toolkit.supervise.others import Others, Rules, Word
from toolkit.supervise.process import Process, command_name
from toolkit.supervise.pulse import Pulse
from toolkit.supervise.ranks import Door, Launch, Request, Serve, StandIn, write_agent, write_wrapper
from toolkit.supervise.relay import RankFile, Stream
from toolkit.supervise.signals import FORWARDED, STOPPING, Signals, name_of
from toolkit.supervise.stop import Action, Event, answer
from toolkit.supervise.stop import Phase as StopPhase

FAILURE_GRACE_S = 30.0
# Ranks that hang rarely hear a signal: a Python handler does not run while the main thread is in a collective.
HUNG_GRACE_S = 5.0
LAUNCHER_S = 1.0
# Within which every rank knows the step at which all stop: on one host, and across hosts (peers.roll.AGREE_S and a
# way).
AGREED_WITHIN_S = 0.05
OTHERS_AGREED_WITHIN_S = 1.5
# A stopped launcher may wait for other hosts, whose ranks are still saving.
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
SLATE = "slate"
# The process that looks whether the leader's services are still needed.
WAITING = "waiting"
STANDIN = Path(__file__).parent.parent / "hook" / "standin.py"
AGENT = Path(__file__).parent.parent / "hook" / "mpi_agent.py"


class Around(Protocol):
    """What outlives a phase (loop.Supervisor)."""

    signals: Signals
    console: Console
    log: Log
    run_folder: Path
    python: str
    prctl: children.Prctl
    guardian: children.Guardian | None
    stopped_by: int | None
    stopped_at_ns: int | None
    others: Others | None
    stall: Stall | None
    rules: Rules | None
    pulse: Pulse
    peer_failed: bool
    leader_done: bool

    def hear(self) -> list[Word]:
        """Serve the link to the other hosts and return its words."""

    def take_signals(self) -> list[int]:
        """Return the signals that came; the first that asks to stop is kept."""


class Running:
    """Runs one phase; `run` returns what was seen."""

    def __init__(self, around: Around, phase: Phase) -> None:
        self._around = around
        self._phase = phase
        self._spec = phase.main
        self._log = around.log
        self._flow = Flow(around.console)
        self._living: dict[int, Process] = {}
        self._streams: dict[str, tuple[Stream, Stream]] = {}
        self._files: list[RankFile] = []
        self._exits: list[Exit] = []
        self._daemons = Daemons(around.others)
        self._command = phase.main.argv
        self._held: list[StandIn] = []
        self._killed: set[int] = set()
        self._aborted: set[int] = set()
        self._aborts_s: float | None = None
        self._had_ranks = False
        self._ranks_end_s: float | None = None
        self._main_exit: Exit | None = None
        self._stays = False
        self._leader_done_s: float | None = None
        self._ended_late = False
        self._state: StopPhase = "running"
        self._deadline_s: float | None = None
        self._stop_number = int(signal.SIGTERM)
        self._child_ended = False
        self._looked_s = 0.0
        self._forced = False
        self._stopped_here = False
        self._notes: list[str] = []
        self._raised: dict[int, bytes] = {}
        self._hung: Hung | None = None
        self._ruled: Ruled | None = None
        watched = around.stall if phase.together else None
        self._hangs = HangWatch(watched, phase.main.environ, around.prctl) if watched is not None else None
        self._asked: slate.Stop | None = None
        self._waiting_to_stop: Callable[[], list[Process]] | None = None

    def run(self) -> Ended:
        """Start the phase's process and stay until everything is over.

        Raises:
            UserError: it cannot be started.
        """
        self._flow.watch(self._around.signals.fd, self._on_signal)
        if self._around.others is not None:
            self._flow.watch(self._around.others.fd, self._on_others)
        door = self._open_door()
        try:
            for service in self._phase.services:
                self._start_service(service)
            self._start_main()
            while self._state != "done":
                self._flow.step(self._timeout_s())
                if self._child_ended:
                    self._child_ended = False
                    self._reap()
                if self._around.others is not None and self._around.others.rest_s() <= 0.01:
                    self._on_others()
                self._tick(time.monotonic())
        finally:
            if door is not None:
                door.close()
            for process in self._living.values():  # Only after an error of our own: nothing is left behind.
                children.send(process.pid, signal.SIGKILL)
        written = self._hangs.collected(math.inf) if self._hangs is not None else None
        if written is not None:
            self._on_stacks(*written)
        self._flow.end()
        return self._ended()

    # --- starting

    def _open_door(self) -> Door | None:
        if not self._spec.stand_in and not self._spec.door:
            return None
        around = self._around
        try:
            return self._opened_door(Door(around.run_folder))
        except OSError as error:
            self._note(f"{around.run_folder}: {error.strerror}; ranks are left to {self._spec.name}")
            self._spec = _without_stand_in(self._spec)
            return None

    def _opened_door(self, door: Door) -> Door | None:
        around = self._around
        wrapper = around.run_folder / "rank"
        python = self._spec.environ.get("TOOLKIT_RANK_PYTHON")
        if python is not None and not write_wrapper(
            wrapper, script_python=python, python=around.python, standin=STANDIN, door=door.path
        ):
            self._note(f"{wrapper} cannot be executed (noexec, or no /bin/sh): ranks are left to {self._spec.name}")
            self._spec = _without_stand_in(self._spec)
            door.close()
            return None
        agent = around.run_folder / "agent"
        if self._spec.door == "agent" and not write_agent(agent, python=around.python, agent=AGENT):
            self._note(f"{agent} cannot be executed (noexec, or no /bin/sh): no daemon can be started on other hosts")

        def on_knock() -> None:
            while (standin := door.accept()) is not None:
                self._flow.watch(standin.fd, lambda guest=standin: self._on_standin(guest))  # type: ignore[misc]

        self._flow.watch(door.fd, on_knock)
        return door

    def _start_main(self) -> None:
        spec = self._spec
        environ = {name: value for name, value in spec.environ.items() if name != "TOOLKIT_RANK_PYTHON"}
        environ |= spec.launcher_environ
        shared = bool(spec.starts_ranks) and spec.stand_in
        process = Process(spec.name, is_main=True, rank=spec.rank, local_rank=None)
        self._start(process, spec.argv, environ, spec.cwd, shared=shared or bool(self._phase.services))

    def _start_service(self, spec: ProcessSpec) -> None:
        process = Process(spec.name, is_main=False, rank=None, local_rank=None, is_service=True)
        self._start(process, spec.argv, spec.environ, spec.cwd, shared=True)

    def _start_rank(self, standin: StandIn, asked: Request) -> None:
        if self._state != "running":
            standin.answer(code=None, number=signal.SIGTERM)
            return
        rank, local_rank = (asked.number(name.encode()) for name in self._spec.rank_variables)
        environ = dict(asked.environ)
        spec = self._spec
        for own in (*spec.own_variables, *(spec.environ if spec.own_environ else ())):
            environ.pop(own.encode(), None)
            if own in spec.environ:
                environ[own.encode()] = os.fsencode(spec.environ[own])
        for name in (b"PYTHON_EXEC", b"TOOLKIT_DOOR"):
            environ.pop(name, None)
        if asked.passed is not None:
            environ[b"PMI_FD"] = str(asked.passed).encode()
        if b"TOOLKIT_PYTHON_EXEC" in environ:
            environ[b"PYTHON_EXEC"] = environ.pop(b"TOOLKIT_PYTHON_EXEC")
        process = Process(f"rank {rank}", is_main=False, rank=rank, local_rank=local_rank)
        process.standin = standin
        try:
            self._start(
                process,
                asked.argv,
                environ,
                asked.cwd,
                shared=len(self._spec.starts_ranks) > 1 or self._around.console.prefixes,
                before_exec=lambda: _as_asked(asked),
            )
        except UserError as error:
            self._log.error(str(error))
            standin.answer(code=127, number=None)
            return
        standin.pid = process.pid
        self._had_ranks = True
        if spec.door == "daemon":  # What it became is MPI's; people ask what their ranks were started with.
            self._command = asked.argv

    def _start(
        self,
        process: Process,
        argv: tuple[str, ...],
        environ: dict[str, str] | dict[bytes, bytes],
        cwd: Path | str,
        *,
        shared: bool,
        before_exec: Callable[[], None] = lambda: None,
    ) -> None:
        pipes = (*os.pipe(), *os.pipe())
        out, out_write, err, err_write = pipes
        prctl = self._around.prctl
        try:
            process.started(
                children.spawn(
                    argv, environ, cwd, stdout=out_write, stderr=err_write, prctl=prctl, before_exec=before_exec
                )
            )
        except BaseException:
            for fd in pipes:
                os.close(fd)
            raise
        os.close(out_write)
        os.close(err_write)
        streams, file = self._around.console.streams(process.name, process.rank, stdout=out, stderr=err, shared=shared)
        for stream in streams:
            self._flow.add(stream)
        self._streams[process.name] = streams
        if file is not None:
            self._files.append(file)
        self._living[process.pid] = process
        if self._around.rules is not None and process.rank is not None:
            self._around.rules.started(process.rank, process.pid)
        self._child_ended = True  # It may have ended before this line; looking costs one system call.

    # --- what happens

    def _on_signal(self) -> None:
        for number in self._around.take_signals():
            if number in STOPPING:
                self._stop_number = number
                # Again: to this host. Platforms stop all hosts at once, and another's stop may be here first.
                self._event(Event.STOP_AGAIN if self._stopped_here else Event.STOP)
                self._stopped_here = True
            elif number in FORWARDED:
                self._signal_ranks(number, told=False)
            elif number == signal.SIGCHLD:
                self._child_ended = True

    def _on_others(self) -> None:
        for word, number in self._around.hear():
            if word == "stop":
                self._stop_number = number
                self._event(Event.STOP)
            elif word == "step":
                self._agree(number)
            elif word == "hang":
                self._on_hang(float(number))
            elif word in ("launch", "landed"):
                self._daemons.serve()
            elif word == "over":
                self._daemons.on_over()
            elif word == "rested":
                self._event(Event.ALL_RESTED)
                self._services_end()
            elif word == "settled":
                self._services_end()
            elif word == "fail":
                self._reap()  # What has failed here by now is evidence, not what we end.
                self._event(Event.PEER_FAILED)
                if self._around.others is not None:
                    self._around.others.answer(self._so_far())

    def _on_standin(self, standin: StandIn) -> None:
        numbers, gone = standin.read()
        if gone:
            self._flow.unwatch(standin.fd)
            standin.close()
        elif standin.asked is not None and standin.pid is None and not standin.answered:
            self._on_asked(standin, standin.asked)
        if (gone or numbers) and standin.pid in self._living:
            self._on_launcher_stops(standin.pid)

    def _on_launcher_stops(self, pid: int) -> None:
        if not self._spec.stop.as_one:
            self._event(Event.LAUNCHER_STOPS)
            return
        self._aborted.add(pid)
        if self._aborts_s is None:
            self._aborts_s = time.monotonic() + ABORT_S

    def _on_asked(self, guest: StandIn, asked: Request | Launch | Serve) -> None:
        if isinstance(asked, Request):
            self._start_rank(guest, asked)
        elif isinstance(asked, Launch):
            problem = self._daemons.on_launch(guest, asked)
            if problem:
                self._log.error(problem)
        else:
            self._daemons.on_waiter(guest)

    def _reap(self) -> None:
        """Take all that have ended before anything is done about one: a signal to a zombie would count as told."""
        ends: list[tuple[Process, Exit]] = []
        for pid, status, ended_ns in children.reap():
            process = self._living.pop(pid, None)
            if process is not None:
                ended = process.exit(status, ended_ns, *self._raised_by(pid))
                ends.append((process, self._with_others(process, ended)))
            elif self._around.guardian is not None and pid == self._around.guardian.pid:
                self._note("the guardian process was ended by somebody")
            # Else an orphan that we adopted: reaped, and no business of the outcome.
        self._exits += [ended for process, ended in ends if self._counts(process, ended)]
        for process, ended in ends:
            self._on_exit(process, ended)

    def _with_others(self, process: Process, ended: Exit) -> Exit:
        """Return *ended*; as told, where a rank crashed while MPI was aborted (MPICH's do): another is the cause. One
        that had already left word of its own end crashed on the way out (in MPI_Abort): its own code is the end."""
        if not self._spec.stop.as_one or process.standin is None or ended.signal is None:
            return ended
        numbers, gone = process.standin.read()
        if not (numbers or gone or process.pid in self._aborted):
            return ended
        if ended.raised_ns is not None and not ended.told:
            return msgspec.structs.replace(ended, code=self._raised_by(process.pid)[1], signal=None)
        return msgspec.structs.replace(ended, told=True)

    def _counts(self, process: Process, ended: Exit) -> bool:
        """True if an end is the job's business: a service's only where it failed while it was needed."""
        return not process.is_service or (self._state == "running" and not ended.ok and not ended.told)

    def _raised_by(self, pid: int) -> tuple[int | None, int]:
        """Return when the main thread of a process raised the exception it died of (None: the hook saw none), and the
        code that this leads to."""
        found = slate.raised(self._around.run_folder / SLATE, pid)
        if found is None or found.thread != "main":
            return None, 1
        self._raised[pid] = found.text.strip().encode()
        return found.time_ns, found.code

    def _on_exit(self, process: Process, ended: Exit) -> None:
        if not ended.ok and not ended.told and self._state == "running" and self._around.others is not None:
            self._around.others.failing(self._so_far())
        if process.is_service:
            self._on_service_exit(process, ended)
            return
        if process.standin is not None and self._is_held(ended):
            self._held.append(process.standin)
        elif process.standin is not None:
            process.standin.answer(code=ended.code, number=ended.signal)
        if process.is_main:
            self._main_exit = ended
            for standin in self._held:
                standin.answer(code=0, number=None)
        if process.is_main and self._spec.door:
            self._daemons.main_ended(ended.status, leads=self._spec.door == "agent")
        if not self._at_work():
            self._on_all_ended()
        elif process.is_main:
            self._event(Event.LAUNCHER_STOPS)
        else:
            if not ended.ok:
                self._say_failed(process, ended)
                self._event(Event.RANK_FAILED)
            if not any(p.rank is not None for p in self._living.values()):
                self._event(Event.RANKS_ENDED)
                if self._around.others is None:
                    self._daemons.on_over()

    def _at_work(self) -> list[Process]:
        """Return the processes whose end is awaited: all but services."""
        return [process for process in self._living.values() if not process.is_service]

    def _on_all_ended(self) -> None:
        """Launcher and ranks have ended; services stay as long as other hosts' may need them."""
        well = self._main_exit is not None and self._main_exit.ok
        self._stays = self._phase.serves_all and (self._state == "stopping" or (self._state == "running" and well))
        others, served = self._around.others, self._phase.served
        if self._stays and others is not None:
            if self._phase.leads:
                others.over()
            others.rested()
        elif self._stays and served is not None:
            self._log.info(f"this host's services stay until nothing listens on {served.address}:{served.port}")
            process = Process(WAITING, is_main=False, rank=None, local_rank=None, is_service=True)
            process.started(children.fork_call(lambda: waiting.wait_gone(served), prctl=self._around.prctl))
            self._living[process.pid] = process
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
        """True if the launcher is not to hear of this end: it would end ranks that still save, on every host."""
        return self._ends_as_one and (self._state in ("stopping", "failing", "leaving") or not ended.ok)

    @property
    def _ends_as_one(self) -> bool:
        # Without the link only the launcher can tell the other hosts.
        return self._spec.stop.as_one and not (self._spec.door and self._around.others is None)

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
        if self._state == "failing" and not self._at_work():
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
        for when_s in (self._deadline_s, self._aborts_s, self._leader_done_s):
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
        if self._hangs is not None:
            self._look_for_hang(self._hangs, now_s)
        if self._around.rules is not None and self._ruled is None and self._phase.together:
            self._heed(self._around.rules)
        if self._waiting_to_stop is not None:
            self._stop_unless_holding(self._waiting_to_stop)
        if self._phase.serves_all and self._around.leader_done and self._state == "running" and self._at_work():
            self._end_after_leader(now_s)
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
            self._ended_late = True
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
            idle_s = watch.idle_s(self._written_bytes(), now_s)
            if idle_s is not None and self._around.others is not None:
                self._around.others.idle(idle_s)
            elif idle_s:
                self._on_hang(idle_s)
        written = watch.collected(now_s)
        if written is not None:
            self._on_stacks(*written)

    def _written_bytes(self) -> dict[int, int]:
        ranks = [process for process in self._living.values() if process.rank is not None]
        return {p.pid: sum(stream.read_bytes for stream in self._streams[p.name]) for p in ranks}

    def _on_hang(self, idle_s: float) -> None:
        if self._state != "running":
            return
        if self._hangs is None:  # Other hosts watch for hangs; this one was not told to, and ends with them.
            self._event(Event.PEER_FAILED)
            return
        found = odd(self._rank_pids())
        told = "".join(f"; {each}" for each in found)
        where = f"their stacks go to {self._hangs.folder}"
        self._log.error(f"no rank has written or computed anything for {idle_s:.0f} s{told}: {where}")
        self._around.pulse.stalled(idle_s)
        if self._hangs.stops:
            self._hung = Hung(idle_s=idle_s, odd=found)
            self._event(Event.HUNG)
        else:
            self._dump()

    def _rank_pids(self) -> dict[str, int]:
        return {process.name: process.pid for process in self._living.values() if process.rank is not None}

    def _dump(self) -> None:
        if self._hangs is not None and (problem := self._hangs.dump(self._rank_pids())):
            self._note(problem)

    def _on_stacks(self, files: list[str], waited_for: tuple[str, ...]) -> None:
        self._note("stacks: " + (", ".join(files) or "none (no rank has the start-up hook, and py-spy is not here)"))
        if self._hung is not None:
            self._hung = msgspec.structs.replace(self._hung, odd=odd(self._rank_pids()) or waited_for)
            if self._around.others is not None:
                self._around.others.answer(self._so_far())

    def _look_around(self) -> None:
        """See whether a descendant lives; a new one may have been forked since the last look, so kill again."""
        self._looked_s = time.monotonic()
        left = self._left()
        if left and self._state == "killing":
            children.send_all(left, signal.SIGKILL)
        if not left:
            self._reap()
            if not self._living:
                self._event(Event.QUIET)

    def _left(self) -> set[int]:
        guardian = self._around.guardian
        return descendants(os.getpid()) - ({guardian.pid} if guardian is not None else set())

    def _ranks(self) -> list[Process]:
        """Return the living ranks; before there is one, the launcher."""
        ranks = [process for process in self._living.values() if process.rank is not None]
        return ranks or [process for process in self._living.values() if process.is_main]

    def _signal(self, processes: list[Process], number: int, *, told: bool = True) -> None:
        for process in processes:
            if told:
                process.tell()
            children.send(process.pid, number)

    def _signal_ranks(self, number: int, *, told: bool = True) -> None:
        self._signal(self._ranks(), number, told=told)

    def _forward(self) -> None:
        if self._spec.stop.as_one and self._had_ranks and all(p.rank is None for p in self._living.values()):
            self._log.info(f"{name_of(self._stop_number)} received; no rank lives here, those of other hosts may")
            self._event(Event.RANKS_ENDED)
            return
        if not self._at_work():
            self._log.info(f"{name_of(self._stop_number)} received; no rank lives here, those of other hosts may")
            return
        who = ", ".join(process.name for process in self._ranks())
        grace_s = self._spec.stop.grace_s
        self._ask(grace_s)
        self._signal_ranks(self._stop_number)
        self._log.info(
            f"{name_of(self._stop_number)} received and passed on to {who}; "
            f"SIGKILL in {grace_s:g} s, or at once if told again"
        )

    def _ask(self, grace_s: float) -> None:
        """Tell scripts that use toolkit.status before the signal does; a script that cannot be told has its signal."""
        self._asked = slate.Stop(
            requested_at_ns=self._around.stopped_at_ns or time.time_ns(),
            deadline_ns=time.monotonic_ns() + int(grace_s * 1e9),
            signal=self._stop_number,
        )
        others = self._around.others
        if others is None:
            self._agree(self._step_by(AGREED_WITHIN_S))
        else:
            self._agree(None)
            others.propose(self._step_by(OTHERS_AGREED_WITHIN_S))

    def _step_by(self, seconds: float) -> int:
        """Return the step that no rank here will have gone past so long from now; 0 if none tells its steps."""
        told = slate.read_all(self._around.run_folder / SLATE)
        now_ns = time.time_ns()
        return slate.common_step(
            (told[pid] for pid in self._living if pid in told), now_ns, now_ns + int(seconds * 1e9)
        )

    def _agree(self, step: int | None) -> None:
        """Tell every rank here at which step all stop."""
        if self._asked is None:
            return
        self._asked = msgspec.structs.replace(self._asked, stop_step=step)
        try:
            slate.ask(self._around.run_folder / SLATE, self._asked)
        except OSError as error:
            self._log.debug(f"slate: {error}")

    def _stop_ranks(self) -> None:
        self._stop_unless_holding(lambda: [p for p in self._living.values() if p.rank is not None])

    def _stop_unless_holding(self, whom: Callable[[], list[Process]]) -> None:
        """SIGTERM to *whom*, once no rank holds a checkpoint open (toolkit.status); the deadline runs all the same."""
        holding = sorted(process.name for process in self._living.values() if self._is_holding(process.pid))
        if not holding:
            self._waiting_to_stop = None
            self._signal(whom(), signal.SIGTERM)
        elif self._waiting_to_stop is None:
            self._log.info(f"{', '.join(holding)} is writing a checkpoint: the others wait for it")
            self._waiting_to_stop = whom

    def _is_holding(self, pid: int) -> bool:
        found = slate.read_rank(self._around.run_folder / SLATE / f"rank-{pid}")
        return found is not None and found.holding > 0

    def _tell_launcher(self) -> None:
        self._signal([process for process in self._living.values() if process.is_main], signal.SIGTERM)

    def _sweep(self) -> None:
        services = [process for process in self._living.values() if process.is_service]
        self._signal(services, signal.SIGTERM)
        left = self._left() - self._killed - {process.pid for process in services}
        if strangers := left - self._daemons.pids:
            names = ", ".join(sorted({command_name(pid) for pid in strangers}))
            self._log.info(f"{len(strangers)} process(es) outlived the script and get SIGTERM: {names}")
        children.send_all(left, signal.SIGTERM)

    def _kill(self) -> None:
        ranks = [process for process in self._at_work() if process.rank is not None or not self._spec.stand_in]
        if ranks:
            self._forced = True
            self._note(f"SIGKILL to {', '.join(process.name for process in ranks)}, which had not ended")
        for process in self._living.values():
            process.kill()
        children.send_all(self._left(), signal.SIGKILL)

    def _arm(self, seconds: float) -> None:
        self._deadline_s = time.monotonic() + seconds

    def _arm_ranks(self, seconds: float) -> None:
        self._arm(min(self._spec.stop.grace_s, seconds))
        self._ranks_end_s = self._deadline_s

    def _rest(self) -> None:
        if not self._ends_as_one:
            return
        self._deadline_s = self._ranks_end_s
        if self._around.others is None:
            self._event(Event.ALL_RESTED)
        else:
            self._around.others.rested()

    def _kill_launcher(self) -> None:
        if not self._ends_as_one:
            return
        for process in self._living.values():
            process.kill()
            self._killed |= {process.pid, *descendants(process.pid)}
            for stream in self._streams[process.name]:
                self._flow.forget(stream)  # What it says of daemons that are killed, too, is news to nobody.
        children.send_all(self._killed, signal.SIGKILL)

    def _arm_launcher(self) -> None:
        stopped = self._around.stopped_by is not None and not self._spec.stop.as_one
        self._arm(STOPPED_LAUNCHER_S if stopped and self._state == "leaving" else LAUNCHER_S)

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._log.warning(text)

    def _ended(self) -> Ended:
        for file in self._files:
            file.close()
        return self._so_far()

    def _tails(self, exits: tuple[Exit, ...]) -> dict[str, tuple[bytes, bytes]]:
        """Return what each process said last, the exception that it died of among it: that may not be printed yet, or
        never be (our signal came first), and without it an echo of another's failure would look like a cause."""
        tails = {name: (err.tail.text(), out.tail.text()) for name, (out, err) in self._streams.items()}
        for end in exits:
            raised, (err, out) = self._raised.get(end.pid, b""), tails.get(end.process, (b"", b""))
            if raised and raised[-512:] not in err:
                tails[end.process] = (b"\n".join((err, raised, b"")), out)
        return tails

    def _doomed(self) -> Iterator[Exit]:
        """Yield the ends to come of ranks that live, but have raised the exception they will die of."""
        for process in self._living.values():
            raised_ns, code = self._raised_by(process.pid)
            if raised_ns is not None and process.rank is not None:
                yield process.exit(code << 8, time.time_ns(), raised_ns)

    def _so_far(self) -> Ended:
        exits = (*self._exits, *self._doomed())
        return Ended(
            phase=self._phase.name,
            failure=self._phase.failure,
            command=self._command,
            exits=exits,
            main=self._spec.name,
            tails=self._tails(exits),
            stopped_by=self._around.stopped_by,
            stopped_at_ns=self._around.stopped_at_ns,
            forced=self._forced,
            peer_failed=self._around.peer_failed,
            leader_done=self._ended_late,
            hung=self._hung,
            ruled=self._ruled,
            long_lines=sum(stream.lines.long_lines for pair in self._streams.values() for stream in pair),
            notes=tuple(self._notes),
        )


_ACTIONS: dict[Action, Callable[[Running], None]] = {
    Action.FORWARD: Running._forward,
    Action.STOP_RANKS: Running._stop_ranks,
    Action.DUMP: Running._dump,
    Action.ARM_DUMP: lambda running: running._arm(stacks.WITHIN_S),
    Action.ARM_HUNG: lambda running: running._arm(min(running._spec.stop.grace_s, HUNG_GRACE_S)),
    Action.STOP_HERE: lambda running: running._stop_unless_holding(running._ranks),
    Action.TELL_LAUNCHER: Running._tell_launcher,
    Action.SWEEP: Running._sweep,
    Action.KILL: Running._kill,
    Action.ARM_GRACE: lambda running: running._arm_ranks(running._spec.stop.grace_s),
    Action.REST: Running._rest,
    Action.KILL_LAUNCHER: Running._kill_launcher,
    Action.ARM_FAILURE: lambda running: running._arm_ranks(running._spec.stop.failure_s),
    Action.ARM_LAUNCHER: Running._arm_launcher,
    Action.ARM_SWEEP: lambda running: running._arm(SWEEP_S),
    Action.ARM_KILL: lambda running: running._arm(KILL_S),
    Action.ARM_DRAIN: lambda running: running._flow.begin_draining(),
}


def _how(ended: Exit) -> str:
    return f"code {ended.code}" if ended.signal is None else name_of(ended.signal)


def _as_asked(asked: Request) -> None:
    """Between fork and exec of a rank: the processors and the descriptor that its launcher gave the stand-in."""
    os.sched_setaffinity(0, asked.affinity)
    if asked.passed is not None:
        os.set_inheritable(asked.passed, True)


def _without_stand_in(spec: ProcessSpec) -> ProcessSpec:
    ours = ("PYTHON_EXEC", "TOOLKIT_PYTHON_EXEC", "TOOLKIT_RANK_PYTHON")
    environ = {name: value for name, value in spec.environ.items() if name not in ours}
    if "TOOLKIT_PYTHON_EXEC" in spec.environ:
        environ["PYTHON_EXEC"] = spec.environ["TOOLKIT_PYTHON_EXEC"]
    return msgspec.structs.replace(spec, stand_in=False, environ=environ)
