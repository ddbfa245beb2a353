"""Each rule on real runs: it fires on a job with its fault, and is silent on the healthy twin.

The jobs run at the same time: they sleep more than they compute. GPU rules are tested on columns (test_gpu.py).
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun
from toolkit.diagnosis import configuration, files
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.job import diagnose
from toolkit.series import findings
from toolkit.series.finding import Finding

pytestmark = pytest.mark.torch

TWO_RANKS = ("--processes-per-host", "2", "--distribution", "torch_distributed")
TWO_HOSTS = ("--hosts", "2", "--distribution", "torch_distributed")
METRICS = (
    "--metric",
    r"step=step=(\d+)",
    "--metric",
    r"loss=\bloss=([-+0-9.e]+|nan|inf)",
    "--metric",
    r"val_loss=val_loss=([-+0-9.e]+|nan|inf)",
)
# The start of these jobs is a small part of 20 minutes, the default.
RULES = {
    "ProfilerReport": {
        "MaxInitializationTime_threshold": 0.001,
        "StalledTrainingRule_threshold": 6,
        "LossNotDecreasing_num_steps": 10,
        "Overfit_patience": 2,
        "Overtraining_patience_validation": 3,
    }
}
JOBS = {
    "healthy": ("", 90, ()),
    "starved": ("starved,rising,overfit,nan,stalled", 90, ()),
    "uneven": ("outliers,leak", 180, ()),
    "waiting": ("slow_rank,alternating", 90, TWO_RANKS),
    "healthy_pair": ("", 90, TWO_RANKS),
    "slow_host": ("slow_rank", 240, TWO_HOSTS),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Run all jobs; return their folders output."""
    started = {}
    for name, (faults, steps, words) in JOBS.items():
        environ = {"FAULTS": faults, "STEPS": str(steps), "TOOLKIT_MONITOR": "on"}
        env_words = [word for key, value in environ.items() for word in ("--env", f"{key}={value}")]
        folder = tmp_path_factory.mktemp(name)
        started[name] = ToolkitRun(folder, "diagnosed.py", *METRICS, *env_words, *words, TOOLKIT_MONITOR="on")
    for run in started.values():
        with run:
            assert run.end() == 0, run.console
    yield {name: run.folder / "hosts" / "algo-1" / "opt" / "ml" / "output" for name, run in started.items()}


def find_by_rule(output: Path, rules: object = None) -> dict[str, Finding]:
    """Return what is found until the last line of the script: how long its processes take to end is the machine's."""
    last_s = json.loads((output / "metrics.jsonl").read_bytes().splitlines()[-1])["time_s"]
    evidence = files.read(output / "monitor", output / "metrics.jsonl", end_s=last_s)
    configurations = configuration.read(rules, "rules").configurations
    # Other processes of this machine share the container's memory: test_a_leak_is_dated looks at the ranks' own.
    return {
        finding.rule: finding for finding in diagnose([evidence], configurations, {}) if finding.rule != "MemoryLimit"
    }


def live(output: Path) -> list[Finding]:
    return [finding for finding in findings.read(output / "monitor" / findings.NAME) if finding.rule != "MemoryLimit"]


def output_of(output: Path, host: str) -> Path:
    """Return the folder output of another host of a job."""
    return output.parents[3] / host / "opt" / "ml" / "output"


def report(output: Path, shape: str) -> str:
    job_dir = output.parents[4]
    argv = [sys.executable, "-m", "toolkit.cli.main", "report", str(job_dir), "--format", shape]
    argv += ["-o", str(job_dir / f"report.{shape}")]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    return (job_dir / f"report.{shape}").read_text()


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        (
            "starved",
            {
                "DataWait",
                "ExplodingTensor",
                "LossNotDecreasing",
                "Overfit",
                "Overtraining",
                "StalledTrainingRule",
                "StepPause",
            },
        ),
        ("uneven", {"StepPause"}),
        ("waiting", {"SlowRank", "StepAlternation"}),
        ("healthy", set()),
        ("healthy_pair", set()),
    ],
)
def test_the_faults_of_a_job_are_found_and_no_others(jobs: dict[str, Path], name: str, rules: set[str]) -> None:
    findings = find_by_rule(jobs[name], RULES)

    # The start takes longer than the threshold in every job; 20 minutes, the default, in none.
    assert findings.keys() - {"MaxInitializationTime"} == rules
    assert "MaxInitializationTime" in findings


@pytest.mark.parametrize(("name", "is_found"), [("uneven", True), ("starved", False)])
def test_a_leak_is_dated(jobs: dict[str, Path], name: str, is_found: bool) -> None:
    """The rank's memory stands for the container's, which other processes of this machine share."""
    real = files.read(jobs[name] / "monitor")
    columns = {
        "memory/container/used_bytes": real.column("rank/0/memory_bytes"),
        "memory/container/limit_bytes": [4.0 * 2**30] * len(real.times_s),
    }
    alone = Evidence(
        host=real.host,
        start_s=real.start_s,
        end_s=real.end_s,
        is_over=True,
        interval_s=real.interval_s,
        machine=real.machine,
        times_s=real.times_s,
        names=tuple(columns),
        load=columns.__getitem__,
        steps=real.steps,
    )

    rules = {"MemoryLimit": {"patience": 10}}
    findings = {
        finding.rule: finding for finding in diagnose([alone], configuration.read(rules, "").configurations, {})
    }

    assert ("MemoryLimit" in findings) is is_found
    if is_found:  # 4 MiB a step.
        seconds = real.steps[0].end_s[-1] - real.steps[0].end_s[0]
        slope = next(number.value for number in findings["MemoryLimit"].numbers if number.name == "slope")
        assert slope == pytest.approx((len(real.steps[0].end_s) - 1) * (4 << 20) / seconds, rel=0.2)


@pytest.mark.parametrize("name", ["healthy", "healthy_pair"])
def test_a_healthy_job_has_no_finding_neither_live_nor_after_the_fact(jobs: dict[str, Path], name: str) -> None:
    assert find_by_rule(jobs[name]) == {}
    assert live(jobs[name]) == []


def test_a_starved_job_is_told_while_it_runs(jobs: dict[str, Path]) -> None:
    findings = live(jobs["starved"])

    assert {finding.rule for finding in findings} == {"DataWait", "ExplodingTensor", "StepPause"}
    assert all(finding.live and finding.host == "algo-1" for finding in findings)


def test_the_slow_rank_and_a_healthy_one_are_named(jobs: dict[str, Path]) -> None:
    finding = find_by_rule(jobs["waiting"])["SlowRank"]

    assert finding.rank == 1
    assert "Most of it is forward" in finding.text


def test_the_slow_rank_and_a_healthy_one_trace_five_steps(jobs: dict[str, Path]) -> None:
    lists = (jobs["waiting"] / "profiler" / "framework").glob("*_rank-*.json")
    windows = {rank_trace["rank"]: rank_trace["windows"] for rank_trace in map(json.loads, map(Path.read_text, lists))}

    assert {rank: [finding["steps"] for finding in of_rank] for rank, of_rank in windows.items()} == {0: [5], 1: [5]}


@pytest.mark.parametrize("shape", ["html", "text", "markdown", "json"])
def test_the_report_shows_by_operator_what_the_slow_rank_does_more(jobs: dict[str, Path], shape: str) -> None:
    page = report(jobs["waiting"], shape)

    _, _, table = page.partition("What rank 1 does more than rank 0, a step")
    assert "Pause" in table[:4000]


def test_a_slow_rank_that_is_alone_on_its_host_is_found_while_the_job_runs(jobs: dict[str, Path]) -> None:
    findings = live(jobs["slow_host"])

    assert [(finding.rule, finding.host, finding.rank, finding.live) for finding in findings] == [
        ("SlowRank", "algo-2", 1, True)
    ]
    assert not live(output_of(jobs["slow_host"], "algo-2"))


def test_the_slow_rank_and_a_healthy_one_of_another_host_trace_five_steps_at_the_same_time(
    jobs: dict[str, Path],
) -> None:
    outputs = (jobs["slow_host"], output_of(jobs["slow_host"], "algo-2"))
    lists = [path for output in outputs for path in (output / "profiler" / "framework").glob("*_rank-*.json")]
    by_rank = {listing["rank"]: listing for listing in map(json.loads, map(Path.read_text, lists))}
    windows = {
        rank: [(window["steps"], window["request"]) for window in listing["windows"]]
        for rank, listing in by_rank.items()
    }

    assert windows == {0: [(5, -1)], 1: [(5, -1)]}
    first, second = (by_rank[rank]["windows"][0]["first_step"] for rank in (0, 1))
    assert abs(first - second) <= 5


@pytest.mark.parametrize("shape", ["html", "text", "markdown", "json"])
def test_the_report_shows_what_the_slow_rank_does_more_than_one_of_another_host(
    jobs: dict[str, Path], shape: str
) -> None:
    page = report(jobs["slow_host"], shape)

    _, _, table = page.partition("What rank 1 does more than rank 0, a step")
    assert "Pause" in table[:4000]
    assert page.count("SlowRank (rank") == page.count("SlowRank (rank, rank 1, host algo-2)")


def test_the_numbers_of_a_finding_are_those_that_were_injected(jobs: dict[str, Path]) -> None:
    alternation = find_by_rule(jobs["waiting"])["StepAlternation"]
    times = [number.value for number in alternation.numbers if number.name.startswith("median")]

    assert max(times) - min(times) == pytest.approx(0.14, rel=0.2)
    assert json.loads((jobs["waiting"] / "monitor" / "monitor.json").read_text())["host"] == "algo-1"
