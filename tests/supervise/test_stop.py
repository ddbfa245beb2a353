import random
from typing import get_args

import pytest

from toolkit.supervise.stop import TABLE, Action, Event, Phase, answer


def history(*events: Event) -> tuple[Phase, list[Action]]:
    phase: Phase = "running"
    done: list[Action] = []
    for event in events:
        phase, actions = answer(phase, event)
        done += actions
    return phase, done


def test_a_script_that_ends_by_itself_is_swept_and_drained() -> None:
    phase, actions = history(Event.ALL_ENDED, Event.QUIET, Event.DRAINED)

    assert phase == "done"
    assert actions == [Action.SWEEP, Action.ARM_SWEEP, Action.ARM_DRAIN]


def test_a_stop_goes_to_the_ranks_first_and_to_what_they_leave_only_after_they_ended() -> None:
    _, actions = history(Event.STOP, Event.RANKS_ENDED, Event.ALL_ENDED)

    assert actions == [
        *(Action.FORWARD, Action.ARM_GRACE, Action.REST),
        *(Action.SWEEP, Action.ARM_SWEEP),
    ]


def test_a_stopped_launcher_is_killed_only_when_no_host_has_a_rank_left() -> None:
    _, saving = history(Event.STOP, Event.RANKS_ENDED)
    _, over = history(Event.STOP, Event.RANKS_ENDED, Event.ALL_RESTED)

    assert Action.KILL_LAUNCHER not in saving
    assert Action.KILL_LAUNCHER in over


def test_a_launcher_is_told_only_when_it_does_not_go_by_itself() -> None:
    _, by_itself = history(Event.STOP, Event.RANKS_ENDED, Event.ALL_ENDED)
    _, told = history(Event.STOP, Event.RANKS_ENDED, Event.DEADLINE, Event.ALL_ENDED)

    assert Action.TELL_LAUNCHER not in by_itself
    assert Action.TELL_LAUNCHER in told


def test_what_sigkill_does_not_end_is_named_before_it_is_left() -> None:
    _, actions = history(Event.STOP, Event.STOP_AGAIN, Event.DEADLINE)

    assert actions[-2:] == [Action.NAME_LEFT, Action.ARM_DRAIN]


@pytest.mark.parametrize("phase", ["stopping", "failing", "leaving", "told", "sweeping"])
def test_a_second_stop_kills_at_once_in_every_phase_before_the_end(phase: Phase) -> None:
    following, actions = answer(phase, Event.STOP_AGAIN)

    assert following == "killing"
    assert Action.KILL in actions


def test_a_launcher_may_wait_for_other_hosts_after_its_ranks_ended_well() -> None:
    assert history(Event.RANKS_ENDED) == ("running", [Action.SAY_DONE])
    assert history(Event.RANKS_ENDED, Event.ALL_RESTED)[0] == "leaving"


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_the_end_is_reached_within_five_deadlines(seed: int) -> None:
    chance = random.Random(seed)
    phase, _ = history(*chance.choices([e for e in Event if e is not Event.DEADLINE], k=12))
    for event in (Event.STOP, Event.STOP_AGAIN, *[Event.DEADLINE] * 5):
        phase, _ = answer(phase, event)

    assert phase == "done"


def test_every_phase_that_waits_has_a_way_out_by_time() -> None:
    waiting = set(get_args(Phase)) - {"running", "done"}

    assert {phase for phase in waiting if (phase, Event.DEADLINE) in TABLE} == waiting
