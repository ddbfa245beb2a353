import statistics
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.metrics.sample import Sample
from toolkit.train.log_rules.event import RuleEvent
from toolkit.train.log_rules.straggler import KEPT_MEDIANS, OPEN_STEPS, SENT_AT_ONCE, Beats, Stragglers, Thinned


def told(events: Iterable[RuleEvent]) -> list[tuple[str, int | None, float]]:
    return [(event.kind, event.rank, event.time_s) for event in events]


def run(watching: Stragglers, steps: Iterable[Iterable[float]], first: int = 0) -> list[RuleEvent]:
    """Report each step's seconds by rank; a step is told at the time of its own number."""
    found = []
    for step, seconds in enumerate(steps, first):
        for rank, each in enumerate(seconds):
            found += watching.step(rank, step, each, now_s=step)
    return found


def test_a_slow_rank_is_named_once_and_once_more_when_it_recovered() -> None:
    slow, fine = (1.0, 1.0, 1.6, 1.0), (1.0, 1.0, 1.0, 1.0)

    found = run(Stragglers(ranks=4), [slow] * 50 + [fine] * 50)

    assert told(found) == [("straggler", 2, 19), ("recovered", 2, 69)]
    assert found[0].text == "rank 2 took 1.6 s for step 19, 1.60 times its peers' 1 s; 20 in a row above 1.5 times"
    assert (found[0].rule, found[0].action, found[0].value) == ("straggler", "warn", 1.6)


def test_a_pause_in_the_row_begins_it_anew() -> None:
    slow, fine = (1.0, 1.0, 1.6), (1.0, 1.0, 1.0)

    assert run(Stragglers(ranks=3), ([slow] * 19 + [fine]) * 5) == []


def test_a_step_that_is_slow_for_all_makes_no_straggler() -> None:
    steps = [[1.0 + step % 7] * 8 for step in range(100)]

    assert run(Stragglers(ranks=8, steps=1), steps) == []


def test_a_slow_rank_is_seen_where_steps_differ_from_each_other() -> None:
    steps = [[length, length, 1.6 * length] for length in (1.0, 2.0, 9.0) * 10]

    assert told(run(Stragglers(ranks=3), steps)) == [("straggler", 2, 19)]


def test_of_two_ranks_the_slower_is_named() -> None:
    assert told(run(Stragglers(ranks=2, steps=3), [(1.0, 1.6)] * 5)) == [("straggler", 1, 2)]


def test_several_are_named() -> None:
    steps = [[1.0] * 5 + [2.0, 3.0, 4.0]] * 5

    assert told(run(Stragglers(ranks=8, steps=3), steps)) == [("straggler", rank, 2) for rank in (5, 6, 7)]


def test_one_rank_has_no_peers() -> None:
    assert run(Stragglers(ranks=1, steps=1), [(1.0,), (100.0,)]) == []


def test_a_rank_that_lags_far_behind_is_held_against_the_same_steps() -> None:
    watching = Stragglers(ranks=3, steps=20)
    length = [1.0, 2.0] * 500
    found = []

    # Ranks 0 and 1 do not wait for rank 2, which does every second step late, and from its step 300 on takes longer.
    for step in range(1000):
        for rank in (0, 1):
            found += watching.step(rank, step, length[step], now_s=step)
        if step % 2:
            own = step // 2
            found += watching.step(2, own, (1.6 if own >= 300 else 1.0) * length[own], now_s=step)

    assert told(found) == [("straggler", 2, 2 * 319 + 1)]


def test_a_report_that_was_lost_holds_nobody_up() -> None:
    watching = Stragglers(ranks=3, steps=3)
    found = []

    for step in range(3):
        for rank, seconds in enumerate((1.0, 1.0, 2.0)):
            if (step, rank) != (1, 0):
                found += watching.step(rank, step, seconds, now_s=step)

    assert told(found) == [("straggler", 2, 2)]


def test_a_rank_that_fell_silent_holds_nobody_up() -> None:
    watching = Stragglers(ranks=4, steps=5)
    run(watching, [(1.0, 1.0, 1.0, 1.0)] * 3)

    found = run(watching, [(1.0, 1.0, 2.0)] * (OPEN_STEPS + 10), first=3)

    assert [(event.kind, event.rank) for event in found] == [("straggler", 2)]


def test_a_step_that_few_ranks_report_is_not_judged() -> None:
    watching = Stragglers(ranks=8, steps=1)

    found = run(watching, [(1.0, 9.0)] * 500)
    late = watching.step(7, 100, 50.0, now_s=600)

    assert (found, late) == ([], [])


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_passed_over(seconds: float) -> None:
    watching = Stragglers(ranks=2, steps=1)

    assert [*watching.step(0, 0, 1.0, now_s=0), *watching.step(1, 0, seconds, now_s=0)] == []


def test_step_times_come_from_samples_of_that_name() -> None:
    watching = Stragglers(ranks=2, steps=3)
    samples = [
        Sample(name=name, value=value if rank else 1.0, time_s=step, host="algo-1", rank=rank, step=step)
        for step in range(3)
        for rank in (0, 1)
        for name, value in (("loss", 99.0), ("step_time", 2.0))
    ]

    assert told(watching.samples(samples)) == [("straggler", 1, 2)]


def test_samples_without_steps_are_counted_and_those_without_ranks_passed_over() -> None:
    watching = Stragglers(ranks=2, steps=3)
    samples = [
        Sample(name="step_time", value=2.0 if rank else 1.0, time_s=1.0, host="algo-1", rank=rank)
        for _ in range(3)
        for rank in (0, None, 1)
    ]

    assert told(watching.samples(samples)) == [("straggler", 1, 1.0)]


def test_heartbeats_give_the_time_of_a_step() -> None:
    watching, beats = Stragglers(ranks=3, steps=4), Beats()
    found = []

    for second in range(1, 60):
        for rank, each_s in enumerate((0.1, 0.1, 0.2)):
            step = int(second / each_s)
            for told in beats.look(rank, step, int(step * each_s * 1e9)):
                found += watching.step(*told, now_s=second)

    assert [(event.kind, event.rank) for event in found] == [("straggler", 2)]
    assert found[0].value == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("looks", "steps"),
    [
        ([(0, 0), (1, 1)], [1]),
        ([(3, 0), (5, 1)], [4, 5]),
        ([(10, 0), (20, 1), (31, 2)], [12, 14, 16, 18, 20, 22, 24, 26, 28, 30]),
        ([(10, 0), (10, 0)], []),
        # A script that goes back to an earlier step begins anew.
        ([(10, 0), (4, 1), (5, 2)], [5]),
    ],
)
def test_of_the_steps_between_two_looks_those_of_a_common_number_are_told(
    looks: list[tuple[int, int]], steps: list[int]
) -> None:
    beats = Beats()

    assert [step for at, second in looks for _, step, _ in beats.look(0, at, second * 10**9)] == steps


def naive(steps: list[list[float]], factor: float, row: int) -> list[tuple[str, int, float]]:
    """The definition, where every rank reports every step."""
    found: list[tuple[str, int, float]] = []
    for step in range(len(steps)):
        for rank in range(len(steps[0])):
            slow = []
            for seconds in steps[: step + 1]:
                peers = seconds[:rank] + seconds[rank + 1 :]
                slow.append(seconds[rank] > factor * statistics.median(peers))
            named = False
            since = 0
            turned = -1
            for at, each in enumerate(slow):
                since = since + 1 if each != named else 0
                if since == row:
                    named, since, turned = each, 0, at
            if turned == step:
                found.append(("straggler" if named else "recovered", rank, step))
    return found


@given(
    st.integers(2, 7).flatmap(
        lambda ranks: st.lists(
            st.lists(st.sampled_from([1.0, 1.4, 1.6, 2.0, 4.0, 5.0]), min_size=ranks, max_size=ranks), max_size=12
        )
    ),
    st.integers(1, 3),
)
def test_it_gives_what_the_definition_gives(steps: list[list[float]], row: int) -> None:
    watching = Stragglers(ranks=len(steps[0]) if steps else 2, steps=row)

    found = told(run(watching, steps))

    assert found == naive(steps, 1.5, row)


def test_memory_is_bounded_however_long_it_runs() -> None:
    watching = Stragglers(ranks=1000)

    for step in range(3 * KEPT_MEDIANS):
        watching.step(0, step, 1.0, now_s=0)
        watching.step(1, step, 1.0, now_s=0)

    assert len(watching._open) <= OPEN_STEPS + 1
    assert len(watching._medians) <= KEPT_MEDIANS
    assert watching._rows == {}


def test_a_thousand_ranks_are_cheap() -> None:
    watching = Stragglers(ranks=1000)
    steps = [[1.0 + (rank * 7919 + step) % 101 / 1000 for rank in range(1000)] for step in range(20)]

    before = time.thread_time()
    run(watching, steps)
    each_us = (time.thread_time() - before) / 20_000 * 1e6

    assert each_us < 10  # Seen: 0.4 us for each step of each rank.


def test_ranks_have_the_names_that_they_are_given() -> None:
    watching = Stragglers(ranks=2, steps=1, name=["rank 0 of host algo-1", "rank 0 of host algo-2"].__getitem__)

    (event,) = run(watching, [(1.0, 3.0)])

    assert event.text.startswith("rank 0 of host algo-2 took 3 s for step 0, 3.00 times its peers' 1 s")


def test_of_very_many_ranks_fewer_steps_wait() -> None:
    watching = Stragglers(ranks=80_000)

    for step in range(100):
        watching.step(0, step, 1.0, now_s=0)

    assert len(watching._open) == 8


def test_few_step_times_are_told_as_they_are() -> None:
    kept = Thinned()
    for step in range(5):
        kept.step(3, step, 0.5)

    assert kept.take() == tuple((3, step, 0.5) for step in range(5))
    assert kept.take() == ()


def test_of_many_those_of_the_same_steps_are_told_by_every_host() -> None:
    hosts = [Thinned() for _ in range(2)]
    for host, kept in enumerate(hosts):
        for step in range(1000 + 100 * host):
            for rank in range(4):
                kept.step(rank, step, 0.001)

    first, second = ({(rank, step) for rank, step, _ in kept.take()} for kept in hosts)

    assert 0 < len(first) <= SENT_AT_ONCE
    assert 0 < len(second) <= SENT_AT_ONCE
    assert {rank for rank, _ in first} == {0, 1, 2, 3}
    assert {told for told in second if told[1] < 1000} <= first


def test_when_steps_become_long_again_all_of_them_are_told() -> None:
    kept = Thinned()
    for step in range(10_000):
        kept.step(0, step, 0.001)
    for second in range(20):
        kept.take()
        kept.step(0, 10_001 + second, 1.0)

    assert kept.take() == ((0, 10_020, 1.0),)


def test_more_ranks_than_a_message_should_hold_still_tell_one_step() -> None:
    kept = Thinned()
    for rank in range(2 * SENT_AT_ONCE):
        kept.step(rank, 6, 1.0)

    assert len(kept.take()) == 2 * SENT_AT_ONCE


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_not_told(seconds: float) -> None:
    kept = Thinned()
    kept.step(0, 0, seconds)

    assert kept.take() == ()


def test_samples_are_told_by_their_step_or_their_number() -> None:
    kept = Thinned()
    kept.samples(
        Sample(name=name, value=1.5, time_s=0.0, host="algo-1", rank=rank, step=step)
        for name, rank, step in (("step_time", 1, 40), ("step_time", 1, None), ("loss", 1, 41), ("step_time", None, 4))
    )

    assert kept.take() == ((1, 40, 1.5), (1, 0, 1.5))
