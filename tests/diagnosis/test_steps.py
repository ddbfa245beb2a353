import math
import random

import msgspec
import pytest

from tests.diagnosis.made import START_S, found, window
from toolkit.diagnosis.evidence import Evidence, MachineFacts
from toolkit.diagnosis.slow_rank import own_work, pair
from toolkit.diagnosis.window import EvidenceWindow


def job(ranks: list[list[dict[str, float]]], columns: dict[str, list[float]] | None = None) -> Evidence:
    """Return a finished job with the steps of each rank; what a step does not give is not measured."""
    made = window(columns or {"cpu/all/used_percent": [50.0] * 100}, machine=MachineFacts(cores=4))
    now_s = START_S
    for rank, steps in enumerate(ranks):
        now_s = START_S
        for number, step in enumerate(steps):
            now_s += step["step_s"]
            made.step(rank, number, now_s, **step)
    return made.evidence(now_s, is_over=True)


def steps(count: int, *, slow: tuple[int, ...] = (), **seconds: float) -> list[dict[str, float]]:
    """Return *count* steps of some 100 ms; those of *slow* take a second."""
    noise = random.Random(count)
    return [
        {"step_s": (1.0 if number in slow else 0.1) * noise.uniform(0.9, 1.1), **seconds} for number in range(count)
    ]


def test_outliers_that_cost_time_are_found() -> None:
    slow = tuple(range(20, 300, 25))

    seen = found(job([steps(300, slow=slow)]))

    assert "12 steps of rank 0 took more than" in seen["StepOutlier"].text


@pytest.mark.parametrize("count", [6, 40, 400])
def test_steps_that_vary_as_they_do_are_no_finding(count: int) -> None:
    assert found(job([steps(count), steps(count + 1)])) == {}


def test_a_slow_first_step_is_no_outlier() -> None:
    assert found(job([steps(40, slow=(0,))])) == {}


@pytest.mark.parametrize(("minutes", "is_found"), [(25, True), (5, False)])
def test_a_long_start_is_found(minutes: float, is_found: bool) -> None:
    first = {"step_s": 1.0}
    made = EvidenceWindow([], host="algo-1", start_s=START_S, interval_s=0.5, machine=MachineFacts())
    made.step(0, 0, START_S + 60 * minutes, **first)

    assert ("MaxInitializationTime" in found(made.evidence(START_S + 60 * minutes + 5))) is is_found


def test_a_phase_that_alternates_is_named_in_place_of_the_step() -> None:
    alternating = [
        {"step_s": 0.5 if number % 2 else 0.15, "forward_s": 0.05, "backward_s": 0.44 if number % 2 else 0.09}
        for number in range(40)
    ]

    finding = found(job([alternating]))["StepAlternation"]

    assert finding.subject == "backward"
    assert "alternates with a period of 2 steps: 0.44 / 0.09 s, 4.9 times as long" in finding.text


def test_a_period_of_three_steps_is_found() -> None:
    assert (
        "period of 3"
        in found(job([[{"step_s": (0.1, 0.1, 0.9)[number % 3]} for number in range(60)]]))["StepAlternation"].text
    )


def loading(workers: float, percent: float, **columns: float) -> dict[str, list[float]]:
    """Return columns of 50 s: *workers* that use *percent* of a core together, and other columns of one value."""
    also = {f"cpu/all/{name}": [value] * 100 for name, value in columns.items()}
    return {"rank/0/loader_cpu_percent": [percent] * 100, "rank/0/loader_workers": [workers] * 100, **also}


WAITING = [{"step_s": 0.2, "data_s": 0.15} for _ in range(50)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"cpu/all/used_percent": [50.0] * 100}, "What the loader does meanwhile was not measured."),
        (loading(0, 0), "No loader worker was seen"),
        (loading(2, 195), "2 loader workers use 195 % of a core together: they are busy."),
        (loading(1, 90, used_percent=99), "1 loader worker uses 90 % of a core: it is busy, as all cores are."),
        (loading(2, 4), "2 loader workers use only 4 % of a core together: they wait for something else."),
        (loading(1, 30, used_percent=40, throttled_percent=60), "CPU quota stops it (60 % of the time)."),
        (
            loading(1, 30, used_percent=99) | {"rank/0/cpu_percent": [40.0] * 100},
            "1 loader worker uses only 30 % of a core: other processes hold the cores, which are busy for 99 % of the"
            " time, with processes that are no ranks for 89 %.",
        ),
    ],
    ids=["unknown", "none", "busy", "full", "waiting", "throttled", "crowded"],
)
def test_waiting_for_data_is_told_with_what_the_loader_does(columns: dict[str, list[float]], said: str) -> None:
    text = found(job([WAITING], columns))["DataWait"].text

    assert text.startswith("The steps of rank 0 wait for the data loader for 75 % of their time (0.15 s a step). ")
    assert said in text


def test_a_workers_use_is_that_of_the_time_in_which_it_ran() -> None:
    late = {"rank/0/loader_cpu_percent": [0.0] * 50 + [99.0] * 50, "rank/0/loader_workers": [0.0] * 50 + [1.0] * 50}

    assert "1 loader worker uses 99 % of a core: it is busy." in found(job([WAITING * 5], late))["DataWait"].text


def test_dataloader_and_data_wait_advise_one_change() -> None:
    helped = [found(job([WAITING], columns)) for columns in (loading(2, 195), loading(2, 4))]
    others = [found(job([WAITING], columns)) for columns in (loading(1, 90, used_percent=99), loading(0, 0))]

    assert "2 loader workers run on 4 cores while the steps wait" in helped[0]["Dataloader"].text
    assert all(seen["Dataloader"].change == seen["DataWait"].change for seen in helped)
    assert all(seen.keys() == {"DataWait"} for seen in others)


def test_workers_that_start_anew_in_each_epoch_are_told_with_the_busy_cores() -> None:
    waiting = [
        {"step_s": 1.4, "data_s": 1.3} if step % 22 == 0 else {"step_s": 0.1, "data_s": 1e-3} for step in range(220)
    ]
    workers = {"rank/0/loader_cpu_percent": [20.0] * 200, "rank/0/loader_workers": [9.0, 0.0] * 100}
    anew = workers | {"rank/0/loader_starts": [float(9 * (step // 20)) for step in range(200)]}
    kept = workers | {"rank/0/loader_starts": [9.0] * 200}
    cores = {"cpu/core0/used_percent": [99.0] * 200, "cpu/core1/used_percent": [40.0] * 200}

    of_anew = found(job([waiting], anew | cores))
    of_kept = found(job([waiting], kept))["DataWait"]

    assert of_anew["DataWait"].text == (
        "The steps of rank 0 wait for the data loader for 35 % of their time (0.0544 s a step)."
        " 98 % of the wait is in one step of 22, as in the first step of each epoch: the loader workers start anew in"
        " each epoch (81 starts of at most 9 at a time were seen). Busy cores: core0 99 %."
    )
    assert of_anew["DataWait"].change.startswith("Set num_workers to 0 or 1, or persistent_workers=True")
    assert "9 loader workers run on 4 cores (busy: core0 99 %)." in of_anew["Dataloader"].text
    assert of_anew["Dataloader"].change == of_anew["DataWait"].change
    assert "one step of 22, as in the first step of each epoch: the loader starts each epoch slowly." in of_kept.text


def test_steps_that_hardly_wait_are_no_finding_with_any_number_of_workers_that_the_cores_can_run() -> None:
    workers = {"rank/0/loader_cpu_percent": [40.0] * 100, "rank/0/loader_workers": [1.0] * 100}

    assert found(job([[{"step_s": 0.2, "data_s": 0.01} for _ in range(50)]], workers)) == {}


def test_more_workers_than_the_cores_can_run_are_found() -> None:
    workers = {"rank/0/loader_workers": [9.0] * 100}

    assert found(job([steps(30, data_s=0.001)], workers)).keys() == {"Dataloader"}


def test_a_rank_that_the_others_wait_for_is_found_by_its_own_work() -> None:
    healthy = [{"step_s": 0.3, "data_s": 0.01, "forward_s": 0.05, "backward_s": 0.24} for _ in range(60)]
    slow = [{"step_s": 0.3, "data_s": 0.15, "forward_s": 0.05, "backward_s": 0.10} for _ in range(60)]

    finding = found(job([healthy, slow, healthy]), {"SlowRank": {}})["SlowRank"]

    assert (finding.rank, pair(finding)) == (1, (1, 0))
    assert "Most of it is loading data (0.15 s; 0.01 s on rank 0)" in finding.text
    assert found(job([healthy, healthy, healthy])) == {}
    again = job([healthy, slow, healthy])
    again.compared = {1: 2}  # Those two were traced while the job ran.
    assert pair(found(again)["SlowRank"]) == (1, 2)
    assert "0.01 s on rank 2" in found(again)["SlowRank"].text


def test_a_rank_whose_backward_alone_is_slow_is_found_though_all_wait_in_theirs() -> None:
    healthy = [{"step_s": 0.3, "forward_s": 0.05, "backward_s": 0.24, "own_backward_s": 0.04} for _ in range(60)]
    slow = [{"step_s": 0.3, "forward_s": 0.05, "backward_s": 0.24, "own_backward_s": 0.23} for _ in range(60)]

    finding = found(job([healthy, slow, healthy]), {"SlowRank": {}})["SlowRank"]

    assert (finding.rank, pair(finding)) == (1, (1, 0))
    assert "Most of it is backward (0.23 s; 0.04 s on rank 0)" in finding.text


def test_ranks_of_other_hosts_are_compared_by_what_they_tell_of_their_own_work() -> None:
    healthy = [{"step_s": 0.3, "data_s": 0.01, "forward_s": 0.05, "backward_s": 0.24} for _ in range(60)]
    slow = [{"step_s": 0.3, "data_s": 0.15, "forward_s": 0.05, "backward_s": 0.10} for _ in range(60)]
    here, there = job([healthy]), job([slow])
    there.host = "algo-2"
    told = own_work(there)[0]
    here.elsewhere = {7: msgspec.structs.replace(told, rank=7)}

    finding = found(here, {"SlowRank": {}})["SlowRank"]

    assert (finding.host, finding.rank, pair(finding)) == ("algo-2", 7, (7, 0))
    assert "Most of it is loading data (0.15 s; 0.01 s on rank 0)" in finding.text
    assert (finding.start_s, finding.end_s) == (told.start_s, told.end_s)
    here.elsewhere = {7: msgspec.structs.replace(told, rank=7, steps=4)}
    assert found(here, {"SlowRank": {}}) == {}, "too few of its steps are known"


def test_what_is_not_measured_is_nan_and_stays_silent() -> None:
    assert found(job([[{"step_s": math.nan} for _ in range(50)]])) == {}
