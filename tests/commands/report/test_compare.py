"""`toolkit compare`, on two recorded jobs (entrypoints/vit_jit, TensorFlow 2.21 on two cores) and on made-up ones."""

import gzip
import json
import random
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from toolkit.commands import jobs
from toolkit.commands.report.compare import formulas
from toolkit.commands.report.compare.difference import compare_sides
from toolkit.commands.report.compare.epochs import find_in_lines, find_in_metrics
from toolkit.commands.report.compare.formulas import BreakEven
from toolkit.commands.report.compare.measured import choose_labels, measure_job
from toolkit.commands.report.compare.page import build_page
from toolkit.commands.report.model import Chart, Page, Table, Words
from toolkit.commands.report.text import TextWriter
from toolkit.metrics.sample import Sample
from toolkit.series import findings
from toolkit.series.column import SampleColumn
from toolkit.series.finding import Finding
from toolkit.series.sample_writer import SampleWriter
from toolkit.series.step_records import StepRecord, StepWriter

RECORDED = Path(__file__).parents[2] / "data/compare"
BEGAN = datetime(2026, 11, 23, tzinfo=timezone.utc)


def job(folder: Path, *, hours: float = 0.01, hosts: int = 1, rows: list[dict[str, Any]] | None = None) -> Path:
    """Make the folder of a job that took so many hours and captured *rows*."""
    stamps = {"start_time": BEGAN.isoformat(), "end_time": (BEGAN + timedelta(hours=hours)).isoformat()}
    seconds = {"training_seconds": hours * 3600, "billable_seconds": hours * 3600 * hosts}
    facts = {"name": folder.name, "status": "Completed", "exit_code": 0, **stamps, **seconds}
    output = folder / "hosts/algo-1/opt/ml/output"
    output.mkdir(parents=True)
    names = {f"algo-{number}": {"exit_code": 0} for number in range(1, hosts + 1)}
    (folder / "job.json").write_text(json.dumps({**facts, "hosts": names}))
    lines = [json.dumps({"time_s": BEGAN.timestamp(), "host": "algo-1", "rank": 0, **row}) for row in rows or ()]
    (output / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def page(*folders: Path, **more: Any) -> Page:
    read = [jobs.read(folder) for folder in folders]
    labelled = zip(read, choose_labels(read), strict=True)
    return build_page(
        [measure_job(finished, label, now_s=0.0, epochs=None, gpus=None) for finished, label in labelled],
        now_s=0.0,
        **more,
    )


def tables(report: Page) -> dict[str, Table]:
    return {block.id: block for section in report.sections for block in section.blocks if isinstance(block, Table)}


def words(report: Page) -> str:
    return "\n".join(
        f"{block.name} {block.text}"
        for section in report.sections
        for block in section.blocks
        if isinstance(block, Words)
    )


def compare(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toolkit", "compare", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def values(name: str, metric: str) -> list[float]:
    """Return the values of *metric* in a recorded job, without any code of the toolkit."""
    path = RECORDED / name / "hosts/algo-1/opt/ml/output/metrics.jsonl"
    rows = map(json.loads, path.read_text().splitlines())
    return [row["value"] for row in rows if row["name"] == metric]


def test_every_number_of_the_savings_can_be_recomputed_from_the_files() -> None:
    billed = {name: json.loads((RECORDED / name / "job.json").read_text())["billable_seconds"] for name in both}
    epoch = {name: values(name, "epoch_time") for name in both}
    speed = {name: values(name, "samples_per_second")[1:] for name in both}
    native, after = epoch["native"], epoch["compiled"]
    mean = {name: sum(speed[name]) / len(speed[name]) for name in both}

    rows = {
        row[0]: row[1:] for row in tables(page(RECORDED / "native", RECORDED / "compiled"))["savings-compiled"].rows
    }

    actual = (billed["native"] - billed["compiled"]) / billed["native"] * 100
    assert rows["actual savings"][0] == f"{actual:.1f} %, noise not known"
    potential = (sum(native[1:]) - sum(after[1:])) / sum(native[1:]) * 100
    assert str(rows["potential savings"][0]).startswith(f"{potential:.1f} % (")
    assert rows["overhead of the first epoch"][0] == f"{after[0] - sum(after[1:]) / 11:.4f} s"
    speedup = (mean["compiled"] / mean["native"] - 1) * 100
    assert rows["throughput speed-up"][0] == f"{speedup:.1f} %, noise not known"
    # Nothing says that the compiled job saves anything: it has no break-even.
    assert "break-even epoch" not in rows


both = ("native", "compiled")


def test_the_calculation_beside_each_percentage_gives_it() -> None:
    rows = tables(page(RECORDED / "native", RECORDED / "compiled"))["savings-compiled"].rows
    checked = 0
    for _, value, how in rows:
        calculation = re.search(r"= (\([-\d. +/()x]+\) [-/\d.x ()]+)$", str(how))
        if calculation and "%" in str(value):
            assert str(value).startswith(f"{eval(calculation[1].replace('x', '*')):.1f} %")
            checked += 1

    assert checked == 2


def test_the_tables_of_the_recorded_jobs_are_those_of_their_files() -> None:
    page_tables = tables(page(RECORDED / "native", RECORDED / "compiled", price=3600.0))

    overview = {row[0]: row[1:3] for row in page_tables["overview"].rows}
    for quantity, metric, index in (("first epoch, s", "epoch_time", 0), ("last loss", "loss", -1)):
        assert overview[quantity] == tuple(float(f"{values(name, metric)[index]:.6g}") for name in both)
    assert overview["cost at 3600 for a host and hour"] == overview["billable, s"]
    assert [row[:2] for row in page_tables["epoch-table"].rows] == [("native", 12), ("compiled", 12)]


def test_charts_hold_the_files_own_values() -> None:
    report = page(RECORDED / "native", RECORDED / "compiled")
    charts = {block.id: block for section in report.sections for block in section.blocks if isinstance(block, Chart)}

    assert {"throughput", "loss", "training-time", "billable"} <= charts.keys()
    assert list(charts["epoch-latency"].lines[1].mean) == values("compiled", "epoch_time")
    assert list(charts["loss"].lines[0].mean) == values("native", "loss")
    assert charts["epoch-sum"].lines[0].mean[-1] == pytest.approx(sum(values("native", "epoch_time")))


def test_kts_table_gives_28_not_29_and_1_75_for_each_gpu(tmp_path: Path) -> None:
    """300 epochs in 960 h on 2 GPUs, 210 in 24 h on 32: 3.20 and 0.114 h an epoch. 29 came of 3.20 / 0.11."""
    folders = job(tmp_path / "on-premises", hours=960), job(tmp_path / "cloud", hours=24)

    done = compare(*map(str, folders), "--epochs", "300,210", "--gpus", "2,32", "-o", "-", "--format", "json")

    sections = json.loads(done.stdout)["sections"]
    table = next(finding for finding in sections if finding["id"] == "normalised")["blocks"][0]
    assert table["rows"] == [
        ["on-premises", "2 GPUs", 960.0, 300.0, 3.2, 1.0, 1.0],
        ["cloud", "32 GPUs", 24.0, 210.0, 0.1143, 28.0, 1.75],
    ]


@pytest.mark.parametrize(
    ("native", "optimised", "expected"),
    [
        ([10, 10, 10, 10], [16, 8, 8, 8], BreakEven(number=5, measured=False)),
        ([10, 10, 10, 10], [13, 8, 8, 8], BreakEven(number=3, measured=True)),
        ([10, 10], [9, 9], BreakEven(number=1, measured=True)),
        ([10, 10, 10], [16, 10, 10], BreakEven(number=None, measured=False)),
        ([10, 10, 10], [5, 16, 6], BreakEven(number=3, measured=True)),  # Ahead, behind, ahead: it must stay so.
        ([10, 10, 10], [15, 8, 8], BreakEven(number=4, measured=False)),
        (
            [10, 10, 10],
            [18, 11, 7],
            BreakEven(number=10, measured=False),
        ),  # By the mean of the later ones, not the last.
    ],
)
def test_the_break_even_is_the_first_epoch_after_which_it_stays_ahead(
    native: list[float], optimised: list[float], expected: BreakEven
) -> None:
    assert formulas.find_break_even(native, optimised) == expected


def test_an_interval_tells_a_change_from_noise_and_holds_its_estimate() -> None:
    chance = random.Random(1)
    times = [chance.gauss(1.0, 0.1) for _ in range(200)]
    same = [chance.gauss(1.0, 0.1) for _ in range(200)]
    fifth = [value * 0.8 for value in same]

    noise, change = compare_sides([times], [same], 0.015), compare_sides([times], [fifth], 0.015)

    assert noise is not None
    assert change is not None
    assert not noise.is_certain
    assert change.is_certain
    assert change.low < 20 < change.high
    assert change.saved == pytest.approx((1 - sum(fifth) / sum(times)) * 100)
    assert change.low < change.saved < change.high
    assert compare_sides([times], [fifth], 0.015) == change
    assert compare_sides([[1, 1, 1]], [fifth], 0.015) is None


def test_a_burst_of_noise_widens_the_interval_and_a_step_that_both_have_does_not() -> None:
    calm = [1.0] * 200
    burst = [1.0] * 100 + [3.0] * 40 + [1.0] * 60
    evaluated = [5.0 if step % 50 == 0 else 1.0 for step in range(200)]

    noisy, exact = compare_sides([calm], [burst], 0.0), compare_sides([evaluated], [evaluated], 0.0)

    assert noisy is not None
    assert not noisy.is_certain
    assert exact is not None
    assert (exact.low, exact.high) == pytest.approx((0.0, 0.0))


def test_from_three_runs_a_side_on_their_own_spread_is_the_noise() -> None:
    """Each run is without noise in itself; the runs of a side differ by 10 %, or by 0.1 %."""

    def side(*means: float) -> list[list[float]]:
        return [[mean] * 50 for mean in means]

    spread = compare_sides(side(1.0, 1.1, 1.2), side(0.9, 1.0, 1.1), 0.0)
    close = compare_sides(side(1.0, 1.001, 1.002), side(0.9, 0.901, 0.902), 1.0)

    assert spread is not None
    assert not spread.is_certain
    assert close is not None
    assert close.is_certain


def marks(*times: float, last: float) -> dict[str, list[Sample]]:
    epochs = [Sample(name="epoch", value=n, time_s=time_s, host="h", rank=0) for n, time_s in enumerate(times, 1)]
    return {"epoch": epochs, "loss": [Sample(name="loss", value=1.0, time_s=last, host="h", rank=0)]}


@pytest.mark.parametrize(
    ("metrics", "latencies"),
    [
        (marks(10, 14, 17, last=20), [4, 3, 3]),  # "Epoch 1/3" before each.
        (marks(14, 17, 20, last=20.01), [14, 3, 3]),  # After each; the first from the job's start, 0.
        ({"epoch_latency_ms": [Sample(name="x", value=844.0, time_s=1, host="h")]}, [0.844]),
        ({"s/epoch": [Sample(name="x", value=v, time_s=1, host="h") for v in (5.0, float("nan"), 2.0)]}, [5.0, 2.0]),
        ({"epoch": [Sample(name="epoch", value=v, time_s=10 * v, host="h") for v in (0.5, 1.0, 1.5, 2.0)]}, [10, 10]),
    ],
)
def test_epochs_are_measured_by_what_a_job_captured(metrics: dict[str, list[Sample]], latencies: list[float]) -> None:
    reading = find_in_metrics(metrics, 0.0)

    assert reading is not None
    assert reading.latencies_s == pytest.approx(latencies)


@pytest.mark.parametrize(
    ("line", "latency", "resolution_s"),
    [
        ("24/24 - 5s - 120ms/step - accuracy: 0.5 - loss: 1.0", 5.0, 1.0),
        ("[algo-1 rank 0] 24/24 - 5s - 2s/step - loss: 1.0", 5.0, 1.0),
        ("128/128 - 0s - loss: 0.5 - accuracy: 0.9 - 844ms/epoch - 7ms/step", 0.844, 0.0),
        ("128/128 - 12s - loss: 0.5 - 12s/epoch - 95ms/step", 12.0, 1.0),
    ],
)
def test_epochs_are_read_from_kerass_own_lines(line: str, latency: float, resolution_s: float) -> None:
    reading = find_in_lines(["Epoch 1/3\n", f"{line}\n", "24/30 - 5s - 1ms/step - of another kind\n"])

    assert reading is not None
    assert (reading.latencies_s, reading.resolution_s) == ((latency,), resolution_s)


def test_a_job_of_hugging_faces_trainer_is_compared_by_its_own_summary(tmp_path: Path) -> None:
    summary = {"train_runtime": 100.0, "train_samples_per_second": 300.0}
    for name, factor in (("native", 1), ("compiled", 2)):
        rows = [{"name": metric, "value": value * factor} for metric, value in summary.items()]
        job(tmp_path / name, rows=rows)

    page_tables = tables(page(tmp_path / "native", tmp_path / "compiled"))

    assert ("throughput speed-up", "100.0 %, noise not known") in [
        row[:2] for row in page_tables["savings-compiled"].rows
    ]
    assert ("seconds of the training alone, train_runtime", 100.0, 200.0, "+100.0 %") in page_tables["overview"].rows


def test_steps_are_compared_with_the_same_steps_alone(tmp_path: Path) -> None:
    """The second job has more and slower steps behind; they would turn 20 % saved into a loss."""
    times = {"native": [1.0] * 30, "faster": [3.0] + [0.8] * 29 + [9.0] * 20}
    for name, seconds in times.items():
        steps = [{"name": "step_time", "value": value, "step": step} for step, value in enumerate(seconds, 1)]
        job(tmp_path / name, rows=steps)

    report = page(tmp_path / "native", tmp_path / "faster")
    rows = {row[0]: row[1] for row in tables(report)["savings-faster"].rows}

    assert ("steps/s, steps 2 to 30", 1.0, 1.25, "+25.0 %") in tables(report)["overview"].rows
    assert "steps per second, over the same steps: 1 before, 1.25 after" in report.summary
    assert report.status == "faster"
    assert str(rows["savings per step"]).startswith("20.0 % (")
    # 2 s lost in the first step, 0.2 s won in each later one: after step 12 it is ahead.
    assert rows["break-even step"] == "12"


def test_losses_are_compared_at_the_same_steps(tmp_path: Path) -> None:
    chance = random.Random(3)
    for name, more in (("native", 0.0), ("same", 0.0), ("worse", 0.5)):
        rows = [
            {"name": "loss", "value": 5 / step + more + chance.gauss(0, 0.01), "step": step} for step in range(1, 41)
        ]
        job(tmp_path / name, rows=rows)

    report = page(tmp_path / "native", tmp_path / "same", tmp_path / "worse")

    same, worse = (finding for finding in words(report).splitlines() if "its loss is" in finding)
    assert "over step 21 to 40" in same
    assert "no more than these two runs vary" in same
    assert "above that of native" in worse
    assert "no more than" not in worse


def test_findings_are_cleared_still_there_or_new(tmp_path: Path) -> None:
    rules_by_job = {"native": ("CPUBottleneck", "BatchSize"), "fixed": ("BatchSize", "IOBottleneck")}
    for name, rules in rules_by_job.items():
        seconds = 1.0 if name == "native" else 0.5
        rows = [{"name": "step_time", "value": seconds, "step": step} for step in range(50)]
        monitor = job(tmp_path / name, rows=rows) / "hosts/algo-1/opt/ml/output/monitor"
        monitor.mkdir()
        (monitor / "monitor.json").write_text('{"machine": {"gpus": []}}')
        for rule in rules:
            findings.append(monitor / "findings.jsonl", Finding(rule=rule, text=f"{rule}!", start_s=0, end_s=1))

    report = page(tmp_path / "native", tmp_path / "fixed")
    findings_rows = tables(report)["findings-table"].rows

    assert report.summary.endswith("Cleared: CPUBottleneck.")
    assert [row[1:3] for row in findings_rows if row[1] != "MaxInitializationTime start"] == [
        ("BatchSize", "still there"),
        ("CPUBottleneck", "cleared"),
        ("IOBottleneck", "new"),
    ]


def test_a_finding_is_not_called_cleared_where_nobody_looked(tmp_path: Path) -> None:
    native, other = job(tmp_path / "native"), job(tmp_path / "other")
    monitor = native / "hosts/algo-1/opt/ml/output/monitor"
    monitor.mkdir()
    (monitor / "monitor.json").write_text("{}")
    findings.append(monitor / "findings.jsonl", Finding(rule="BatchSize", text="small", start_s=0, end_s=1))

    report = page(native, other)

    assert "Cleared" not in report.summary
    assert [row[1:3] for row in tables(report)["findings-table"].rows] == [("BatchSize", "not known")]
    assert "other has no findings file" in words(report)


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    native = job(tmp_path / "native", rows=[{"name": "epoch", "value": 3.0}])
    other = job(tmp_path / "other", rows=[{"name": "epoch", "value": 5.0}])
    (other / "job.json").write_text((other / "job.json").read_text().replace("Completed", "Failed"))
    config = native / "hosts/algo-1/opt/ml/input/config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text('{"num-epochs": "9"}')

    report = page(native, other)
    message = words(report)

    assert report.status == "not comparable"  # A job that failed saves nothing.
    assert report.summary == "other and native: other failed; native made 3 of 9 epochs."
    for phrase in (
        "other failed: its times are not those of a whole job",
        "different numbers of epochs",
        "No loss was captured",
        "The epochs of native, other have no latencies",
        "The steps of native, other have no times",
    ):
        assert phrase in message


def test_a_job_without_steps_has_cleared_nothing(tmp_path: Path) -> None:
    for name in ("native", "empty"):
        monitor = job(tmp_path / name) / "hosts/algo-1/opt/ml/output/monitor"
        monitor.mkdir()
        (monitor / "monitor.json").write_text('{"machine": {"gpus": []}}')
    findings.append(
        tmp_path / "native/hosts/algo-1/opt/ml/output/monitor/findings.jsonl",
        Finding(rule="DataWait", text="waits", start_s=0, end_s=1),
    )

    report = page(tmp_path / "native", tmp_path / "empty")

    assert [row[1:3] for row in tables(report)["findings-table"].rows] == [("DataWait", "not known")]
    assert report.status == "not conclusive"
    assert report.summary == "empty and native have neither 20 steps nor 4 epochs with times in common."


def monitored(
    folder: Path, seconds: list[float], *, others: float = 0.0, cpu: float = 100.0, cores: int = 2, hosts: int = 1
) -> Path:
    """Make a job whose rank used *cpu* percent of a core, and other programs *others* percent of all."""
    for number in range(1, hosts + 1):
        output = (
            job(folder, hosts=hosts) / "hosts/algo-1/opt/ml/output"
            if number == 1
            else folder / f"hosts/algo-{number}/opt/ml/output"
        )
        monitor = output / "monitor"
        monitor.mkdir(parents=True)
        about = {"host": f"algo-{number}", "start_s": 0.0, "interval_s": 1.0, "machine": {"cores": cores}}
        (monitor / "monitor.json").write_text(json.dumps(about))
        names = ("cpu/all/used_percent", *(f"cpu/core{core}/used_percent" for core in range(cores)))
        columns = tuple(SampleColumn(name=name, unit="%") for name in (*names, "rank/0/cpu_percent"))
        writer = SampleWriter(monitor / "samples", columns)
        ends = list(accumulate(seconds, initial=BEGAN.timestamp()))
        used = others + cpu / cores
        for time_s in range(int(ends[0]), int(ends[-1]) + 2):
            writer.add(float(time_s), [used, *[used] * cores, cpu])
        writer.close()
        steps = StepWriter(monitor / "steps")
        steps.add(
            [
                StepRecord(rank=0, step=step, end_s=end, step_s=took)
                for step, (end, took) in enumerate(zip(ends[1:], seconds, strict=True), 1)
            ]
        )
        steps.close()
    return folder


def test_the_noise_of_a_shared_machine_is_larger_and_a_claim_needs_the_cpu_seconds(tmp_path: Path) -> None:
    chance = random.Random(5)

    def seconds(mean: float) -> list[float]:
        return [mean * chance.uniform(0.9, 1.1) for _ in range(100)]

    alone = page(monitored(tmp_path / "a", seconds(1.0)), monitored(tmp_path / "b", seconds(0.85)))
    shared = page(
        monitored(tmp_path / "c", seconds(1.0), others=45), monitored(tmp_path / "d", seconds(0.85), others=45)
    )
    waits = page(
        monitored(tmp_path / "e", seconds(1.0), others=45, cpu=20),
        monitored(tmp_path / "f", seconds(0.5), others=45, cpu=40),
    )
    works = page(monitored(tmp_path / "g", seconds(1.0), others=45), monitored(tmp_path / "h", seconds(0.5), others=45))

    assert alone.status == "faster"
    assert "With one run of a side, a machine that was faster or slower for a while looks the same." in alone.summary
    assert ("cores used by others, %", 0.0, 0.0, "") in tables(alone)["overview"].rows
    assert ("cores used by others, %", 45.0, 45.0, "") in tables(shared)["overview"].rows
    assert shared.status == "not conclusive"
    assert "other programs used up to 45 % of the cores" in shared.summary
    assert "billed" not in shared.summary
    assert (waits.status, works.status) == ("not conclusive", "faster")
    assert re.search(r"the CPU seconds of its ranks: \d.\d % (less|more) \(95 % interval: ", waits.summary)


def test_a_difference_of_many_times_is_told_in_times(tmp_path: Path) -> None:
    """A percentage of five digits says nothing to a reader."""
    folders = [monitored(tmp_path / name, [took] * 30) for name, took in (("fast", 1.0), ("slow", 9.3))]

    assert page(*folders).summary.startswith("A step of slow took, against fast, 9.3 times as much (95 % interval: ")
    changes = {str(row[0]): row[-1] for row in tables(page(*reversed(folders)))["overview"].rows}
    assert changes["steps/s, steps 2 to 30"] == "x 9.3"


def test_no_name_of_a_quantity_is_cut_in_the_text(tmp_path: Path) -> None:
    """The unit stands at its end."""
    folders = [monitored(tmp_path / name, [1.0] * 30, others=20) for name in ("before", "after")]

    text = TextWriter().page(page(*folders))

    for name in ("steps/s, steps 2 to 30", "CPU seconds a step, all ranks", "cores used by others, %"):
        assert f"  {name}  " in text


def test_equal_jobs_have_no_difference_and_the_noise_is_said(tmp_path: Path) -> None:
    chance = random.Random(6)
    folders = [
        monitored(tmp_path / name, [chance.uniform(0.9, 1.1) for _ in range(100)]) for name in ("before", "after")
    ]

    report = page(*folders)

    assert report.status == "no difference"
    assert re.search(r"A step of after took, against before, \d.\d % (less|more) \(95 % interval: ", report.summary)
    assert "billed" not in report.summary


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"cores": 4}, "their hosts differ (2 cores; other: 4 cores)"),
        ({"hosts": 2}, "they ran on 1 and 2 hosts"),
    ],
)
def test_jobs_of_different_machines_are_not_comparable(tmp_path: Path, other: dict[str, int], reason: str) -> None:
    report = page(monitored(tmp_path / "one", [1.0] * 50), monitored(tmp_path / "other", [0.5] * 50, **other))

    assert report.status == "not comparable"
    assert report.summary == f"other and one: {reason}."
    assert "savings-other" not in tables(report)


def test_several_runs_of_a_side_stand_side_by_side(tmp_path: Path) -> None:
    for number, (before, after) in enumerate([(1.0, 0.9), (1.01, 0.91), (0.99, 0.89)], 1):
        monitored(tmp_path / f"before-{number}", [before] * 50)
        monitored(tmp_path / f"after-{number}", [after] * 50)
    runs = [",".join(str(tmp_path / f"{side}-{number}") for number in (1, 2, 3)) for side in ("before", "after")]

    done = compare(*runs, "-o", "-", "--format", "json")
    report = json.loads(done.stdout)

    assert report["status"] == "faster"
    overview = next(section for section in report["sections"] if section["id"] == "side-by-side")["blocks"][0]
    heads = [column["name"] for column in overview["columns"]]
    assert heads[1:7] == ["before-1", "before-2", "before-3", "after-1", "after-2", "after-3"]


def test_the_command_writes_every_format(tmp_path: Path) -> None:
    native, compiled = str(RECORDED / "native"), str(RECORDED / "compiled")
    for name, start in (("page.html", "<!doctype html>"), ("page.md", "# compiled against native"), ("page.json", "{")):
        done = compare(native, compiled, "-o", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name).read_text().lower().startswith(start)
    done = compare(native, compiled, "-o", "-")
    assert done.stdout.startswith("compiled against native: NOT CONCLUSIVE\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epochs", "1,2,3"), "--epochs: expected 1 number or 2, one for each job, found 3"),
        (("--gpus", "two"), "expected whole numbers of at least 1, as 300 or 300,210, found 'two'"),
        (("nowhere",), "expected the name of a job or its folder, found 'nowhere'"),
    ],
)
def test_what_cannot_be_meant_ends_with_78(arguments: tuple[str, ...], message: str) -> None:
    done = compare(str(RECORDED / "native"), str(RECORDED / "compiled"), *arguments)

    assert (done.returncode, message in done.stderr) == (78, True), done.stderr


def test_jobs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [job(tmp_path / name / "it") for name in "ab"]

    assert choose_labels([jobs.read(folder) for folder in folders]) == ("a/it", "b/it")


def test_names_too_long_for_a_tables_head_become_short_with_a_legend(tmp_path: Path) -> None:
    folders = [job(tmp_path / f"train-2026-11-23-02-18-11-{number}") for number in (899, 900, 901)]

    report = page(*folders)

    assert [column.name for column in tables(report)["overview"].columns[1:4]] == [
        "train...-23-02-18-11-899",
        "train...-23-02-18-11-900",
        "train...-23-02-18-11-901",
    ]
    assert f"train...-23-02-18-11-900 train-2026-11-23-02-18-11-900, {folders[1]}" in words(report)


def test_without_numpy_the_jobs_are_compared_by_what_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [job(tmp_path / name, rows=[{"name": "loss", "value": 1.0, "step": 1}]) for name in ("a", "b")]
    for folder in folders:
        (folder / "hosts/algo-1/opt/ml/output/monitor/steps").mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "numpy", None)

    report = page(*folders)

    assert "The steps of a, b have no times" in words(report)


def test_the_top_kernels_stand_side_by_side_and_a_missing_trace_is_said(tmp_path: Path) -> None:
    for name, longest in (("native", "aten::mm"), ("faster", "aten::add_"), ("untraced", "")):
        framework = job(tmp_path / name) / "hosts/algo-1/opt/ml/output/profiler/framework"
        if not longest:
            continue
        (framework / "steps-1-2").mkdir(parents=True)
        events = [
            {"ph": "X", "cat": "cpu_op", "name": kernel, "pid": 1, "tid": 1, "ts": index, "dur": duration}
            for index, (kernel, duration) in enumerate([(longest, 75.0), ("aten::sum", 25.0)], 1)
        ]
        events[1]["ts"] = 100.0
        if name == "faster":
            events += [
                {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 2, "ts": begin, "dur": 2000.0}
                for begin, name in ((1, "ProfilerStep#1"), (1, "gloo:broadcast"), (3000, "gloo:broadcast"))
            ]
        document = json.dumps({"traceEvents": events}).encode()
        (framework / "steps-1-2/algo-1_rank-0.pt.trace.json.gz").write_bytes(gzip.compress(document))

    report = page(tmp_path / "native", tmp_path / "faster", tmp_path / "untraced")

    rows = tables(report)["top-kernels"].rows
    assert rows[0] == (1, "aten::mm", 75.0, "aten::add_", 75.0, "", None)
    assert rows[1][1:3] == ("aten::sum", 25.0)
    assert tables(report)["collectives"].rows == (("gloo:broadcast", 0, None, 2.0, 4.0),)
    assert "untraced: no trace was taken" in words(report)
