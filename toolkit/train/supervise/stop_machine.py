"""Pure: decides when and how the processes of this host are ended. Every flag that decides about it is here, or in
stop_job.py: what the machine knows of the whole job, which outlives a phase.

The machine takes one event at a time, with the facts of that moment, and returns actions. It does not act, has no
clock, and is never called while it computes an answer. An event becomes cues, which the table (stop.py) answers. If an
action causes an event, that event is posted later.

The machine lives as long as `train` supervises; `begin` and `end` are those of a phase.
"""

import math
from collections import deque
from typing import Literal

from toolkit.errors import assert_never
from toolkit.job import events
from toolkit.job.outcome import UNFINISHED_S, Exit
from toolkit.train.supervise import stop_log
from toolkit.train.supervise.stop_actions import (
    AnswerShim,
    HoldShim,
    HostState,
    HurryConsole,
    JobAction,
    PlainAction,
    ReleaseShims,
    ReportHang,
    ShowRankDone,
    StopAction,
    TellHosts,
    TellStop,
    UnfinalizedExit,
    WriteStopStep,
)
from toolkit.train.supervise.stop_facts import HostFacts, Policy
from toolkit.train.supervise.stop_job import JobState
from toolkit.train.supervise.stop_table import Arm, Cue, State, StopGuard, StopMark, answer
from toolkit.train.supervise.stop_times import ABORT_S, LEADER_DONE_S, LOOK_S, Timers, within_s


class StopMachine:
    """`on` takes events. Times are monotonic seconds. *host*: this host's name; *linked*: it has a link to others."""

    def __init__(self, host: str, *, linked: bool) -> None:
        self._linked = linked
        self.job = JobState(host)
        self.begin(Policy(), 0.0)
        self.state: State = "idle"

    def begin(self, policy: Policy, now_s: float) -> None:
        """Begin a phase."""
        self.policy = policy
        self.state = "running"
        # The first event that began to end the phase.
        self.cause: events.Event | None = None
        # StopMark.JOB_DONE: the remaining processes were ended because the job was done, not because of a failure.
        self.over = False
        # True: no process had failed when the launcher ended its ranks.
        self.launcher_first = False
        # The launcher, or the script that is the main process, ended with 0.
        self._main_ended_well = False
        # Launcher and ranks have ended; this host's services stay for ranks of other hosts.
        self._stays = False
        # No rank of the job lives any more, as far as this host was told.
        self._all_ranks_ended = False
        # The launcher of MPI has begun to end its ranks; the timer "abort" runs.
        self._aborts = False
        # A rank ended with 0 and without MPI_Finalize; the timer "unfinished rank" runs.
        self._unfinalized = False
        # A rank has ended with 0, as all hosts were told.
        self._rank_done = False
        # A rank writes a checkpoint, so the ranks are not signalled yet. "seen": one was seen writing; "retried": the
        # action `_stop_ranks` was tried again, and sets "seen" if one still writes; "": none.
        self._saving: Literal["", "seen", "retried"] = ""
        # The action by which the ranks were to be stopped, for that second try; None: there was none.
        self._stop_ranks: StopAction | None = None
        self._timers = Timers()
        # By when the ranks of this host must have ended.
        self._ranks_end_s = math.inf
        self._checked_s = now_s
        if self.job.leader_done:
            self._wait_for_leader(now_s)
        # The answer that `on` makes: actions in order, those that come after all others, and cues to look up.
        self._actions: list[StopAction] = []
        self._last: list[StopAction] = []
        self._cues: deque[Cue] = deque()

    def end(self) -> None:
        """End the phase, whatever its state."""
        self.state = "idle"

    # --- state that callers read

    @property
    def undisturbed(self) -> bool:
        """True while the phase runs and no event has begun to end it."""
        return self.state == "running"

    @property
    def hurries(self) -> bool:
        """True if scripts should not wait for a stalled console."""
        return self.state not in ("running", "draining") or self.job.stop is not None

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until a Tick is due even if no event comes."""
        due_s = self._timers.first_s()
        if self.state in ("sweeping", "killing"):
            due_s = min(due_s, self._checked_s + LOOK_S)
        return max(min(due_s - now_s, LOOK_S if self._saving else math.inf), 0.0)

    def is_due(self, now_s: float) -> bool:
        """True if a Tick is due: by time, or because the machine must look for what it waits for."""
        return bool(self._saving) or self.state == "draining" or self.due_in_s(now_s) <= 0

    # --- events

    def on(self, event: events.Event, facts: HostFacts) -> tuple[State, tuple[StopAction, ...]]:
        """Take *event*; return the next state, and the actions in order."""
        self._event, self._facts = event, facts
        self._cues.clear()
        self._actions, self._last = list(self.note_for_job(event, facts)), []
        if self.state != "idle":
            self._phase_event(event)
            self._follow_cues()
            self._check_for_processes()
        return self.state, (*self._actions, *self._last)

    def note_for_job(self, event: events.Event, facts: HostFacts) -> tuple[JobAction, ...]:
        """Note what *event* says about the whole job, and return the actions that concern no phase."""
        if not isinstance(event, events.Stop):
            self.job.note(event)
            return ()
        is_first = self.job.stop is None
        cue = self.job.note_stop(event, facts)
        if cue is None:
            return ()
        self._cues.append(cue)
        if not is_first:
            return ()
        tells = self._linked and self.job.is_of_this_host(event)
        return (HurryConsole(), TellStop(stop=event)) if tells else (HurryConsole(),)

    def _phase_event(self, event: events.Event) -> None:  # noqa: PLR0912 - a case for each event.
        match event:
            case events.PeerFailed():
                self._cues.append(Cue.PEER_FAILED)
                self._last.append(TellHosts(message=HostState.OWN_FAILURE))
            case events.RankEnded() | events.MainEnded():
                self._on_worker_end(event)
            case events.ServiceEnded():
                self._on_service_end(event.exit)
            case events.LauncherSignals():
                self._on_launcher_signals()
            case events.Hang() | events.HangNoticed():
                self._on_hang(event)
            case events.RuleMatched():
                self._on_rule_matched()
            case events.RanksSave():
                self._on_ranks_save(event)
            case events.AllRanksEnded():
                self._all_ranks_ended = True
                self._cues.append(Cue.ALL_RANKS_ENDED)
                self._services_end()
            case events.JobEnded():
                self._all_ranks_ended = True  # As far as this host can know: no message follows.
                if self.state == "leaving" and self.job.stop is not None:
                    self._cues.append(Cue.ALL_RANKS_ENDED)
                self._services_end()
            case events.NobodyServed():
                self._services_end()
            case events.LeaderDone():
                self._actions.append(PlainAction.DISMISS_DAEMONS)
                self._wait_for_leader(self._facts.now_s)
            case events.RankDone():
                self._actions.append(ShowRankDone(done=event))
            case events.StopStep():
                self._actions.append(WriteStopStep(step=event.step))
            case events.Launch() | events.DaemonEnded():
                self._actions.append(PlainAction.SERVE_DAEMONS)
            case events.StacksWritten():
                self._cues.append(Cue.DUMPED)
            case events.NothingLeft():
                self._cues.append(Cue.NOTHING_LEFT)
            case events.Tick():
                self._on_tick(self._facts)
            case events.Stop() | events.AllReady() | events.NextAttempt():
                pass  # They concern the whole job: `note_for_job`.
            case _:
                assert_never(event)

    def _on_ranks_save(self, event: events.RanksSave) -> None:
        if self._stop_ranks is not None:
            self._actions += [] if self._saving else [stop_log.ranks_save(event.names)]
            self._saving = "seen"

    def _on_rule_matched(self) -> None:
        if self.undisturbed:
            self._tell_failing()
            self._cues.append(Cue.RULED)

    def _wait_for_leader(self, now_s: float) -> None:
        """End the ranks of this host if they live on after the launcher on the leader's host has ended."""
        if self.policy.serves_all:
            self._timers.set("leader done", now_s + LEADER_DONE_S)

    def _on_worker_end(self, event: events.RankEnded | events.MainEnded) -> None:
        """The launcher, the script or a rank has ended."""
        exit, facts, is_main = event.exit, self._facts, isinstance(event, events.MainEnded)
        if self._is_own_failure(exit):
            self._tell_failing()
        if exit.without_mpi_finalize and self.undisturbed:
            self._on_unfinalized(exit)
        if self.policy.ranks_join and exit.rank is not None and exit.ok and self.undisturbed and not self._rank_done:
            self._rank_done = True
            done = events.RankDone(host=self.job.host, process=exit.process)
            self._actions.append(TellHosts(message=done) if self._linked else ShowRankDone(done=done))
        self._actions.append(HoldShim(exit=exit) if self._holds_shim(exit) else AnswerShim(exit=exit))
        if is_main:
            self._main_ended_well = exit.ok
            self._actions.append(ReleaseShims(exit=exit))
        if not facts.at_work:
            self._on_all_ended()
        elif is_main:
            self.launcher_first = self.launcher_first or self.undisturbed
            self._cues.append(Cue.LAUNCHER_STOPS)
        else:
            if not exit.ok:
                self._actions += [stop_log.rank_failed(exit)] if self.undisturbed else []
                self._cues.append(Cue.RANK_FAILED)
            if not facts.ranks:
                self._cues.append(Cue.RANKS_ENDED)
                if not self._linked:
                    self._last.append(PlainAction.DISMISS_DAEMONS)

    def _on_service_end(self, exit: Exit) -> None:
        if self._is_own_failure(exit):
            self._tell_failing()
            self._actions.append(stop_log.service_failed(exit))
            self._cues.append(Cue.SERVICE_FAILED)
        elif not self._facts.living:
            self._services_end()

    def _is_own_failure(self, exit: Exit) -> bool:
        return not exit.ok and not exit.signalled and self.undisturbed

    def _tell_failing(self) -> None:
        self._actions += [TellHosts(message=HostState.FAILING)] if self._linked else []

    def _holds_shim(self, exit: Exit) -> bool:
        """True if the rank's shim must keep running, so that the launcher does not learn of this end.

        A launcher of `ends_as_one` would end ranks that still save, on every host. torchrun would log and summarize a
        failure before it is killed with the last rank.
        """
        if self.policy.ends_as_one:
            return self.state in ("stopping", "failing", "leaving") or not exit.ok
        silent = self.policy.ends_with_ranks and not self.launcher_first
        return silent and (self.state in ("failing", "leaving") or not exit.ok)

    def _on_unfinalized(self, exit: Exit) -> None:
        """Handle a rank that ended with 0 without MPI_Finalize. MPICH ignores it, and the others would wait forever."""
        self._actions.append(stop_log.rank_unfinalized(exit))
        if self._linked:
            self._actions.append(TellHosts(message=UnfinalizedExit(exit=exit)))
        elif not self._unfinalized:
            self._unfinalized = True
            self._timers.set("unfinished rank", self._facts.now_s + UNFINISHED_S)

    def _on_all_ended(self) -> None:
        """Handle the end of launcher and ranks. Services stay as long as other hosts may need them."""
        well = self.undisturbed and self._main_ended_well
        self._stays = self.policy.serves_all and (self.state == "stopping" or well)
        if self._stays and self._linked:
            self._actions += [TellHosts(message=events.LeaderDone())] if self.policy.leads else []
            self._actions.append(TellHosts(message=HostState.RANKS_ENDED))
        elif self._stays and self.policy.is_served:
            self._actions.append(PlainAction.AWAIT_UNSERVED)
        else:
            self._stays = False
            self._cues.append(Cue.ALL_ENDED)

    def _services_end(self) -> None:
        """End this host's services: no host needs them any more."""
        if self._stays:
            self._stays = False
            self._cues.append(Cue.ALL_ENDED)

    def _on_launcher_signals(self) -> None:
        self.launcher_first = self.launcher_first or self.undisturbed
        if not self.policy.as_one:
            self._cues.append(Cue.LAUNCHER_STOPS)
        elif not self._aborts:
            self._aborts = True
            self._timers.set("abort", self._facts.now_s + ABORT_S)

    def _on_hang(self, event: events.Hang | events.HangNoticed) -> None:
        if not self.undisturbed:
            return
        if self.policy.on_hang == "unseen":
            # Other hosts watch for hangs and this one does not: it ends with them.
            self._cues += [Cue.PEER_FAILED] if isinstance(event, events.Hang) else []
            return
        self._actions.append(ReportHang(hang=event))
        if isinstance(event, events.Hang) and self.policy.on_hang == "stop":
            self._cues.append(Cue.HUNG)
        else:
            self._actions.append(PlainAction.DUMP_STACKS)

    def _on_tick(self, facts: HostFacts) -> None:
        if self._saving == "seen" and self._stop_ranks is not None:
            self._saving = "retried"  # RanksSave sets it to "seen" again.
            self._actions.append(self._stop_ranks)
        elif self._saving == "retried":
            self._saving = ""
        if self.state == "draining":
            self._timers.set("deadline", facts.drained_by_s)
            self._cues += [Cue.DRAINED] if facts.drained else []
        self._on_timers(facts)

    def _on_timers(self, facts: HostFacts) -> None:
        rings = self._timers.rings
        if rings("leader done", facts.now_s) and self.undisturbed and facts.at_work:
            self._actions.append(stop_log.leader_done())
            self._cues.append(Cue.LEADER_DONE)
        if rings("unfinished rank", facts.now_s) and self.undisturbed and facts.ranks:
            self._actions.append(stop_log.unfinalized_rank_awaited())
            self._cues.append(Cue.RANK_FAILED)
        if rings("abort", facts.now_s):
            self._cues.append(Cue.LAUNCHER_STOPS)
        ends = rings("deadline", facts.now_s)
        # At the deadline everything is killed anyway.
        if rings("optional", facts.now_s) and self.state == "sweeping" and not ends:
            self._actions.append(PlainAction.KILL_OPTIONAL)
        self._cues += [Cue.DEADLINE] if ends else []

    # --- cues, answers and deadlines

    def _follow_cues(self) -> None:
        """Look up every cue in order; an answer may append cues."""
        while self._cues:
            previous = self.state
            self.state, answers = answer(self.state, self._cues.popleft(), self._holds)
            if previous == "running" and self.state != "running":
                self.cause = self._event
            for part in answers:
                match part:
                    case Arm():
                        self._arm(part)
                    case Cue():
                        self._cues.append(part)
                    case StopMark():
                        self.over = self.over or self._facts.at_work
                    case _:
                        self._actions.append(part)
                        if part in (PlainAction.TERMINATE_RANKS, PlainAction.TERMINATE_RANKS_OR_LAUNCHER):
                            self._stop_ranks = part
            if self.state == "failing" and not self._facts.at_work:
                self._services_end()

    def _holds(self, guard: StopGuard) -> bool:
        policy, facts = self.policy, self._facts
        match guard:
            case StopGuard.NOTHING_AT_WORK:
                return not facts.at_work
            case StopGuard.LAUNCHER_WAITS:
                return policy.waits_for_others and facts.only_launcher_lives
            case StopGuard.LAUNCHER_ENDS_WITH_RANKS:
                return policy.ends_with_ranks and facts.only_launcher_lives
            case StopGuard.RANKS_ENDED_WELL:
                return policy.ends_with_ranks and facts.ranks_ended_well
            case StopGuard.TRAIN_ENDS_LAUNCHER:
                return policy.ends_as_one or policy.ends_with_ranks
            case StopGuard.LAUNCHER_ADDS_NOTHING:
                return policy.ends_as_one or (policy.ends_with_ranks and not self.launcher_first)
            case StopGuard.LAST_HOST:
                return self._all_ranks_ended or not self._linked
            case _:
                return assert_never(guard)

    def _arm(self, arm: Arm) -> None:
        if arm is Arm.RANKS_END:
            self._timers.set("deadline", self._ranks_end_s)
            return
        due_s = self._facts.now_s + within_s(arm, self.policy)
        self._timers.set("optional" if arm is Arm.OPTIONAL else "deadline", due_s)
        if arm in (Arm.GRACE, Arm.FAILURE):
            self._ranks_end_s = due_s

    def _check_for_processes(self) -> None:
        """Have remaining processes looked for now, after each event, and every LOOK_S."""
        if self.state in ("sweeping", "killing"):
            is_early = isinstance(self._event, events.Tick) and self._facts.now_s < self._checked_s + LOOK_S
            if not is_early:
                self._checked_s = self._facts.now_s
                self._actions.append(PlainAction.CHECK_FOR_PROCESSES)
