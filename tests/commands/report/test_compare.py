"""`toolkit compare`, on two recorded jobs (entrypoints/vit_jit, TensorFlow 2.21 on two cores) and on made-up ones."""

import gzip
import json
import random
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from toolkit.commands import jobs
from toolkit.commands.report.compare import formulas
from toolkit.commands.report.compare.epochs import find_in_lines, find_in_metrics
from toolkit.commands.report.compare.formulas import BreakEven
from toolkit.commands.report.compare.measured import choose_labels, measure_job
from toolkit.commands.report.compare.page import build_page
from toolkit.commands.report.model import Chart, Page, Table, Words
from toolkit.metrics.sample import Sample
from toolkit.series import findings
from toolkit.series.finding import Finding

RECORDED = Path(__file__).parents[2] / "data/compare"
BEGAN = datetime(2026, 11, 23, tzinfo=timezone.utc)


def job(folder: Path, *, hours: float = 0.01, hosts: int = 1, rows: list[dict[str, Any]] | None = None) -> Path:
    """Make the folder of a job that took so many hours and captured *rows*."""
    stamps = {"start_time": BEGAN.isoformat(), "end_time": (BEGAN + timedelta(hours=hours)).isoformat()}
    seconds = {"training_seconds": hours * 3600, "billable_seconds": hours * 3600 * hosts}
    told = {"name": folder.name, "status": "Completed", "exit_code": 0, **stamps, **seconds}
    output = folder / "hosts/algo-1/opt/ml/output"
    output.mkdir(parents=True)
    names = {f"algo-{number}": {"exit_code": 0} for number in range(1, hosts + 1)}
    (folder / "job.json").write_text(json.dumps({**told, "hosts": names}))
    lines = [json.dumps({"time_s": BEGAN.timestamp(), "host": "algo-1", "rank": 0, **row}) for row in rows or ()]
    (output / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def page(*folders: Path, **more: Any) -> Page:
    read = [jobs.read(folder) for folder in folders]
    named = zip(read, choose_labels(read), strict=True)
    return build_page(
        [measure_job(each, label, now_s=0.0, epochs=None, gpus=None) for each, label in named], now_s=0.0, **more
    )


def tables(made: Page) -> dict[str, Table]:
    return {block.id: block for section in made.sections for block in section.blocks if isinstance(block, Table)}


def words(made: Page) -> str:
    return "\n".join(
        f"{block.name} {block.text}"
        for section in made.sections
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
    before, after = epoch["native"], epoch["compiled"]
    mean = {name: sum(speed[name]) / len(speed[name]) for name in both}

    rows = {
        row[0]: row[1:] for row in tables(page(RECORDED / "native", RECORDED / "compiled"))["savings-compiled"].rows
    }

    actual = (billed["native"] - billed["compiled"]) / billed["native"] * 100
    assert rows["actual savings"][0] == f"{actual:.1f} %"
    assert rows["potential savings"][0] == f"{(before[-1] - after[-1]) / before[-1] * 100:.1f} %"
    assert rows["overhead of the first epoch"][0] == f"{after[0] - after[-1]:.4f}".rstrip("0") + " s"
    assert rows["throughput speed-up"][0] == f"{(mean['compiled'] / mean['native'] - 1) * 100:.1f} %"
    # 12 epochs were too few: go on with the latencies of the last until the sums cross.
    lead, at = sum(before) - sum(after), 12
    while lead <= 0:
        lead, at = lead + before[-1] - after[-1], at + 1
    assert rows["break-even epoch"][0] == f"{at} (extrapolated: both jobs ended before)"


both = ("native", "compiled")


def test_the_calculation_beside_each_percentage_gives_it() -> None:
    rows = tables(page(RECORDED / "native", RECORDED / "compiled"))["savings-compiled"].rows
    checked = 0
    for _, value, how in rows:
        calculation = re.search(r"= (\([-\d. +/()x]+\) [-/\d.x ()]+)$", str(how))
        if calculation and str(value).endswith("%"):
            assert value == f"{eval(calculation[1].replace('x', '*')):.1f} %"
            checked += 1

    assert checked == 3


def test_the_tables_of_the_recorded_jobs_are_those_of_their_files() -> None:
    made = tables(page(RECORDED / "native", RECORDED / "compiled", price=3600.0))

    overview = {row[0]: row[1:3] for row in made["overview"].rows}
    for quantity, metric, at in (("first epoch, s", "epoch_time", 0), ("last loss", "loss", -1)):
        assert overview[quantity] == tuple(float(f"{values(name, metric)[at]:.6g}") for name in both)
    assert overview["cost at 3600 for a host and hour"] == overview["billable, s"]
    assert [row[:2] for row in made["epoch-table"].rows] == [("native", 12), ("compiled", 12)]


def test_charts_hold_the_files_own_values() -> None:
    made = page(RECORDED / "native", RECORDED / "compiled")
    charts = {block.id: block for section in made.sections for block in section.blocks if isinstance(block, Chart)}

    assert {"throughput", "loss", "training-time", "billable"} <= charts.keys()
    assert list(charts["epoch-latency"].lines[1].mean) == values("compiled", "epoch_time")
    assert list(charts["loss"].lines[0].mean) == values("native", "loss")
    assert charts["epoch-sum"].lines[0].mean[-1] == pytest.approx(sum(values("native", "epoch_time")))


def test_kts_table_gives_28_not_29_and_1_75_for_each_gpu(tmp_path: Path) -> None:
    """300 epochs in 960 h on 2 GPUs, 210 in 24 h on 32: 3.20 and 0.114 h an epoch. 29 came of 3.20 / 0.11."""
    here = job(tmp_path / "on-premises", hours=960), job(tmp_path / "cloud", hours=24)

    done = compare(*map(str, here), "--epochs", "300,210", "--gpus", "2,32", "-o", "-", "--format", "json")

    sections = json.loads(done.stdout)["sections"]
    table = next(each for each in sections if each["id"] == "normalised")["blocks"][0]
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
    ],
)
def test_the_break_even_is_the_first_epoch_after_which_it_stays_ahead(
    native: list[float], optimised: list[float], expected: BreakEven
) -> None:
    assert formulas.find_break_even(native, optimised) == expected


def test_an_interval_tells_a_change_from_noise_and_is_the_same_each_time() -> None:
    chance = random.Random(1)
    one = [chance.gauss(1.0, 0.1) for _ in range(200)]
    same = [chance.gauss(1.0, 0.1) for _ in range(200)]
    fifth = [value * 0.8 for value in same]

    noise, change = formulas.bootstrap_savings(one, same), formulas.bootstrap_savings(one, fifth)

    assert noise is not None
    assert noise.within_noise
    assert change is not None
    assert not change.within_noise
    assert change.low < 20 < change.high
    assert formulas.bootstrap_savings(one, fifth) == change
    assert formulas.bootstrap_savings([1, 1, 1], fifth) is None


def marks(*times: float, last: float) -> dict[str, list[Sample]]:
    epochs = [Sample(name="epoch", value=n, time_s=at, host="h", rank=0) for n, at in enumerate(times, 1)]
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
    found = find_in_metrics(metrics, 0.0)

    assert found is not None
    assert found.latencies_s == pytest.approx(latencies)


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
    found = find_in_lines(["Epoch 1/3\n", f"{line}\n", "24/30 - 5s - 1ms/step - of another kind\n"])

    assert found is not None
    assert (found.latencies_s, found.resolution_s) == ((latency,), resolution_s)


def test_a_job_of_hugging_faces_trainer_is_compared_by_its_own_summary(tmp_path: Path) -> None:
    summary = {"train_runtime": 100.0, "train_samples_per_second": 300.0}
    for name, factor in (("native", 1), ("compiled", 2)):
        rows = [{"name": metric, "value": value * factor} for metric, value in summary.items()]
        job(tmp_path / name, rows=rows)

    made = tables(page(tmp_path / "native", tmp_path / "compiled"))

    assert ("throughput speed-up", "100.0 %") in [row[:2] for row in made["savings-compiled"].rows]
    assert ("seconds of the training alone, train_runtime", 100.0, 200.0, "+100.0 %") in made["overview"].rows


def test_steps_are_compared_with_the_same_steps_alone(tmp_path: Path) -> None:
    """The second job has more and slower steps behind; they would turn 20 % saved into a loss."""
    times = {"native": [1.0] * 20, "faster": [3.0] + [0.8] * 19 + [9.0] * 20}
    for name, seconds in times.items():
        steps = [{"name": "step_time", "value": value, "step": step} for step, value in enumerate(seconds, 1)]
        job(tmp_path / name, rows=steps)

    made = page(tmp_path / "native", tmp_path / "faster")
    rows = {row[0]: row[1] for row in tables(made)["savings-faster"].rows}

    assert ("steps per second, the same steps (2 to 20)", 1.0, 1.25, "+25.0 %") in tables(made)["overview"].rows
    assert "steps per second, over the same steps: 1 before, 1.25 after" in made.summary
    assert rows["savings per step"] == "20.0 %"
    assert rows["savings per step, 95 % interval"] == "20.0 to 20.0 %"
    # 2 s lost in the first step, 0.2 s won in each later one: after step 12 it is ahead.
    assert rows["break-even step"] == "12"


def test_losses_are_compared_at_the_same_steps(tmp_path: Path) -> None:
    chance = random.Random(3)
    for name, more in (("native", 0.0), ("same", 0.0), ("worse", 0.5)):
        rows = [
            {"name": "loss", "value": 5 / step + more + chance.gauss(0, 0.01), "step": step} for step in range(1, 41)
        ]
        job(tmp_path / name, rows=rows)

    made = page(tmp_path / "native", tmp_path / "same", tmp_path / "worse")

    same, worse = (each for each in words(made).splitlines() if "its loss is" in each)
    assert "over step 21 to 40" in same
    assert "within run-to-run noise" in same
    assert "above that of native" in worse
    assert "noise" not in worse


def test_findings_are_cleared_still_there_or_new(tmp_path: Path) -> None:
    found = {"native": ("CPUBottleneck", "BatchSize"), "fixed": ("BatchSize", "IOBottleneck")}
    for name, rules in found.items():
        monitor = job(tmp_path / name) / "hosts/algo-1/opt/ml/output/monitor"
        monitor.mkdir()
        (monitor / "monitor.json").write_text('{"machine": {"gpus": []}}')
        for rule in rules:
            findings.append(monitor / "findings.jsonl", Finding(rule=rule, text=f"{rule}!", start_s=0, end_s=1))

    made = page(tmp_path / "native", tmp_path / "fixed")
    rows = tables(made)["findings-table"].rows

    assert made.summary.endswith("Cleared: CPUBottleneck.")
    assert [row[1:3] for row in rows] == [
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

    made = page(native, other)

    assert "Cleared" not in made.summary
    assert [row[1:3] for row in tables(made)["findings-table"].rows] == [("BatchSize", "not known")]
    assert "other has no findings file" in words(made)


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    native = job(tmp_path / "native", rows=[{"name": "epoch", "value": 3.0}])
    other = job(tmp_path / "other", rows=[{"name": "epoch", "value": 5.0}])
    (other / "job.json").write_text((other / "job.json").read_text().replace("Completed", "Failed"))

    made = page(native, other)
    said = words(made)

    assert made.status == "compared"  # A job that failed saves nothing.
    assert made.summary == "other was billed as much as native; but other failed."
    for each in (
        "other failed: its times are not those of a whole job",
        "different numbers of epochs",
        "No loss was captured",
        "The epochs of native, other have no latencies",
        "The steps of native, other have no times",
    ):
        assert each in said


def test_the_command_writes_every_format(tmp_path: Path) -> None:
    native, compiled = str(RECORDED / "native"), str(RECORDED / "compiled")
    for name, start in (("page.html", "<!doctype html>"), ("page.md", "# compiled against native"), ("page.json", "{")):
        done = compare(native, compiled, "-o", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name).read_text().lower().startswith(start)
    done = compare(native, compiled, "-o", "-")
    assert done.stdout.startswith("compiled against native: NO CHEAPER\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--epochs", "1,2,3"), "--epochs: expected 1 number or 2, one for each job, found 3"),
        (("--gpus", "two"), "expected whole numbers of at least 1, as 300 or 300,210, found 'two'"),
        (("nowhere",), "expected the name of a job or its folder, found 'nowhere'"),
    ],
)
def test_what_cannot_be_meant_ends_with_78(arguments: tuple[str, ...], said: str) -> None:
    done = compare(str(RECORDED / "native"), str(RECORDED / "compiled"), *arguments)

    assert (done.returncode, said in done.stderr) == (78, True), done.stderr


def test_jobs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [job(tmp_path / each / "it") for each in "ab"]

    assert choose_labels([jobs.read(folder) for folder in folders]) == ("native", "optimised")


def test_names_too_long_for_a_tables_head_become_short_with_a_legend(tmp_path: Path) -> None:
    folders = [job(tmp_path / f"train-2026-11-23-02-18-11-{number}") for number in (899, 900, 901)]

    made = page(*folders)

    assert [column.name for column in tables(made)["overview"].columns[1:4]] == [
        "native",
        "optimised 1",
        "optimised 2",
    ]
    assert f"Optimised optimised 1 (train-2026-11-23-02-18-11-900, {folders[1]})" in words(made)


def test_without_numpy_the_jobs_are_compared_by_what_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [job(tmp_path / name, rows=[{"name": "loss", "value": 1.0, "step": 1}]) for name in ("a", "b")]
    for folder in folders:
        (folder / "hosts/algo-1/opt/ml/output/monitor/steps").mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "numpy", None)

    made = page(*folders)

    assert "The steps of a, b have no times" in words(made)


def test_the_top_kernels_stand_side_by_side_and_a_missing_trace_is_said(tmp_path: Path) -> None:
    for name, longest in (("native", "aten::mm"), ("faster", "aten::add_"), ("untraced", "")):
        framework = job(tmp_path / name) / "hosts/algo-1/opt/ml/output/profiler/framework"
        if not longest:
            continue
        (framework / "steps-1-2").mkdir(parents=True)
        events = [
            {"ph": "X", "cat": "cpu_op", "name": kernel, "pid": 1, "tid": 1, "ts": at, "dur": duration}
            for at, (kernel, duration) in enumerate([(longest, 75.0), ("aten::sum", 25.0)], 1)
        ]
        events[1]["ts"] = 100.0
        if name == "faster":
            events += [
                {"ph": "X", "cat": "user_annotation", "name": each, "pid": 1, "tid": 2, "ts": at, "dur": 2000.0}
                for at, each in ((1, "ProfilerStep#1"), (1, "gloo:broadcast"), (3000, "gloo:broadcast"))
            ]
        document = json.dumps({"traceEvents": events}).encode()
        (framework / "steps-1-2/algo-1_rank-0.pt.trace.json.gz").write_bytes(gzip.compress(document))

    made = page(tmp_path / "native", tmp_path / "faster", tmp_path / "untraced")

    rows = tables(made)["top-kernels"].rows
    assert rows[0] == (1, "aten::mm", 75.0, "aten::add_", 75.0, "", None)
    assert rows[1][1:3] == ("aten::sum", 25.0)
    assert tables(made)["collectives"].rows == (("gloo:broadcast", 0, None, 2.0, 4.0),)
    assert "untraced: no trace was taken" in words(made)
