import itertools
import statistics
import time
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.metrics.sample import Sample
from toolkit.train.log_rules.event import RuleEvent
from toolkit.train.log_rules.straggler import (
    KEPT_MEDIANS,
    LEAST_OPEN_STEPS,
    OPEN_STEPS,
    SENT_AT_ONCE,
    Beats,
    Stragglers,
    Thinned,
)


def summarize(events: Iterable[RuleEvent]) -> list[tuple[str, int | None, float]]:
    return [(event.kind, event.rank, event.time_s) for event in events]


def run(watching: Stragglers, steps: Iterable[Iterable[float]], first: int = 0) -> list[RuleEvent]:
    """Report each step's seconds by rank; a step is told at the time of its own number."""
    events = []
    for step, seconds in enumerate(steps, first):
        for rank, rank_s in enumerate(seconds):
            events += watching.step(rank, step, rank_s, now_s=step)
    return events


def test_a_slow_rank_is_named_once_and_once_more_when_it_recovered() -> None:
    slow, fine = (1.0, 1.0, 1.6, 1.0), (1.0, 1.0, 1.0, 1.0)

    events = run(Stragglers(ranks=4), [slow] * 50 + [fine] * 50)

    assert summarize(events) == [("straggler", 2, 19), ("recovered", 2, 69)]
    assert events[0].text == "rank 2 took 1.6 s for step 19, 1.60 times its peers' 1 s; 20 in a row above 1.5 times"
    assert (events[0].rule, events[0].action, events[0].value) == ("straggler", "warn", 1.6)


def test_a_pause_in_the_row_begins_it_anew() -> None:
    slow, fine = (1.0, 1.0, 1.6), (1.0, 1.0, 1.0)

    assert run(Stragglers(ranks=3), ([slow] * 19 + [fine]) * 5) == []


def test_a_step_that_is_slow_for_all_makes_no_straggler() -> None:
    steps = [[1.0 + step % 7] * 8 for step in range(100)]

    assert run(Stragglers(ranks=8, steps=1), steps) == []


def test_a_slow_rank_is_seen_where_steps_differ_from_each_other() -> None:
    steps = [[length, length, 1.6 * length] for length in (1.0, 2.0, 9.0) * 10]

    assert summarize(run(Stragglers(ranks=3), steps)) == [("straggler", 2, 19)]


def test_of_two_ranks_the_slower_is_named() -> None:
    assert summarize(run(Stragglers(ranks=2, steps=3), [(1.0, 1.6)] * 5)) == [("straggler", 1, 2)]


def test_several_are_named() -> None:
    steps = [[1.0] * 5 + [2.0, 3.0, 4.0]] * 5

    assert summarize(run(Stragglers(ranks=8, steps=3), steps)) == [("straggler", rank, 2) for rank in (5, 6, 7)]


def test_one_rank_has_no_peers() -> None:
    assert run(Stragglers(ranks=1, steps=1), [(1.0,), (100.0,)]) == []


def test_a_rank_that_lags_far_behind_is_held_against_the_same_steps() -> None:
    watching = Stragglers(ranks=3, steps=20)
    length = [1.0, 2.0] * 500
    events = []

    # Ranks 0 and 1 do not wait for rank 2, which does every second step late, and from its step 300 on takes longer.
    for step in range(1000):
        for rank in (0, 1):
            events += watching.step(rank, step, length[step], now_s=step)
        if step % 2:
            own_step = step // 2
            events += watching.step(2, own_step, (1.6 if own_step >= 300 else 1.0) * length[own_step], now_s=step)

    assert summarize(events) == [("straggler", 2, 2 * 319 + 1)]


def test_a_report_that_was_lost_holds_nobody_up() -> None:
    watching = Stragglers(ranks=3, steps=3)
    events = []

    for step in range(3):
        for rank, seconds in enumerate((1.0, 1.0, 2.0)):
            if (step, rank) != (1, 0):
                events += watching.step(rank, step, seconds, now_s=step)

    assert summarize(events) == [("straggler", 2, 2)]


def test_a_rank_that_fell_silent_holds_nobody_up() -> None:
    watching = Stragglers(ranks=4, steps=5)
    run(watching, [(1.0, 1.0, 1.0, 1.0)] * 3)

    events = run(watching, [(1.0, 1.0, 2.0)] * (OPEN_STEPS + 10), first=3)

    assert [(event.kind, event.rank) for event in events] == [("straggler", 2)]


def test_a_step_that_few_ranks_report_is_not_judged() -> None:
    watching = Stragglers(ranks=8, steps=1)

    events = run(watching, [(1.0, 9.0)] * 500)
    late = watching.step(7, 100, 50.0, now_s=600)

    assert (events, late) == ([], [])


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

    assert summarize(watching.samples(samples)) == [("straggler", 1, 2)]


def test_samples_without_steps_are_counted_and_those_without_ranks_passed_over() -> None:
    watching = Stragglers(ranks=2, steps=3)
    samples = [
        Sample(name="step_time", value=2.0 if rank else 1.0, time_s=1.0, host="algo-1", rank=rank)
        for _ in range(3)
        for rank in (0, None, 1)
    ]

    assert summarize(watching.samples(samples)) == [("straggler", 1, 1.0)]


def test_heartbeats_give_the_time_of_a_step() -> None:
    watching, beats = Stragglers(ranks=3, steps=4), Beats()
    events = []

    for second in range(1, 60):
        for rank, each_s in enumerate((0.1, 0.1, 0.2)):
            step = int(second / each_s)
            for beat in beats.look(rank, step, int(step * each_s * 1e9)):
                events += watching.step(*beat, now_s=second)

    assert [(event.kind, event.rank) for event in events] == [("straggler", 2)]
    assert events[0].value == pytest.approx(0.2)


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

    assert [step for beat_step, second in looks for _, step, _ in beats.look(0, beat_step, second * 10**9)] == steps


def naive(steps: list[list[float]], factor: float, row: int) -> list[tuple[str, int, float]]:
    """The definition, where every rank reports every step."""
    events: list[tuple[str, int, float]] = []
    for step in range(len(steps)):
        for rank in range(len(steps[0])):
            slow = []
            for seconds in steps[: step + 1]:
                peers = seconds[:rank] + seconds[rank + 1 :]
                slow.append(seconds[rank] > factor * statistics.median(peers))
            is_straggler = False
            since = 0
            turned = -1
            for index, is_slow in enumerate(slow):
                since = since + 1 if is_slow != is_straggler else 0
                if since == row:
                    is_straggler, since, turned = is_slow, 0, index
            if turned == step:
                events.append(("straggler" if is_straggler else "recovered", rank, step))
    return events


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

    events = summarize(run(watching, steps))

    assert events == naive(steps, 1.5, row)


def test_memory_is_bounded_however_long_it_runs() -> None:
    watching = Stragglers(ranks=1000)
    steps = iter(range(4 * KEPT_MEDIANS))
    tracemalloc.start()

    for step in itertools.islice(steps, KEPT_MEDIANS + OPEN_STEPS):
        watching.step(0, step, 1.0, now_s=0)
        watching.step(1, step, 1.0, now_s=0)
    full_bytes, _ = tracemalloc.get_traced_memory()
    for step in steps:
        watching.step(0, step, 1.0, now_s=0)
        watching.step(1, step, 1.0, now_s=0)
    last_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert full_bytes > 50 * KEPT_MEDIANS
    assert last_bytes - full_bytes < 64 * KEPT_MEDIANS  # A dict grows by doubling.


def test_a_thousand_ranks_are_cheap() -> None:
    watching = Stragglers(ranks=1000)
    steps = [[1.0 + (rank * 7919 + step) % 101 / 1000 for rank in range(1000)] for step in range(20)]

    began = time.thread_time()
    run(watching, steps)
    each_us = (time.thread_time() - began) / 20_000 * 1e6

    assert each_us < 10  # Seen: 0.4 us for each step of each rank.


def test_ranks_have_the_names_that_they_are_given() -> None:
    watching = Stragglers(ranks=2, steps=1, name=["rank 0 of host algo-1", "rank 0 of host algo-2"].__getitem__)

    (event,) = run(watching, [(1.0, 3.0)])

    assert event.text.startswith("rank 0 of host algo-2 took 3 s for step 0, 3.00 times its peers' 1 s")


def test_of_very_many_ranks_fewer_steps_wait() -> None:
    """A rank that is slow for a step is noticed only while that step waits for the others."""

    def events(begun_steps: int) -> list[RuleEvent]:
        watching = Stragglers(ranks=40_000, steps=1)
        for step in range(begun_steps):
            watching.step(0, step, 1.0, now_s=0)
        rest = range(1, 40_000)
        return [event for rank in rest for event in watching.step(rank, 0, 3.0 if rank == 7 else 1.0, now_s=0)]

    assert [event.rank for event in events(LEAST_OPEN_STEPS)] == [7]
    assert events(LEAST_OPEN_STEPS + 1) == []


def test_few_step_times_are_told_as_they_are() -> None:
    thinned = Thinned()
    for step in range(5):
        thinned.step(3, step, 0.5)

    assert thinned.take() == tuple((3, step, 0.5) for step in range(5))
    assert thinned.take() == ()


def test_of_many_those_of_the_same_steps_are_told_by_every_host() -> None:
    hosts = [Thinned() for _ in range(2)]
    for host, saved in enumerate(hosts):
        for step in range(1000 + 100 * host):
            for rank in range(4):
                saved.step(rank, step, 0.001)

    first, second = ({(rank, step) for rank, step, _ in thinned.take()} for thinned in hosts)

    assert 0 < len(first) <= SENT_AT_ONCE
    assert 0 < len(second) <= SENT_AT_ONCE
    assert {rank for rank, _ in first} == {0, 1, 2, 3}
    assert {pair for pair in second if pair[1] < 1000} <= first


def test_when_steps_become_long_again_all_of_them_are_told() -> None:
    thinned = Thinned()
    for step in range(10_000):
        thinned.step(0, step, 0.001)
    for second in range(20):
        thinned.take()
        thinned.step(0, 10_001 + second, 1.0)

    assert thinned.take() == ((0, 10_020, 1.0),)


def test_more_ranks_than_a_message_should_hold_still_tell_one_step() -> None:
    thinned = Thinned()
    for rank in range(2 * SENT_AT_ONCE):
        thinned.step(rank, 6, 1.0)

    assert len(thinned.take()) == 2 * SENT_AT_ONCE


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_not_told(seconds: float) -> None:
    thinned = Thinned()
    thinned.step(0, 0, seconds)

    assert thinned.take() == ()


def test_samples_are_told_by_their_step_or_their_number() -> None:
    thinned = Thinned()
    thinned.samples(
        Sample(name=name, value=1.5, time_s=0.0, host="algo-1", rank=rank, step=step)
        for name, rank, step in (("step_time", 1, 40), ("step_time", 1, None), ("loss", 1, 41), ("step_time", None, 4))
    )

    assert thinned.take() == ((1, 40, 1.5), (1, 0, 1.5))
