"""docs/lab/faults.csv and the summary of it in docs/lab/faults.md."""

from pathlib import Path

import msgspec
import pytest

from tests.faults import rows
from tests.faults.table import FAULTS


def test_the_data_has_a_row_for_every_fault_and_launcher() -> None:
    tried = {(row.fault, row.launcher) for row in rows.read() if row.hosts == 2}

    missing = {(fault.name, launcher) for fault in FAULTS for launcher in fault.launchers} - tried
    assert missing == set(), "run scripts/faults --hosts 2 --launchers NAME --write"


def test_the_page_shows_the_summary_of_the_data() -> None:
    assert rows.summary(rows.read()) in rows.PAGE.read_text()


def test_a_newer_row_replaces_the_older_one_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faults.csv").write_bytes(rows.DATA.read_bytes())
    (tmp_path / "faults.md").write_bytes(rows.PAGE.read_bytes())
    monkeypatch.setattr(rows, "DATA", tmp_path / "faults.csv")
    monkeypatch.setattr(rows, "PAGE", tmp_path / "faults.md")
    old = rows.read(tmp_path / "faults.csv")
    newer = msgspec.structs.replace(old[0], rounds=7, right=6, named_after_s=0.5, named_after_worst_s=1.0)

    rows.write([newer], "this machine; today")

    assert rows.read(tmp_path / "faults.csv") == [newer, *old[1:]]
    assert "Newest rows: this machine; today.\n" in (tmp_path / "faults.md").read_text()
    launcher = newer.launcher + (", busy" if newer.busy else "")
    assert rows.format_row(newer).startswith(f"| {newer.fault} | {launcher} | 2 | 6 of 7 |")
    assert "| 0.50 s (worst 1.00) |" in rows.format_row(newer)
