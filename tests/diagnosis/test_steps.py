import itertools
import math
import random

import msgspec
import pytest

from tests.diagnosis.made import START_S, find_by_rule, window
from toolkit.diagnosis.evidence import Evidence, MachineFacts, StepColumns
from toolkit.diagnosis.slow_rank import own_work, pair
from toolkit.diagnosis.window import EvidenceWindow


def job(ranks: list[list[dict[str, float]]], columns: dict[str, list[float]] | None = None) -> Evidence:
    """Return a finished job with the steps of each rank; what a step does not give is not measured."""
    evidence_window = window(columns or {"cpu/all/used_percent": [50.0] * 100}, machine=MachineFacts(cores=4))
    now_s = START_S
    for rank, steps in enumerate(ranks):
        now_s = START_S
        for number, step in enumerate(steps):
            now_s += step["step_s"]
            evidence_window.step(rank, number, now_s, **step)
    return evidence_window.evidence(now_s, is_over=True)


def steps(count: int, *, slow: tuple[int, ...] = (), **seconds: float) -> list[dict[str, float]]:
    """Return *count* steps of some 100 ms; those of *slow* take a second."""
    noise = random.Random(count)
    return [
        {"step_s": (1.0 if number in slow else 0.1) * noise.uniform(0.9, 1.1), **seconds} for number in range(count)
    ]


@pytest.mark.parametrize("count", [6, 40, 400])
def test_steps_that_vary_as_they_do_are_no_finding(count: int) -> None:
    assert find_by_rule(job([steps(count), steps(count + 1)])) == {}


def test_a_slow_first_step_is_no_outlier() -> None:
    assert find_by_rule(job([steps(40, slow=(0,))])) == {}


@pytest.mark.parametrize(("minutes", "is_found"), [(25, True), (5, False)])
def test_a_long_start_is_found(minutes: float, is_found: bool) -> None:
    first = {"step_s": 1.0}
    evidence_window = EvidenceWindow([], host="algo-1", start_s=START_S, interval_s=0.5, machine=MachineFacts())
    evidence_window.step(0, 0, START_S + 60 * minutes, **first)

    assert ("MaxInitializationTime" in find_by_rule(evidence_window.evidence(START_S + 60 * minutes + 5))) is is_found


def test_a_phase_that_alternates_is_named_in_place_of_the_step() -> None:
    alternating = [
        {"step_s": 0.5 if number % 2 else 0.15, "forward_s": 0.05, "backward_s": 0.44 if number % 2 else 0.09}
        for number in range(40)
    ]

    finding = find_by_rule(job([alternating]))["StepAlternation"]

    assert finding.subject == "backward"
    assert "alternates with a period of 2 steps: 440 ms / 90 ms, 4.9 times as long" in finding.text
    assert finding.lost_s == pytest.approx(20 * 0.35, rel=0.05)


def test_a_period_of_three_steps_is_found() -> None:
    assert (
        "period of 3"
        in find_by_rule(job([[{"step_s": (0.1, 0.1, 0.9)[number % 3]} for number in range(60)]]))[
            "StepAlternation"
        ].text
    )


def loading(workers: float, percent: float, **columns: float) -> dict[str, list[float]]:
    """Return columns of 50 s: *workers* that use *percent* of a core together, and other columns of one value."""
    also = {f"cpu/all/{name}": [value] * 100 for name, value in columns.items()}
    return {"rank/0/loader_cpu_percent": [percent] * 100, "rank/0/loader_workers": [workers] * 100, **also}


WAITING = [{"step_s": 0.2, "data_s": 0.15} for _ in range(50)]


@pytest.mark.parametrize(
    ("columns", "message"),
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
def test_waiting_for_data_is_told_with_what_the_loader_does(columns: dict[str, list[float]], message: str) -> None:
    text = find_by_rule(job([WAITING], columns))["DataWait"].text

    assert text.startswith("The steps of rank 0 wait for the data loader for 75 % of their time (150 ms a step). ")
    assert message in text


def test_a_workers_use_is_that_of_the_time_in_which_it_ran() -> None:
    late = {"rank/0/loader_cpu_percent": [0.0] * 50 + [99.0] * 50, "rank/0/loader_workers": [0.0] * 50 + [1.0] * 50}

    assert "1 loader worker uses 99 % of a core: it is busy." in find_by_rule(job([WAITING * 5], late))["DataWait"].text


def test_dataloader_and_data_wait_advise_one_change() -> None:
    helped = [find_by_rule(job([WAITING], columns)) for columns in (loading(2, 195), loading(2, 4))]
    others = [find_by_rule(job([WAITING], columns)) for columns in (loading(1, 90, used_percent=99), loading(0, 0))]

    assert "2 loader workers run on 4 cores while the steps wait" in helped[0]["Dataloader"].text
    assert all(findings["Dataloader"].change == findings["DataWait"].change for findings in helped)
    assert all(findings.keys() == {"DataWait"} for findings in others)


def test_workers_that_start_anew_in_each_epoch_are_told_with_the_busy_cores() -> None:
    waiting = [
        {"step_s": 1.4, "data_s": 1.3} if step % 22 == 0 else {"step_s": 0.1, "data_s": 1e-3} for step in range(220)
    ]
    workers = {"rank/0/loader_cpu_percent": [20.0] * 200, "rank/0/loader_workers": [9.0, 0.0] * 100}
    anew = workers | {"rank/0/loader_starts": [float(9 * (step // 20)) for step in range(200)]}
    columns_kept = workers | {"rank/0/loader_starts": [9.0] * 200}
    cores = {"cpu/core0/used_percent": [99.0] * 200, "cpu/core1/used_percent": [40.0] * 200}

    of_anew = find_by_rule(job([waiting], anew | cores))
    of_kept = find_by_rule(job([waiting], columns_kept))["DataWait"]

    assert of_anew["DataWait"].text == (
        "The steps of rank 0 wait for the data loader for 35 % of their time (54.4 ms a step)."
        " 98 % of the wait is in one step of 22, as in the first step of each epoch: the loader workers start anew in"
        " each epoch (81 starts of at most 9 at a time were seen). Busy cores: core0 99 %."
    )
    assert of_anew["DataWait"].change.startswith("Set num_workers to 0 or 1, or persistent_workers=True")
    assert "9 loader workers run on 4 cores (busy: core0 99 %)." in of_anew["Dataloader"].text
    assert of_anew["Dataloader"].change == of_anew["DataWait"].change
    assert "one step of 22, as in the first step of each epoch: the loader starts each epoch slowly." in of_kept.text


def test_steps_that_hardly_wait_are_no_finding_with_any_number_of_workers_that_the_cores_can_run() -> None:
    workers = {"rank/0/loader_cpu_percent": [40.0] * 100, "rank/0/loader_workers": [1.0] * 100}

    assert find_by_rule(job([[{"step_s": 0.2, "data_s": 0.01} for _ in range(50)]], workers)) == {}


def test_more_workers_than_the_cores_can_run_are_found() -> None:
    workers = {"rank/0/loader_workers": [9.0] * 100}

    assert find_by_rule(job([steps(30, data_s=0.001)], workers)).keys() == {"Dataloader"}


def test_a_rank_that_the_others_wait_for_is_found_by_its_own_work() -> None:
    healthy = [{"step_s": 0.3, "data_s": 0.01, "forward_s": 0.05, "backward_s": 0.24} for _ in range(60)]
    slow = [{"step_s": 0.3, "data_s": 0.15, "forward_s": 0.05, "backward_s": 0.10} for _ in range(60)]

    finding = find_by_rule(job([healthy, slow, healthy]), {"SlowRank": {}})["SlowRank"]

    assert (finding.rank, pair(finding)) == (1, (1, 0))
    assert "Most of it is loading data (150 ms; 10 ms on rank 0)" in finding.text
    assert find_by_rule(job([healthy, healthy, healthy])) == {}
    again = job([healthy, slow, healthy])
    again.compared = {1: 2}  # Those two were traced while the job ran.
    assert pair(find_by_rule(again)["SlowRank"]) == (1, 2)
    assert "10 ms on rank 2" in find_by_rule(again)["SlowRank"].text


def test_a_rank_whose_backward_alone_is_slow_is_found_though_all_wait_in_theirs() -> None:
    healthy = [{"step_s": 0.3, "forward_s": 0.05, "backward_s": 0.24, "own_backward_s": 0.04} for _ in range(60)]
    slow = [{"step_s": 0.3, "forward_s": 0.05, "backward_s": 0.24, "own_backward_s": 0.23} for _ in range(60)]

    finding = find_by_rule(job([healthy, slow, healthy]), {"SlowRank": {}})["SlowRank"]

    assert (finding.rank, pair(finding)) == (1, (1, 0))
    assert "Most of it is backward (230 ms; 40 ms on rank 0)" in finding.text


def test_ranks_of_other_hosts_are_compared_by_what_they_tell_of_their_own_work() -> None:
    healthy = [{"step_s": 0.3, "data_s": 0.01, "forward_s": 0.05, "backward_s": 0.24} for _ in range(60)]
    slow = [{"step_s": 0.3, "data_s": 0.15, "forward_s": 0.05, "backward_s": 0.10} for _ in range(60)]
    local, remote = job([healthy]), job([slow])
    remote.host = "algo-2"
    work = own_work(remote)[0]
    local.elsewhere = {7: msgspec.structs.replace(work, rank=7)}

    finding = find_by_rule(local, {"SlowRank": {}})["SlowRank"]

    assert (finding.host, finding.rank, pair(finding)) == ("algo-2", 7, (7, 0))
    assert "Most of it is loading data (150 ms; 10 ms on rank 0)" in finding.text
    assert (finding.start_s, finding.end_s) == (work.start_s, work.end_s)
    local.elsewhere = {7: msgspec.structs.replace(work, rank=7, steps=4)}
    assert find_by_rule(local, {"SlowRank": {}}) == {}, "too few of its steps are known"


def test_what_is_not_measured_is_nan_and_stays_silent() -> None:
    assert find_by_rule(job([[{"step_s": math.nan} for _ in range(50)]])) == {}


@pytest.mark.parametrize(
    ("sign", "message"),
    [
        ({"cpu/all/iowait_percent": [31.0] * 100}, "the cores waited for it for 31 % of the time."),
        ({"pressure/io/some_percent": [40.0] * 100}, "some task did for 40 %."),
        ({"rank/0/cpu_percent": [18.0] * 100}, "the ranks used 18 % of a core meanwhile."),
    ],
)
def test_data_on_a_slow_disk_is_told(sign: dict[str, list[float]], message: str) -> None:
    reads = {"rank/0/disk_read_bytes_per_s": [48e6] * 100}

    finding = find_by_rule(job([WAITING], loading(0, 0) | reads | sign))["DataWait"]

    assert f"The data is read from a disk that is too slow, at 48 MB/s: {message}" in finding.text
    assert "in memory" in finding.change


def test_a_disk_that_other_programs_wait_for_is_not_the_jobs() -> None:
    waits = {"rank/0/disk_read_bytes_per_s": [0.0] * 100, "cpu/all/iowait_percent": [31.0] * 100}

    assert "disk" not in find_by_rule(job([WAITING], loading(0, 0) | waits))["DataWait"].text


def in_step(own_s: dict[int, float], count: int, ranks: int = 4) -> list[list[dict[str, float]]]:
    """Return steps of ranks that wait for the slowest one; *own_s*: what rank 1 needs from a step on, else 100 ms."""
    noise = random.Random(ranks)
    rows: list[list[dict[str, float]]] = [[] for _ in range(ranks)]
    slow_s = 0.1
    for number in range(count):
        slow_s = own_s.get(number, slow_s)
        works = [(slow_s if rank == 1 else 0.1) * noise.uniform(0.97, 1.03) for rank in range(ranks)]
        for rank, work_s in enumerate(works):
            step = {"step_s": max(works) + 0.002, "forward_s": work_s - 0.06, "own_backward_s": 0.06}
            rows[rank].append({**step, "backward_s": step["step_s"] - step["forward_s"]})
    return rows


def test_a_rank_a_third_slower_is_judged_by_what_its_peers_wait() -> None:
    finding = find_by_rule(job(in_step({0: 0.135}, 200)))["SlowRank"]

    assert finding.rank == 1
    assert finding.text.startswith(
        "Rank 1 needs 135 ms a step for its own work, its peers 100 ms: they wait for it for 2"
    )
    assert finding.lost_s == pytest.approx(200 * 0.035, rel=0.1)


def test_a_rank_that_saves_now_and_then_is_not_slow() -> None:
    ranks = in_step({}, 200, ranks=2)
    for rank, steps_of_rank in enumerate(ranks):
        for step in steps_of_rank[::10]:
            step["step_s"] += 0.06
            # 6 % of its time; in its other steps it saves nothing, and so nothing is measured.
            step["checkpoint_s" if rank == 1 else "backward_s"] = 0.06 if rank == 1 else step["backward_s"] + 0.06

    assert "SlowRank" not in find_by_rule(job(ranks))


def test_a_rank_that_is_slow_for_a_while_is_found_with_the_time_and_its_share() -> None:
    # STEPS of a running job are kept; all of them are looked at afterwards.
    whole = {
        rank: StepColumns(**columns)
        for rank, columns in enumerate(map(_columns, in_step({1000: 0.2, 1400: 0.1}, 4000)))
    }
    over = Evidence(
        host="algo-1",
        start_s=START_S,
        end_s=whole[0].end_s[-1],
        is_over=True,
        interval_s=0.5,
        machine=MachineFacts(),
        steps=whole,
    )

    finding = find_by_rule(over)["SlowRank"]

    assert finding.rank == 1
    assert finding.text.startswith("For 1 min 2")
    assert " UTC on rank 1 needs 200 ms a step for its own work, its peers 100 ms" in finding.text
    assert finding.start_s == pytest.approx(whole[0].end_s[1000], abs=3)
    assert finding.lost_s == pytest.approx(400 * 0.1, rel=0.1)


def test_ranks_that_other_programs_slow_by_a_fifth_are_no_finding() -> None:
    crowd = {"cpu/all/used_percent": [98.0] * 200, "rank/0/cpu_percent": [100.0] * 200}  # Of four cores.

    assert find_by_rule(job(in_step({0: 0.118}, 200))).keys() == {"SlowRank"}
    assert find_by_rule(job(in_step({0: 0.118}, 200), crowd)) == {}
    assert "SlowRank" in find_by_rule(job(in_step({0: 0.135}, 200), crowd))


def test_ranks_that_differ_by_chance_are_no_finding() -> None:
    assert find_by_rule(job(in_step({}, 200))) == {}
    assert find_by_rule(job(in_step({50: 0.25, 56: 0.1}, 200))) == {}, "six steps"


def _columns(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    blank = [math.nan] * len(rows)
    times_s = [START_S + time_s for time_s in itertools.accumulate(columns["step_s"])]
    numbers = [float(number) for number in range(len(rows))]
    return {**dict.fromkeys(StepColumns.__struct_fields__, blank), **columns, "end_s": times_s, "step": numbers}
