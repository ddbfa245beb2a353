import random
from typing import get_args

import pytest

from toolkit.train.supervise.stop_table import TABLE, Action, Arm, Cue, State, answer


def history(*cues: Cue) -> tuple[State, list[Action | Arm]]:
    state: State = "running"
    done: list[Action | Arm] = []
    for cue in cues:
        state, actions = answer(state, cue)
        done += actions
    return state, done


def test_a_script_that_ends_by_itself_is_swept_and_drained() -> None:
    state, actions = history(Cue.ALL_ENDED, Cue.NOTHING_LEFT, Cue.DRAINED)

    assert state == "done"
    assert actions == [Action.SWEEP, Arm.SWEEP, Action.BEGIN_DRAIN]


def test_a_stop_goes_to_the_ranks_first_and_to_what_they_leave_only_after_they_ended() -> None:
    _, actions = history(Cue.STOP, Cue.RANKS_ENDED, Cue.ALL_ENDED)

    assert actions == [
        *(Action.FORWARD, Arm.GRACE, Arm.REST),
        *(Action.SWEEP, Arm.SWEEP),
    ]


def test_a_stopped_launcher_is_killed_only_when_no_host_has_a_rank_left() -> None:
    _, saving = history(Cue.STOP, Cue.RANKS_ENDED)
    _, over = history(Cue.STOP, Cue.RANKS_ENDED, Cue.ALL_RANKS_ENDED)

    assert Action.KILL_LAUNCHER not in saving
    assert Action.KILL_LAUNCHER in over


def test_a_launcher_is_told_only_when_it_does_not_go_by_itself() -> None:
    _, by_itself = history(Cue.STOP, Cue.RANKS_ENDED, Cue.ALL_ENDED)
    _, told = history(Cue.STOP, Cue.RANKS_ENDED, Cue.DEADLINE, Cue.ALL_ENDED)

    assert Action.TELL_LAUNCHER not in by_itself
    assert Action.TELL_LAUNCHER in told


def test_what_sigkill_does_not_end_is_named_before_it_is_left() -> None:
    _, actions = history(Cue.STOP, Cue.STOP_AGAIN, Cue.DEADLINE)

    assert actions[-2:] == [Action.NAME_LEFT, Action.BEGIN_DRAIN]


@pytest.mark.parametrize("state", ["stopping", "failing", "leaving", "stopping launcher", "sweeping"])
def test_a_second_stop_kills_at_once_in_every_phase_before_the_end(state: State) -> None:
    following, actions = answer(state, Cue.STOP_AGAIN)

    assert following == "killing"
    assert Action.KILL in actions


def test_a_launcher_may_wait_for_other_hosts_after_its_ranks_ended_well() -> None:
    assert history(Cue.RANKS_ENDED) == ("running", [Action.SAY_DONE])
    assert history(Cue.RANKS_ENDED, Cue.ALL_RANKS_ENDED)[0] == "leaving"


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_the_end_is_reached_within_five_deadlines(seed: int) -> None:
    chance = random.Random(seed)
    state, _ = history(*chance.choices([e for e in Cue if e is not Cue.DEADLINE], k=12))
    for event in (Cue.STOP, Cue.STOP_AGAIN, *[Cue.DEADLINE] * 5):
        state, _ = answer(state, event)

    assert state == "done"


def test_every_phase_that_waits_has_a_way_out_by_time() -> None:
    waiting = set(get_args(State)) - {"idle", "running", "done"}

    assert {state for state in waiting if (state, Cue.DEADLINE) in TABLE} == waiting
