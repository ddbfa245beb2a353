"""Findings are lines that come back whole."""

from pathlib import Path

from toolkit.series import findings
from toolkit.series.finding import Finding, Number

LATE = Finding(
    rule="CPUBottleneck",
    text="3 of 4 cores were busy while the GPU waited",
    start_s=1.0,
    end_s=2.5,
    subject="cpu3",
    host="algo-1",
    rank=2,
    numbers=(Number(name="share", value=62.5, unit="%", formula="busy samples / samples", limit=50.0),),
    live=True,
)


def test_findings_come_back_in_order(tmp_path: Path) -> None:
    second = Finding(rule="StepOutlier", text="x", start_s=0.0, end_s=1.0, action="stop")
    for finding in (LATE, second):
        findings.append(tmp_path / findings.NAME, finding)

    assert findings.read(tmp_path / findings.NAME) == (LATE, second)


def test_a_cut_line_is_skipped_and_not_continued(tmp_path: Path) -> None:
    path = tmp_path / findings.NAME
    findings.append(path, LATE)
    path.write_bytes(path.read_bytes() + b'{"rule":"Low')

    findings.append(path, LATE)

    assert findings.read(path) == (LATE, LATE)


def test_no_file_has_no_findings(tmp_path: Path) -> None:
    assert findings.read(tmp_path / "none") == ()
