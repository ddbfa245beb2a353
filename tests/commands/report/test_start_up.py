"""The table of the start, of a job's files."""

import shutil
from pathlib import Path

import pytest

from tests.commands.jobs.folders import START_S
from tests.commands.report.test_compare import page as compare
from tests.commands.report.test_sections import block, simulate_page
from toolkit.commands import jobs
from toolkit.commands.report.sections.page import build_page
from toolkit.series import start_up
from toolkit.series.preparation import Preparation
from toolkit.series.start_up import HostStart, ImportedPackage, RankStart


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job whose first steps begin 20 s after its start, of which ranks know the last 8 s."""
    folder = tmp_path / "job"
    simulate_page(folder, 60)
    for rank, host in enumerate(("algo-1", "algo-2")):
        packages = (
            ImportedPackage(name="torch", took_s=4.0, filesystem="nfs4"),
            ImportedPackage(name="numpy", took_s=1.0, filesystem="ext4"),
        )
        start = HostStart(
            train_s=START_S + 2.0,
            preparations=(Preparation(name="source", took_s=1.0), Preparation(name="requirements", took_s=6.0)),
            ranks={rank: RankStart(before_s=8.0, imports_s=5.0, group_s=1.0, packages=packages)},
        )
        start_up.write(folder / "hosts" / host / "opt/ml/output/monitor", start)
    return folder


def test_the_parts_of_the_start_add_up(job: Path) -> None:
    page = build_page(jobs.read(job), now_s=START_S + 1000)

    table = block(page, "start-up")
    parts = {row[0]: row[1] for row in table.rows}
    assert [column.name for column in table.columns] == ["part", "algo-1, rank 0", "algo-2, rank 1"]
    assert parts == {
        "platform and image": pytest.approx(2.0),
        "source": 1.0,
        "requirements": 6.0,
        "train, launcher, interpreter": pytest.approx(3.0),
        "imports": 5.0,
        "process group": 1.0,
        "the script's own work": 2.0,
        "first batch": pytest.approx(0.1),
        "rest of the first step": pytest.approx(0.9),
    }
    assert table.total[1] == pytest.approx(21.0)
    assert sum(parts.values()) == pytest.approx(21.0)
    assert block(page, "imports").rows[0] == ("torch", 4.0, "nfs4")
    assert "torch: from a network file system" in block(page, "imports").note


def test_the_ledger_is_the_same_with_and_without_the_table(job: Path) -> None:
    with_table = block(build_page(jobs.read(job), now_s=START_S + 1000), "ledger")
    for path in job.rglob(start_up.NAME):
        path.unlink()

    without = build_page(jobs.read(job), now_s=START_S + 1000)

    assert block(without, "ledger") == with_table
    with pytest.raises(StopIteration):
        block(without, "start-up")


@pytest.mark.parametrize("content", [b"", b"{", b'{"ranks": 3}', b"\xff"])
def test_a_damaged_file_costs_the_table_alone(job: Path, content: bytes) -> None:
    for path in job.rglob(start_up.NAME):
        path.write_bytes(content)

    page = build_page(jobs.read(job), now_s=START_S + 1000)

    assert block(page, "ledger").total
    with pytest.raises(StopIteration):
        block(page, "start-up")


def test_two_jobs_are_compared_by_the_parts_of_their_starts(job: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(job, other)
    for path in other.rglob(start_up.NAME):
        path.write_text(path.read_text().replace('"took_s":6.0', '"took_s":3.0'))

    page = compare(job, other)

    rows = {row[0]: row[1:] for row in block(page, "overview").rows}
    assert rows["until the first step, s"] == (21.0, 21.0, "+0.0 %")
    assert rows["  requirements, s"] == (6.0, 3.0, "-50.0 %")
