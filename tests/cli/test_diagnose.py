import json
from pathlib import Path

import pytest

from toolkit.cli.main import main
from toolkit.series import sample_writer, step_records
from toolkit.series.column import SampleColumn

START_S = 1_760_000_000.0


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return the output folder of a host whose steps wait for data."""
    monitor = tmp_path / "output" / "monitor"
    writer = sample_writer.SampleWriter(
        monitor / "samples", [SampleColumn(name="cpu/all/used_percent", unit="percent")]
    )
    for index in range(120):
        writer.add(START_S + index / 2, [50.0])
    writer.close()
    step_records.StepWriter(monitor / "steps").add(
        [step_records.StepRecord(rank=0, step=n, end_s=START_S + 5 + n, step_s=1.0, data_s=0.8) for n in range(50)]
    )
    facts = {"host": "algo-1", "start_s": START_S, "interval_s": 0.5, "machine": {"cores": 4}}
    (monitor / "monitor.json").write_text(json.dumps(facts))
    return tmp_path / "output"


def toolkit(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["rules", "diagnose", *words])
    return int(caught.value.code or 0)


def test_findings_are_shown_with_numbers_change_and_refutation(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert toolkit(str(job)) == 0

    message = capsys.readouterr().out
    assert "DataWait: The steps of rank 0 wait for the data loader for 80 % of their time" in message
    assert "waiting for data = 80 %, limit 25 % (data_s / step_s" in message
    assert "  Try: Give the DataLoader workers" in message
    assert "  Refuted by: A run on one batch" in message


def test_other_rules_and_parameters_can_be_tried(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert toolkit(str(job), "--rules", '{"DataWait": {"threshold": 90}}') == 0

    assert "no finding" in capsys.readouterr().out


def test_an_unknown_rule_ends_with_78_and_names_the_nearest(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert toolkit(str(job), "--rules", '{"DataWeight": {}}') == 78

    assert "--rules: $.DataWeight: expected a rule, found 'DataWeight'. Did you mean DataWait?" in (
        capfd.readouterr().err
    )


def test_the_debuggers_files_are_written(job: Path, tmp_path: Path) -> None:
    assert toolkit(str(job), "--rule-output", str(tmp_path / "rule-output")) == 0

    output = next((tmp_path / "rule-output").glob("ProfilerReport-*/profiler-output"))
    assert json.loads((output / "profiler-reports" / "OverallFrameworkMetrics.json").read_text())["Details"]["algo-1"][
        "dataloader"
    ]["share"] == pytest.approx(80)
    assert (output / "profiler-report.html").read_text().startswith("<!")
