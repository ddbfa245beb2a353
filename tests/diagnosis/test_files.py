import json
from itertools import pairwise
from pathlib import Path

from tests.diagnosis.made import START_S, find_by_rule, window
from toolkit.diagnosis import files
from toolkit.series import findings, sample_writer, step_records
from toolkit.series.column import SampleColumn
from toolkit.series.step_records import StepRecord

COLUMNS = ("cpu/core0/used_percent", "cpu/core1/used_percent", "cpu/all/used_percent", "gpu/0/used_percent")


def test_the_files_of_a_job_are_evidence(tmp_path: Path) -> None:
    writer = sample_writer.SampleWriter(
        tmp_path / "samples", [SampleColumn(name=name, unit="percent") for name in COLUMNS]
    )
    for index in range(240):
        writer.add(START_S + index / 2, (99.0, 5.0, 52.0, 8.0))
    writer.close()
    step_records.StepWriter(tmp_path / "steps").add(
        [StepRecord(rank=0, step=number, end_s=START_S + 10 + number, step_s=1.0, data_s=0.8) for number in range(100)]
    )
    (tmp_path / "monitor.json").write_text(
        json.dumps({"host": "algo-2", "start_s": START_S, "interval_s": 0.5, "machine": {"cores": 2, "gpus": ["H100"]}})
    )
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"name":"loss","value":"NaN","time_s":1760000050.0,"host":"algo-2","rank":0,"step":7}\n')

    evidence = files.read(tmp_path, metrics)
    findings = find_by_rule(evidence)

    assert (evidence.host, evidence.machine.cores, evidence.interval_s) == ("algo-2", 2, 0.5)
    assert findings.keys() == {"BusyCore", "DataWait", "ExplodingTensor", "LowGPUUtilization"}
    assert "core0 99 %" in findings["BusyCore"].text
    assert "loss is NaN at step 7 on rank 0" in findings["ExplodingTensor"].text
    assert {finding.host for finding in findings.values()} == {"algo-2"}


def test_a_finding_about_a_loss_that_was_never_finite_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"name":"loss","value":"NaN","time_s":1760000050.0,"host":"a","rank":0}\n')

    finding = find_by_rule(files.read(tmp_path, tmp_path / "metrics.jsonl"))["ExplodingTensor"]
    findings.append(tmp_path / findings.NAME, finding)

    assert findings.read(tmp_path / findings.NAME) == (finding,)


def test_rules_and_metrics_of_one_attempt_know_nothing_of_the_others(tmp_path: Path) -> None:
    records = [
        StepRecord(rank=0, attempt=1 + number // 50, step=number % 50, end_s=START_S + number) for number in range(100)
    ]
    step_records.StepWriter(tmp_path / "steps").add(records)
    lines = [
        f'{{"name":"loss","value":{number},"time_s":{START_S + number},"host":"a","rank":0}}' for number in range(100)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    failed_s = START_S + 49.5

    first = files.read(tmp_path, tmp_path / "metrics.jsonl", end_s=failed_s, attempt=0)
    second = files.read(tmp_path, tmp_path / "metrics.jsonl", start_s=failed_s, attempt=1)

    assert [(part.steps[0].end_s[0], part.steps[0].end_s[-1]) for part in (first, second)] == [
        (START_S, START_S + 49),
        (START_S + 50, START_S + 99),
    ]
    assert [list(part.metrics["loss"][0].value) for part in (first, second)] == [
        list(map(float, range(50))),
        list(map(float, range(50, 100))),
    ]


def test_the_newest_sample_is_kept_also_where_not_all_are(tmp_path: Path) -> None:
    columns = {"cpu/all/used_percent": [float(index) for index in range(1001)]}

    evidence = window(columns, interval_s=0.1).evidence(START_S + 100)

    assert evidence.column("cpu/all/used_percent")[-1] == 1000
    assert 100 <= len(evidence.times_s) <= 110
    assert all(after > earlier for earlier, after in pairwise(evidence.times_s))


def test_a_job_without_a_monitor_has_evidence_of_nothing(tmp_path: Path) -> None:
    assert find_by_rule(files.read(tmp_path / "monitor", tmp_path / "metrics.jsonl")) == {}
