"""The ledger divides every second of every host once, and finds delays where they were injected."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from toolkit.commands.report.sections.ledger import NAMES, JobTimes, divide_time
from toolkit.series.step_records import StepRecord, StepTable, table

START_S = 1_795_000_000.0


def steps(
    rank: int = 0,
    count: int = 10,
    *,
    begin_s: float = 5.0,
    attempt: int = 1,
    saves: Sequence[int] = (),
    save_s: float = 0.0,
    **parts: Any,
) -> list[StepRecord]:
    """Return *count* steps that follow one another from *begin_s* after the start: 0.1 s data, 0.3 s forward, 0.4 s
    backward, 0.1 s optimizer, 0.1 s of nothing measured, unless *parts* say otherwise."""
    values = {"data_s": 0.1, "forward_s": 0.3, "backward_s": 0.4, "optimizer_s": 0.1, "rest_s": 0.1, **parts}
    rest_s = values.pop("rest_s")
    records, at_s = [], START_S + begin_s
    for number in range(1, count + 1):
        saving_s = save_s if number in saves else 0.0
        whole_s = sum(values.values()) + rest_s + saving_s
        at_s += whole_s
        records.append(
            StepRecord(
                rank=rank,
                step=number,
                end_s=at_s,
                step_s=whole_s,
                checkpoint_s=saving_s or None,
                attempt=attempt,
                **values,
            )
        )
    return records


def facts(end_s: float, **more: object) -> JobTimes:
    return JobTimes(start_s=START_S, end_s=START_S + end_s, **more)  # type: ignore[arg-type]


def divided(times: JobTimes, **hosts: StepTable) -> dict[str, float]:
    """Return the seconds of all hosts by name, and what is unexplained."""
    by_host = divide_time(times, list(hosts), hosts)
    parts = {name: sum(seconds[name] for seconds in by_host.values()) for name in NAMES}
    assert all(seconds >= 0 for seconds in parts.values())
    parts["unexplained"] = (times.end_s - times.start_s) * len(hosts) - sum(parts.values())
    return {name: round(seconds, 4) for name, seconds in parts.items() if round(seconds, 4)}


def test_a_healthy_job_is_start_up_data_training_and_what_no_part_explains() -> None:
    ledger = divided(facts(17.0), a=table(steps(saves=[5], save_s=0.5)))

    assert ledger == {"start-up": 5.0, "data": 1.0, "training": 8.0, "checkpoints": 0.5, "unexplained": 2.5}


def test_ranks_of_one_host_share_its_seconds() -> None:
    ledger = divided(facts(15.0), a=table([*steps(0), *steps(1)]))

    assert ledger == {"start-up": 5.0, "data": 1.0, "training": 8.0, "unexplained": 1.0}


@pytest.mark.parametrize(
    ("slow", "waiting", "expected"),
    [
        ({"forward_s": 0.8}, {"backward_s": 0.9}, {"training": 8.0 + 5.0}),
        ({"data_s": 0.6}, {"backward_s": 0.9}, {"data": 1.0 + 5.0, "training": 8.0}),
        ({"data_s": 0.6}, {"forward_s": 0.8}, {"data": 1.0 + 5.0, "training": 8.0}),
    ],
)
def test_what_a_rank_waits_for_a_slower_one_is_no_training_of_its_own(
    slow: dict[str, Any], waiting: dict[str, Any], expected: dict[str, float]
) -> None:
    tables = {"a": table(steps(0, **waiting)), "b": table(steps(1, **slow))}

    ledger = divided(facts(20.0), **tables)

    assert ledger["straggler"] == 5.0
    assert ledger["training"] == 8.0 + expected.get("training", 8.0)
    assert ledger["data"] == 1.0 + expected.get("data", 1.0)


def test_ranks_that_do_not_train_in_step_wait_for_nobody() -> None:
    ledger = divided(facts(30.0), a=table(steps(0)), b=table(steps(1, forward_s=1.5, backward_s=0.1)))

    assert "straggler" not in ledger


def test_a_failure_without_a_checkpoint_loses_all_steps_and_the_host_is_idle_after_it() -> None:
    ledger = divided(facts(20.0, failures=(START_S + 15.5,), failed=True), a=table(steps()))

    assert ledger == {"start-up": 5.0, "lost": 10.5, "idle": 4.5}


@pytest.mark.parametrize("by_file", [False, True])
def test_only_work_since_the_last_checkpoint_is_lost(by_file: bool) -> None:
    """Step 6 begins with a checkpoint, 10 s after the start, which takes 0.5 s."""
    saved = (START_S + 10.5,) if by_file else ()
    failed = facts(20.0, failures=(START_S + 16.0,), failed=True, saved=saved)

    ledger = divided(failed, a=table(steps(saves=[6], save_s=0.5)))

    assert ledger["lost"] == 5.5
    assert ledger["idle"] == 4.0
    assert ledger["checkpoints"] == 0.5
    assert ledger["training"] == 4.0


def test_a_restart_is_idle_until_its_first_step_and_keeps_the_steps_after_it() -> None:
    first, second = steps(count=5), steps(count=5, begin_s=14.0, attempt=2)

    ledger = divided(facts(19.0, failures=(START_S + 10.0,)), a=table([*first, *second]))

    assert ledger == {"start-up": 5.0, "lost": 5.0, "idle": 4.0, "data": 0.5, "training": 4.0, "unexplained": 0.5}


def test_steps_whose_parts_are_not_measured_are_training() -> None:
    beats = [StepRecord(rank=0, step=n, end_s=START_S + 5 + n, step_s=None if n == 1 else 1.0) for n in range(1, 6)]

    assert divided(facts(12.0), a=table(beats)) == {"start-up": 6.0, "training": 4.0, "unexplained": 2.0}


def test_a_host_without_steps_is_divided_by_the_times_of_its_processes() -> None:
    facts_of_job = facts(20.0, failures=(START_S + 15.0,), failed=True, ranks_began={"a": START_S + 2.0})

    ledger = divide_time(facts_of_job, ["a"], {})["a"]

    assert {name: seconds for name, seconds in ledger.items() if seconds} == {"start-up": 2.0, "idle": 5.0}


def test_clocks_that_disagree_never_make_more_time_than_there_was() -> None:
    odd = [
        StepRecord(rank=0, step=n, end_s=START_S + n * 0.5, step_s=3.0, data_s=9.0, backward_s=9.0)
        for n in range(-3, 40)
    ]

    ledger = divided(facts(10.0, failures=(START_S + 7.0,), failed=True), a=table(odd))

    assert sum(ledger.values()) == pytest.approx(10.0)
    assert ledger.get("unexplained", 0.0) >= 0


def interrupted(**more: object) -> JobTimes:
    """Return the facts of a start that was interrupted 20 s after its begin."""
    return facts(20.0, failures=(START_S + 20.0,), failed=True, interrupted=True, **more)


def test_of_an_interrupted_start_what_followed_its_last_kept_checkpoint_is_lost() -> None:
    # The script's own save at step 8 is on the disk that is gone.
    ledger = divided(interrupted(saved=(START_S + 9.0,)), a=table(steps(saves=[8], save_s=0.5)))

    assert ledger == {"start-up": 5.0, "data": 0.4, "training": 3.2, "lost": 11.0, "unexplained": 0.4}


def test_an_interrupted_start_that_saved_in_its_grace_lost_no_step() -> None:
    ledger = divided(interrupted(saved=(START_S + 18.0,)), a=table(steps()))

    assert ledger == {"start-up": 5.0, "data": 1.0, "training": 8.0, "lost": 2.0, "unexplained": 4.0}


def test_an_interrupted_start_without_steps_lost_all_since_its_ranks_began_or_its_checkpoint() -> None:
    began = {"a": START_S + 2.0}

    assert divided(interrupted(), a=table([])) == {"start-up": 20.0}
    assert divided(interrupted(ranks_began=began), a=table([])) == {"start-up": 2.0, "lost": 18.0}
    saved = interrupted(ranks_began=began, saved=(START_S + 15.0,))
    assert divided(saved, a=table([])) == {"start-up": 2.0, "lost": 5.0, "unexplained": 13.0}


def test_evaluation_collections_and_pauses_are_parts_of_their_own() -> None:
    measured = steps(evaluation_s=0.2, collection_s=0.05, pause_s=0.15, rest_s=0.0)

    ledger = divided(facts(18.0), a=table(measured))

    assert ledger == {
        "start-up": 5.0,
        "data": 1.0,
        "evaluation": 2.0,
        "collection": 0.5,
        "pause": 1.5,
        "training": 8.0,
    }


def test_what_the_first_step_computes_longer_than_the_median_one_is_a_part_of_its_own() -> None:
    first, later = steps(count=1, forward_s=3.3), steps(count=9, begin_s=9.0)
    rows = [*first, *(msgspec.structs.replace(step, step=step.step + 1) for step in later)]

    assert divided(facts(18.0), a=table(rows))["first step"] == 3.0
    assert "first step" not in divided(facts(18.0), a=table(rows[:5])), "too few steps for a median"


def test_saves_and_evaluation_after_the_last_step_count_as_long_as_the_job_lasts() -> None:
    late = {"late_s": {"a": {0: (1.5, 0.25)}}}

    ledger = divided(facts(17.0, **late), a=table(steps()))
    assert (ledger["checkpoints"], ledger["evaluation"]) == (1.5, 0.25)
    assert divided(facts(15.5, **late), a=table(steps()))["checkpoints"] == 0.5
    assert "checkpoints" not in divided(facts(17.0, failures=(START_S + 16.0,), failed=True, **late), a=table(steps()))
