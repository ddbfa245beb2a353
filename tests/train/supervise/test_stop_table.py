import random
from typing import get_args

import pytest

from toolkit.train.supervise.stop_actions import HostState, PlainAction, TellHosts
from toolkit.train.supervise.stop_table import TABLE, Answer, Arm, Cue, State, StopGuard, StopMark, answer

TELL_RANKS_ENDED = TellHosts(message=HostState.RANKS_ENDED)


def history(*cues: Cue, guards: set[StopGuard] | None = None) -> tuple[State, list[Answer]]:
    """Return the state and all answers after *cues*, while *guards* hold and no other does."""
    state: State = "running"
    answers: list[Answer] = []
    for cue in cues:
        state, following = answer(state, cue, (guards or set()).__contains__)
        answers += following
    return state, answers


def no_guard_holds(guard: StopGuard) -> bool:
    return False


def test_a_script_that_ends_by_itself_is_swept_and_drained() -> None:
    state, actions = history(Cue.ALL_ENDED, Cue.NOTHING_LEFT, Cue.DRAINED)

    assert state == "done"
    assert actions == [
        PlainAction.TERMINATE_LEFTOVERS,
        Arm.OPTIONAL,
        Arm.SWEEP,
        PlainAction.BEGIN_DRAIN,
        Arm.DRAIN,
    ]


def test_a_stop_goes_to_the_ranks_first_and_to_what_they_leave_only_after_they_ended() -> None:
    _, actions = history(Cue.STOP, Cue.RANKS_ENDED, Cue.ALL_ENDED)

    assert actions == [
        PlainAction.FORWARD_SIGNAL,
        Arm.GRACE,
        Arm.STOPPED_LAUNCHER,
        PlainAction.TERMINATE_LEFTOVERS,
        Arm.OPTIONAL,
        Arm.SWEEP,
    ]


def test_a_stopped_launcher_is_killed_only_when_no_host_has_a_rank_left() -> None:
    _, saving = history(Cue.STOP, Cue.RANKS_ENDED)
    _, over = history(Cue.STOP, Cue.RANKS_ENDED, Cue.ALL_RANKS_ENDED)

    assert PlainAction.KILL_LAUNCHER not in saving
    assert PlainAction.KILL_LAUNCHER in over


def test_a_launcher_is_told_only_when_it_does_not_go_by_itself() -> None:
    _, by_itself = history(Cue.STOP, Cue.RANKS_ENDED, Cue.ALL_ENDED)
    _, actions = history(Cue.STOP, Cue.RANKS_ENDED, Cue.DEADLINE, Cue.ALL_ENDED)

    assert PlainAction.TERMINATE_LAUNCHER not in by_itself
    assert PlainAction.TERMINATE_LAUNCHER in actions


def test_what_sigkill_does_not_end_is_named_before_it_is_left() -> None:
    _, actions = history(Cue.STOP, Cue.STOP_AGAIN, Cue.DEADLINE)

    assert actions[-3:] == [PlainAction.REPORT_SURVIVORS, PlainAction.BEGIN_DRAIN, Arm.DRAIN]


@pytest.mark.parametrize("state", ["stopping", "failing", "leaving", "stopping launcher", "sweeping"])
def test_a_second_stop_kills_at_once_in_every_phase_before_the_end(state: State) -> None:
    following, actions = answer(state, Cue.STOP_AGAIN, no_guard_holds)

    assert following == "killing"
    assert PlainAction.KILL_ALL in actions


def test_a_launcher_may_wait_for_other_hosts_after_its_ranks_ended_well() -> None:
    well = {StopGuard.RANKS_ENDED_WELL}

    assert history(Cue.RANKS_ENDED) == ("running", [])
    assert history(Cue.RANKS_ENDED, guards=well) == ("running", [TELL_RANKS_ENDED])
    assert history(Cue.RANKS_ENDED, guards={*well, StopGuard.LAST_HOST}) == ("running", [Cue.ALL_RANKS_ENDED])
    assert history(Cue.RANKS_ENDED, Cue.ALL_RANKS_ENDED)[0] == "leaving"


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_the_end_is_reached_within_five_deadlines(seed: int) -> None:
    chance = random.Random(seed)
    state, _ = history(*chance.choices([e for e in Cue if e is not Cue.DEADLINE], k=12))
    for event in (Cue.STOP, Cue.STOP_AGAIN, *[Cue.DEADLINE] * 5):
        state, _ = answer(state, event, no_guard_holds)

    assert state == "done"


def test_every_phase_that_waits_has_a_way_out_by_time() -> None:
    waiting = set(get_args(State)) - {"idle", "running", "done"}

    assert {state for state in waiting if (state, Cue.DEADLINE, ()) in TABLE} == waiting


def test_of_the_rows_for_a_cue_the_one_without_guards_comes_last() -> None:
    unguarded: set[tuple[State, Cue]] = set()
    for state, cue, guards in TABLE:
        assert (state, cue) not in unguarded, "no cue reaches this row"
        if not guards:
            unguarded.add((state, cue))


def test_a_job_is_marked_as_done_wherever_its_last_processes_are_ended_for_that() -> None:
    marked = {(state, cue) for (state, cue, _), (_, answers) in TABLE.items() if StopMark.JOB_DONE in answers}

    assert marked == {
        ("running", Cue.ALL_RANKS_ENDED),
        ("leaving", Cue.ALL_RANKS_ENDED),
        ("running", Cue.LEADER_DONE),
    }
