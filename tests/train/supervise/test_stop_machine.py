"""The stop machine by histories alone: what it answers to events, in any order, and when."""

import math
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from toolkit.job.events import (
    AllRanksEnded,
    AllReady,
    Event,
    Hang,
    HangNoticed,
    JobEnded,
    LauncherSignals,
    LeaderDone,
    MainEnded,
    NextAttempt,
    NobodyServed,
    NothingLeft,
    PeerFailed,
    RankDone,
    RankEnded,
    RanksSave,
    RuleMatched,
    ServiceEnded,
    StacksWritten,
    Stop,
    Tick,
)
from toolkit.job.outcome import UNFINISHED_S, Exit, RuleMatch
from toolkit.job.restart import Restart
from toolkit.train.supervise import stop_log
from toolkit.train.supervise.stop_actions import (
    AnswerShim,
    HoldShim,
    HostState,
    HurryConsole,
    PlainAction,
    ReleaseShims,
    ReportHang,
    StopAction,
    TellHosts,
    TellStop,
)
from toolkit.train.supervise.stop_facts import HostFacts, Policy
from toolkit.train.supervise.stop_machine import StopMachine
from toolkit.train.supervise.stop_times import (
    ABORT_S,
    DUMP_S,
    HUNG_GRACE_S,
    KILL_S,
    LAUNCHER_S,
    LEADER_DONE_S,
    LOOK_S,
    STOPPED_LAUNCHER_S,
    SWEEP_S,
)

ME, OTHER = "algo-1", "algo-2"
STOP = Stop(host=ME, signal=signal.SIGTERM)
STOP_ELSEWHERE = Stop(host=OTHER, signal=signal.SIGTERM)
STOP_BY_RULE = Stop(host=ME, signal=signal.SIGTERM, rule="LossNotDecreasing")
HANG, HANG_NOTICED = Hang(seconds=9.0), HangNoticed(seconds=9.0)
TELL_RANKS_ENDED = TellHosts(message=HostState.RANKS_ENDED)
GRACE_S = 20.0
# They do something to processes.
SIGNALS = {
    PlainAction.FORWARD_SIGNAL,
    PlainAction.TERMINATE_RANKS,
    PlainAction.TERMINATE_RANKS_OR_LAUNCHER,
    PlainAction.TERMINATE_LAUNCHER,
    PlainAction.TERMINATE_LEFTOVERS,
    PlainAction.KILL_ALL,
    PlainAction.KILL_LAUNCHER,
}


def make_exit(code: int = 0, **more: Any) -> Exit:
    return Exit(process="rank 0", pid=7, started_ns=1, ended_ns=2, code=code, **more)


class Host:
    """A machine, and the processes of its host."""

    def __init__(self, *, linked: bool = False, ranks: int = 2, **policy: Any) -> None:
        self.machine = StopMachine(ME, linked=linked)
        self.now_s = 100.0
        self.ranks = ranks
        self.main = True
        self.services = 0
        self.had_ranks = ranks > 0
        self.well = False
        self.drained = False
        self.machine.begin(Policy(grace_s=GRACE_S, **policy), self.now_s)

    @property
    def facts(self) -> HostFacts:
        return HostFacts(
            now_ns=int(self.now_s * 1e9),
            ranks=self.ranks,
            main=self.main,
            living=bool(self.ranks or self.main or self.services),
            had_ranks=self.had_ranks,
            ranks_ended_well=self.well,
            drained=self.drained,
            drained_by_s=self.now_s + 1.0,
        )

    def on(self, *events: Event) -> list[StopAction]:
        """Return what is to be done about *events*."""
        return [action for event in events for action in self.machine.on(event, self.facts)[1]]

    def after(self, seconds: float) -> list[StopAction]:
        """Return what is to be done *seconds* later."""
        self.now_s += seconds
        return self.on(Tick())

    def rank_ends(self, code: int = 0, **more: Any) -> list[StopAction]:
        self.ranks -= 1
        return self.on(RankEnded(exit=make_exit(code, **more)))

    def main_ends(self, code: int = 0, **more: Any) -> list[StopAction]:
        self.main = False
        return self.on(MainEnded(exit=make_exit(code, **more)))

    @property
    def due_in_s(self) -> float:
        return round(self.machine.due_in_s(self.now_s), 6)


# --- one script, one host


def test_a_script_that_ends_by_itself_is_swept_and_drained() -> None:
    host = Host(ranks=0)

    done = [*host.main_ends(), *host.on(NothingLeft())]
    host.drained = True
    done += host.after(0.0)

    about_shims_and_checks = [
        AnswerShim(exit=make_exit()),
        ReleaseShims(exit=make_exit()),
        PlainAction.CHECK_FOR_PROCESSES,
    ]
    assert [action for action in done if action not in about_shims_and_checks] == [
        PlainAction.TERMINATE_LEFTOVERS,
        PlainAction.BEGIN_DRAIN,
    ]
    assert host.machine.state == "done"


def test_a_stop_is_forwarded_and_its_deadline_kills() -> None:
    host = Host()

    assert host.on(STOP) == [HurryConsole(), PlainAction.FORWARD_SIGNAL]
    assert host.due_in_s == GRACE_S
    assert PlainAction.KILL_ALL in host.after(GRACE_S)
    assert host.due_in_s == LOOK_S


def test_after_a_stop_optional_services_have_a_second_and_what_the_script_left_the_whole_grace() -> None:
    host = Host(ranks=0)
    host.services = 1
    host.on(STOP)

    assert PlainAction.TERMINATE_LEFTOVERS in host.main_ends()
    assert PlainAction.KILL_OPTIONAL not in host.after(SWEEP_S / 2)
    assert [
        action
        for wait_s in (SWEEP_S, SWEEP_S, GRACE_S)
        for action in host.after(wait_s)
        if action is not PlainAction.CHECK_FOR_PROCESSES
    ] == [PlainAction.KILL_OPTIONAL, PlainAction.KILL_ALL]


def test_a_second_stop_a_second_later_kills_and_a_repeated_one_does_not() -> None:
    host = Host()
    host.on(STOP)

    host.now_s += 0.5
    assert host.on(STOP) == []
    host.now_s += 0.6
    assert host.on(STOP)[:1] == [PlainAction.KILL_ALL]
    assert host.machine.job.insisted


def test_a_stop_that_came_to_another_host_first_is_no_second_one_here() -> None:
    host = Host(linked=True)

    assert host.on(STOP_ELSEWHERE) == [HurryConsole(), PlainAction.FORWARD_SIGNAL]
    host.now_s += 5.0
    assert host.on(STOP) == []
    host.now_s += 2.0
    assert PlainAction.KILL_ALL in host.on(STOP)
    assert host.machine.job.stop == STOP_ELSEWHERE


def test_a_rules_stop_is_told_to_the_other_hosts_and_a_signal_after_it_is_the_first() -> None:
    host = Host(linked=True)

    assert host.on(STOP_BY_RULE) == [HurryConsole(), TellStop(stop=STOP_BY_RULE), PlainAction.FORWARD_SIGNAL]
    assert host.due_in_s == GRACE_S
    host.now_s += 5.0
    assert host.on(STOP) == []
    host.now_s += 2.0
    assert PlainAction.KILL_ALL in host.on(STOP)
    assert host.machine.job.stop == STOP_BY_RULE


def test_the_other_hosts_hear_of_a_stop_that_came_here_once() -> None:
    host = Host(linked=True)

    assert host.on(STOP).count(TellStop(stop=STOP)) == 1
    host.now_s += 2.0
    assert TellStop(stop=STOP) not in host.on(STOP)


def test_a_stop_before_a_phase_is_kept_and_starts_nothing() -> None:
    machine = StopMachine(ME, linked=True)

    state, actions = machine.on(STOP, HostFacts(now_ns=5))

    assert (state, actions) == ("idle", (HurryConsole(), TellStop(stop=STOP)))
    assert machine.job.ends
    assert machine.job.stopped_at_ns == 5


# --- launchers


@pytest.mark.parametrize("linked", [False, True])
def test_a_stop_after_the_last_rank_of_mpirun_leaves_it_the_time_that_its_own_end_has(linked: bool) -> None:
    """The deadline of the stop itself, the grace, does not replace that of what follows from it."""
    host = Host(linked=linked, ranks=0, as_one=True, ends_as_one=True)
    host.had_ranks = True

    done = host.on(STOP)

    assert host.machine.state == "leaving"
    if linked:
        assert done[-2:] == [PlainAction.LOG_NO_RANK, TELL_RANKS_ENDED]
        assert host.due_in_s == GRACE_S
        done = host.on(AllRanksEnded())
    assert done[-1] == PlainAction.KILL_LAUNCHER
    assert host.due_in_s == LAUNCHER_S
    assert host.after(LAUNCHER_S) == [PlainAction.TERMINATE_LAUNCHER]
    assert PlainAction.KILL_ALL in host.after(LAUNCHER_S)


def test_a_launcher_that_ends_its_ranks_itself_has_a_moment_of_its_own_after_them() -> None:
    host = Host(ranks=1)
    host.on(STOP)

    assert PlainAction.KILL_LAUNCHER not in host.rank_ends()
    assert host.due_in_s == STOPPED_LAUNCHER_S


def test_a_launcher_that_waits_for_other_hosts_is_killed_when_no_rank_lives_anywhere() -> None:
    host = Host(linked=True, ranks=1, as_one=True, ends_as_one=True)
    host.on(STOP)

    assert TELL_RANKS_ENDED in host.rank_ends()
    assert PlainAction.KILL_LAUNCHER in host.on(AllRanksEnded())
    assert host.machine.over


def test_a_failed_rank_stops_its_siblings_and_the_launcher_does_not_hear_of_it() -> None:
    host = Host(linked=True, ends_with_ranks=True)

    done = host.rank_ends(3)

    assert done == [
        TellHosts(message=HostState.FAILING),
        HoldShim(exit=make_exit(3)),
        stop_log.rank_failed(make_exit(3)),
        PlainAction.TERMINATE_RANKS,
    ]
    assert host.rank_ends(-15, signalled=True)[-1] == PlainAction.KILL_LAUNCHER


@pytest.mark.parametrize("as_one", [False, True])
def test_without_a_link_a_failure_and_a_stop_are_told_to_nobody(as_one: bool) -> None:
    host = Host(as_one=as_one, ends_as_one=as_one)
    host.services = 1

    done = [
        *host.rank_ends(3),
        *host.on(STOP_BY_RULE),
        *host.rank_ends(-15, signalled=True),
        *host.main_ends(1),
    ]

    assert done
    assert not [action for action in done if isinstance(action, TellHosts | TellStop)]


def test_a_launcher_that_was_the_first_to_end_its_ranks_may_say_why() -> None:
    host = Host(ranks=1, ends_with_ranks=True)

    host.on(LauncherSignals())

    assert host.machine.launcher_first
    assert PlainAction.KILL_LAUNCHER not in host.rank_ends(1, signalled=True)


def test_ranks_that_abort_mpi_end_before_they_are_told_to() -> None:
    host = Host(as_one=True, ends_as_one=True)

    assert host.on(LauncherSignals()) == []
    assert host.due_in_s == ABORT_S
    assert host.after(ABORT_S) == [PlainAction.TERMINATE_RANKS]


def test_ranks_wait_a_moment_for_one_that_left_without_mpi_finalize() -> None:
    host = Host(as_one=True, ends_as_one=True)

    assert stop_log.rank_unfinalized(make_exit(without_mpi_finalize=True)) in host.rank_ends(without_mpi_finalize=True)
    assert host.due_in_s == UNFINISHED_S
    assert host.after(UNFINISHED_S) == [stop_log.unfinalized_rank_awaited(), PlainAction.TERMINATE_RANKS]


# --- other ends


def test_ranks_that_save_are_asked_again_until_they_have() -> None:
    host = Host(linked=True)
    host.on(PeerFailed(text="host algo-2 failed"))

    assert host.on(RanksSave(names=("rank 0",))) == [stop_log.ranks_save(("rank 0",))]
    assert host.due_in_s == LOOK_S
    assert host.after(LOOK_S) == [PlainAction.TERMINATE_RANKS_OR_LAUNCHER]
    assert host.on(RanksSave(names=("rank 0",))) == []
    assert host.after(LOOK_S) == [PlainAction.TERMINATE_RANKS_OR_LAUNCHER]
    assert host.after(LOOK_S) == []
    assert PlainAction.KILL_ALL in host.after(GRACE_S)


def test_a_hang_is_dumped_before_it_is_ended() -> None:
    host = Host(on_hang="stop")

    assert host.on(HANG) == [ReportHang(hang=HANG), PlainAction.DUMP_STACKS]
    assert host.after(2.0) == []
    assert host.on(StacksWritten()) == [PlainAction.TERMINATE_RANKS_OR_LAUNCHER]
    assert host.due_in_s == HUNG_GRACE_S


def test_stacks_that_are_never_written_hold_up_no_end() -> None:
    host = Host(on_hang="stop")
    host.on(HANG)

    assert host.after(DUMP_S) == [PlainAction.TERMINATE_RANKS_OR_LAUNCHER]


@pytest.mark.parametrize(
    ("on_hang", "event", "done"),
    [
        ("report", HANG, [ReportHang(hang=HANG), PlainAction.DUMP_STACKS]),
        ("report", HANG_NOTICED, [ReportHang(hang=HANG_NOTICED), PlainAction.DUMP_STACKS]),
        ("stop", HANG_NOTICED, [ReportHang(hang=HANG_NOTICED), PlainAction.DUMP_STACKS]),
        ("unseen", HANG, [PlainAction.TERMINATE_RANKS_OR_LAUNCHER]),
        ("unseen", HANG_NOTICED, []),
    ],
)
def test_a_hang_ends_the_phase_only_where_it_should(on_hang: str, event: Event, done: list[StopAction]) -> None:
    host = Host(linked=True, on_hang=on_hang)

    assert host.on(event) == done
    assert host.machine.undisturbed == (PlainAction.TERMINATE_RANKS_OR_LAUNCHER not in done)


def test_services_of_all_hosts_stay_until_no_rank_lives() -> None:
    host = Host(linked=True, ranks=0, serves_all=True, leads=True)
    host.services = 1

    assert host.main_ends()[-2:] == [TellHosts(message=LeaderDone()), TELL_RANKS_ENDED]
    assert host.machine.state == "running"
    assert PlainAction.TERMINATE_LEFTOVERS in host.on(AllRanksEnded())


@pytest.mark.parametrize(("serves_all", "ends"), [(True, True), (False, False)])
def test_a_script_may_go_on_for_a_while_after_the_leaders_where_services_serve_all(
    serves_all: bool, ends: bool
) -> None:
    host = Host(linked=True, ranks=0, serves_all=serves_all)
    host.on(LeaderDone())

    assert (host.after(LEADER_DONE_S) == [stop_log.leader_done(), PlainAction.TERMINATE_RANKS_OR_LAUNCHER]) == ends
    assert host.machine.over == ends


def test_a_new_attempt_forgets_what_the_last_one_failed_of_but_not_a_stop() -> None:
    host = Host(linked=True)
    host.on(PeerFailed(text="boom"), JobEnded(), STOP_ELSEWHERE)
    host.machine.end()
    restart = Restart(attempt=1, host=OTHER, message="", process="", rank=None, exit_code=1, failed_ns=1, counted=True)

    host.on(NextAttempt(restart=restart, used=1, allowed=2), AllReady())

    assert (host.machine.job.peer_failed, host.machine.job.job_ended, host.machine.job.may_start) == (
        False,
        False,
        True,
    )
    assert host.machine.job.ends


# --- any order of events


class AnyOrder(RuleBasedStateMachine):
    """A host whose ranks obey no SIGTERM, while anything happens to it."""

    @initialize(
        linked=st.booleans(),
        ranks=st.integers(0, 3),
        services=st.integers(0, 1),
        as_one=st.booleans(),
        with_ranks=st.booleans(),
        serves_all=st.booleans(),
        on_hang=st.sampled_from(["unseen", "report", "stop"]),
        stubborn=st.booleans(),
    )
    def begin(self, *, linked: bool, ranks: int, services: int, as_one: bool, stubborn: bool, **policy: Any) -> None:
        ends_with_ranks = policy.pop("with_ranks") and not as_one
        self.host = Host(
            linked=linked, ranks=ranks, as_one=as_one, ends_as_one=as_one, ends_with_ranks=ends_with_ranks, **policy
        )
        self.linked = linked
        self.host.services = services
        self.stubborn = stubborn  # Something does not even end on SIGKILL.
        self.killed = False
        self.cause: Event | None = None
        self.began_s = math.inf
        self.insists = False

    def on(self, event: Event) -> None:
        pending = [event]
        while pending:
            first = pending.pop(0)
            state, had_launcher, was_over = self.host.machine.state, self.host.main, self.host.machine.over
            actions = self.host.on(first)
            assert had_launcher or was_over or not self.host.machine.over, (first, state, actions)
            for action in actions:
                pending += self.carry_out(action)
            self.check(first, state, actions)

    def carry_out(self, action: StopAction) -> list[Event]:
        host = self.host
        if action is PlainAction.KILL_ALL:
            self.killed = True
        if action is PlainAction.KILL_LAUNCHER and host.main:
            host.main = False
            return [MainEnded(exit=make_exit(-9, signalled=True))]
        if action is PlainAction.CHECK_FOR_PROCESSES:
            events: list[Event] = []
            if self.killed:
                events += [RankEnded(exit=make_exit(-9, signalled=True))] * host.ranks
                events += [MainEnded(exit=make_exit(-9, signalled=True))] * host.main
                host.ranks, host.main, host.services = 0, False, 0
            left = host.ranks or host.main or host.services or self.stubborn
            return events if left else [*events, NothingLeft()]
        return []

    def check(self, event: Event, old_state: str, actions: list[StopAction]) -> None:
        machine = self.host.machine
        if machine.state not in ("idle", "running") and self.began_s == math.inf:
            self.began_s = self.host.now_s
        assert machine.cause is not None or not SIGNALS & set(actions), (event, old_state, actions)
        assert machine.state != "running" or machine.cause is None
        if self.cause is None:
            self.cause = machine.cause
        assert machine.cause is self.cause
        # PeerFailed comes over the link alone. So without one nothing is ever told.
        if not self.linked and not isinstance(event, PeerFailed):
            assert not any(isinstance(action, TellHosts | TellStop) for action in actions), (event, old_state, actions)
        if PlainAction.KILL_ALL in actions and not isinstance(event, Tick):
            assert isinstance(event, Stop)
            assert machine.job.insisted
        assert old_state != "done" or machine.state == "done"

    @rule(event=st.sampled_from([STOP, STOP_ELSEWHERE, STOP_BY_RULE, Stop(host=ME, signal=signal.SIGXCPU)]))
    def stop(self, event: Stop) -> None:
        self.on(event)

    @rule(
        event=st.sampled_from(
            [
                AllReady(),
                PeerFailed(text="boom"),
                Hang(seconds=9.0),
                HangNoticed(seconds=9.0),
                JobEnded(),
                LeaderDone(),
                AllRanksEnded(),
                LauncherSignals(),
                NobodyServed(),
                RanksSave(names=("rank 0",)),
                StacksWritten(),
                RankDone(host="algo-2", process="rank 1"),
                RuleMatched(ruled=RuleMatch(exit_code=124, at_ns=1, text="boom")),
            ]
        )
    )
    def something(self, event: Event) -> None:
        self.on(event)

    @precondition(lambda self: self.host.ranks)
    @rule(code=st.sampled_from([0, 3]), signalled=st.booleans(), finalizes=st.booleans())
    def rank_ends(self, code: int, signalled: bool, finalizes: bool) -> None:
        self.host.ranks -= 1
        self.on(RankEnded(exit=make_exit(code, signalled=signalled, without_mpi_finalize=not finalizes and code == 0)))

    @precondition(lambda self: self.host.main)
    @rule(code=st.sampled_from([0, 3]), signalled=st.booleans())
    def main_ends(self, code: int, signalled: bool) -> None:
        self.host.main = False
        self.on(MainEnded(exit=make_exit(code, signalled=signalled)))

    @precondition(lambda self: self.host.services)
    @rule(code=st.sampled_from([0, 3]))
    def service_ends(self, code: int) -> None:
        self.host.services -= 1
        self.on(ServiceEnded(exit=make_exit(code)))

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 3.0, 12.0]))
    def time_passes(self, seconds: float) -> None:
        until_s = self.host.now_s + seconds
        while self.host.now_s < until_s:
            self.host.now_s = min(until_s, self.host.now_s + max(self.host.machine.due_in_s(self.host.now_s), 0.001))
            if self.host.machine.is_due(self.host.now_s):
                self.on(Tick())

    @invariant()
    def no_rank_outlives_its_deadline(self) -> None:
        longest_s = DUMP_S + GRACE_S + STOPPED_LAUNCHER_S + 2 * LAUNCHER_S + SWEEP_S + 0.5
        if self.host.now_s > self.began_s + longest_s:
            assert not self.host.ranks

    def teardown(self) -> None:
        """However it was: told to stop, the host ends in time."""
        if not hasattr(self, "host"):
            return
        self.on(STOP)
        for _ in range(6):
            self.time_passes(12.0)
            self.host.drained = self.host.machine.state == "draining"
        assert self.host.machine.state == "done"
        assert self.host.now_s - 100.0 > KILL_S


AnyOrder.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],  # The machine may be busy.
)
test_any_order_of_events_ends_in_time_for_a_reason_and_by_its_first_cause = AnyOrder.TestCase
