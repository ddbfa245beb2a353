"""The decision of a trial: from pairs of step times, and by what a sequence of steps brings about."""

from collections.abc import Callable

import pytest

from toolkit.rank.compiler.trial import (
    CANDIDATE,
    EAGER,
    Interleaving,
    TrialDecision,
    break_even_step,
    cost_s,
    decide,
    median,
    slowest,
)


def run(
    took_s: Callable[[str, int], float], *, compiling: int = 1, most: int = 10_000
) -> tuple[Interleaving, TrialDecision | None]:
    """Run steps that take as long as *took_s*(turn, step) says; the first *compiling* candidates compile."""
    interleaving, step, left = Interleaving(), 0, compiling
    while step < most and not interleaving.reason:
        step += 1
        if interleaving.turn == CANDIDATE and left:
            left -= 1
            interleaving.step_ended(20.0, compiled=True)
            continue
        interleaving.step_ended(took_s(interleaving.turn, step))
        decision = decide(interleaving.pairs.values(), interleaving.due) if interleaving.due else None
        if decision is not None:
            interleaving.end()
            return interleaving, decision
    return interleaving, None


@pytest.mark.parametrize(
    ("candidate_s", "kept"), [(0.06, True), (0.09, True), (0.099, False), (0.12, False), (1.0, False)]
)
def test_the_faster_way_is_kept_and_a_tie_stays_eager(candidate_s: float, kept: bool) -> None:
    _, decision = run(lambda turn, _: candidate_s if turn == CANDIDATE else 0.1)

    assert decision is not None and decision.keeps_candidate is kept
    assert (decision.eager_s, decision.candidate_s) == (0.1, candidate_s)


def test_a_candidate_that_compiles_at_each_step_is_given_up_after_three_pairs() -> None:
    """TensorFlow compiles each shape of a batch that a trace without a shape meets, and nobody sees it."""
    interleaving, decision = run(lambda turn, _: 8.0 if turn == CANDIDATE else 0.005)

    assert decision is not None and not decision.keeps_candidate
    assert (decision.pairs, interleaving.steps) == (3, 8)


def test_a_slow_step_of_a_busy_machine_is_no_compilation() -> None:
    _, decision = run(lambda turn, step: 0.2 if turn == CANDIDATE and step < 8 else 0.005)

    assert decision is not None and decision.pairs > 3


def test_steps_take_turns_so_that_a_drift_meets_both_ways_alike() -> None:
    """A machine that gets slower by half a percent with each step does not change the decision."""
    order: list[str] = []

    def took(turn: str, step: int) -> float:
        order.append(turn)
        return (0.08 if turn == CANDIDATE else 0.1) * 1.005**step

    _, decision = run(took)

    assert order[1:9] == [EAGER, CANDIDATE, CANDIDATE, EAGER, EAGER, CANDIDATE, CANDIDATE, EAGER]
    assert decision is not None and decision.keeps_candidate and decision.ratio == pytest.approx(1.25, rel=0.01)


def test_a_clear_case_ends_after_six_pairs_and_an_unclear_one_after_24() -> None:
    clear, _ = run(lambda turn, _: 0.05 if turn == CANDIDATE else 0.1)
    unclear, decision = run(lambda turn, step: (0.097 if turn == CANDIDATE else 0.1) * (1 + 0.3 * (step % 3 == 0)))

    assert len(clear.pairs) == 6
    assert len(unclear.pairs) == 24 and decision is not None


def test_a_disturbance_of_six_pairs_of_short_steps_does_not_keep_the_slower_way() -> None:
    """Another process has the cores in the first 15 ms, while eager steps run; compiled ones are slower in truth."""

    def took(turn: str, step: int) -> float:
        return 0.0012 if turn == CANDIDATE else 0.0017 if step < 16 else 0.001

    interleaving, decision = run(took)

    assert len(interleaving.pairs) > 6 and decision is not None and not decision.keeps_candidate


def test_compiled_code_is_not_kept_on_less_than_a_quarter_of_a_second_of_steps() -> None:
    decision = decide([(0.0005, 0.0004)] * 96, 96)

    assert decision is not None and not decision.keeps_candidate


def test_short_steps_are_measured_more_often() -> None:
    interleaving, _ = run(lambda turn, step: (0.00097 if turn == CANDIDATE else 0.001) * (1 + 0.3 * (step % 3 == 0)))

    assert len(interleaving.pairs) == 96


def test_long_steps_end_the_trial_after_three_pairs() -> None:
    interleaving, decision = run(lambda turn, _: 18.0 if turn == CANDIDATE else 20.0)

    assert len(interleaving.pairs) == 3 and decision is not None and decision.keeps_candidate


def test_a_single_outlier_decides_nothing() -> None:
    _, decision = run(lambda turn, step: 60.0 if step == 5 else 0.08 if turn == CANDIDATE else 0.1)

    assert decision is not None and decision.keeps_candidate and decision.eager_s == 0.1


def test_a_model_that_compiles_at_each_step_is_given_up_after_nine() -> None:
    interleaving, decision = run(lambda *_: 0.1, compiling=1_000)

    assert decision is None and interleaving.compiling == 9 and "shapes" in interleaving.reason


def test_a_trial_without_comparable_steps_ends_with_eager() -> None:
    interleaving, decision = Interleaving(), None
    while decision is None:
        interleaving.step_ended(0.1, is_clean=False)
        decision = decide(interleaving.pairs.values(), interleaving.due) if interleaving.due else None

    assert (decision.keeps_candidate, decision.pairs, interleaving.steps) == (False, 0, 194) and decision.reason


def test_the_turn_of_a_step_does_not_depend_on_what_could_be_compared() -> None:
    """Ranks that step alike run the same."""
    first, second = Interleaving(), Interleaving()
    for step in range(300):
        assert first.turn == second.turn
        first.step_ended(0.1)
        second.step_ended(0.2, is_clean=step % 3 > 0, compiled=step % 40 == 0)

    assert first.turn == EAGER and len(first.pairs) > len(second.pairs)


def test_of_several_ranks_the_slowest_of_each_step_counts() -> None:
    ranks = [{0: (0.1, 0.05), 1: (0.1, 0.05), 2: (0.1, 0.1)}, {0: (0.1, 0.2), 2: (0.3, 0.05), 3: (9.0, 9.0)}]

    assert slowest(ranks) == [(0.1, 0.2), (0.3, 0.1)]


def test_cost_and_break_even() -> None:
    assert cost_s(23.0, 20, 0.1) == pytest.approx(21.0)
    assert cost_s(1.0, 20, 0.1) == 0
    assert break_even_step(30, 21.0, 0.1, 0.08) == pytest.approx(1080, abs=1)
    assert break_even_step(30, 21.0, 0.1, 0.1) is None


def test_the_median_of_an_even_number() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_nothing_was_measured() -> None:
    assert decide([], 3) is None
