import json
from itertools import pairwise
from pathlib import Path

from tests.diagnosis.made import START_S, found, window
from toolkit.diagnosis import files
from toolkit.series import samples, steps
from toolkit.series.steps import Step

COLUMNS = ("cpu/core0/used_percent", "cpu/core1/used_percent", "cpu/all/used_percent", "gpu/0/used_percent")


def test_the_files_of_a_job_are_evidence(tmp_path: Path) -> None:
    writer = samples.Writer(tmp_path / "samples", [samples.Column(name=name, unit="percent") for name in COLUMNS])
    for index in range(240):
        writer.add(START_S + index / 2, (99.0, 5.0, 52.0, 8.0))
    writer.close()
    steps.Writer(tmp_path / "steps").add(
        [Step(rank=0, step=number, end_s=START_S + 10 + number, step_s=1.0, data_s=0.8) for number in range(100)]
    )
    (tmp_path / "monitor.json").write_text(
        json.dumps({"host": "algo-2", "start_s": START_S, "interval_s": 0.5, "machine": {"cores": 2, "gpus": ["H100"]}})
    )
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"name":"loss","value":"NaN","time_s":1760000050.0,"host":"algo-2","rank":0,"step":7}\n')

    evidence = files.read(tmp_path, metrics)
    seen = found(evidence)

    assert (evidence.host, evidence.machine.cores, evidence.interval_s) == ("algo-2", 2, 0.5)
    assert seen.keys() == {"BusyCore", "DataWait", "ExplodingTensor", "LowGPUUtilization"}
    assert "core0 99 %" in seen["BusyCore"].text
    assert "loss is NaN at step 7 on rank 0" in seen["ExplodingTensor"].text
    assert {finding.host for finding in seen.values()} == {"algo-2"}


def test_the_newest_sample_is_kept_also_where_not_all_are(tmp_path: Path) -> None:
    columns = {"cpu/all/used_percent": [float(index) for index in range(1001)]}

    seen = window(columns, interval_s=0.1).evidence(START_S + 100)

    assert seen.column("cpu/all/used_percent")[-1] == 1000
    assert 100 <= len(seen.times_s) <= 110
    assert all(after > before for before, after in pairwise(seen.times_s))


def test_a_job_without_a_monitor_has_evidence_of_nothing(tmp_path: Path) -> None:
    assert found(files.read(tmp_path / "monitor", tmp_path / "metrics.jsonl")) == {}
