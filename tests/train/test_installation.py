"""The toolkit's own files are removed or replaced while `train` runs, as pip does that installs another version."""

import os
import shutil
import sys
from pathlib import Path

import pytest

import toolkit
from tests.train.base import Base
from tests.train.live import live

RUNS = (sys.executable, "-c", "from toolkit.cli.start import train; train()")
IGNORED = ("__pycache__", "html", "compiler", "dataparallel", "modelparallel", "xla")  # `train` never imports these.
# The script removes the toolkit once `train` has imported what the end needs.
REMOVES = """
import os, shutil, time
while not os.path.exists({seen!r}):
    time.sleep(0.01)
shutil.rmtree({installed!r})
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the toolkit that this test's `train` runs."""
    folder = tmp_path / "installed/toolkit"
    shutil.copytree(Path(toolkit.__path__[0]), folder, ignore=shutil.ignore_patterns(*IGNORED))
    return folder


@pytest.mark.parametrize(
    ("end", "status"),
    [("raise RuntimeError('no such shard')", 1), ("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("", 0)],
)
def test_a_job_ends_as_its_script_did_though_that_removed_the_toolkit(
    base: Base, installed: Path, tmp_path: Path, end: str, status: int
) -> None:
    marker = tmp_path / "seen"
    with (installed / "train/verdict/judge.py").open("a") as judge:
        judge.write(f"\nopen({str(marker)!r}, 'w').close()\n")
    base.program(REMOVES.format(seen=str(marker), installed=str(installed)) + end)

    done = base.train(command=RUNS, PYTHONPATH=str(installed.parent))

    assert not installed.exists()
    assert (done.status, done.outcome["exit_code"], done.succeeded) == (status, status, status == 0)
    assert (done.failure is None) == (status == 0)
    assert ("RuntimeError: no such shard" in (done.failure or "")) == (status == 1)


def test_a_job_whose_end_cannot_be_judged_says_why_and_how_its_script_ended(base: Base, installed: Path) -> None:
    shutil.rmtree(installed / "train/verdict")
    base.program("raise SystemExit(3)")

    done = base.train(command=RUNS, PYTHONPATH=str(installed.parent))

    assert (done.status, done.outcome["exit_code"]) == (70, 70)
    assert done.failure is not None
    assert "expected the toolkit's own files, found none (No module named 'toolkit.train.verdict')" in done.failure
    assert "What is known: script ended with 3" in done.failure


def test_a_missing_file_is_reported_while_the_script_runs(base: Base, installed: Path, tmp_path: Path) -> None:
    shutil.rmtree(installed / "train/verdict")
    go = tmp_path / "go"
    os.mkfifo(go)
    base.program(f"open({str(go)!r}).read()")

    with live(base, command=RUNS, PYTHONPATH=str(installed.parent)) as run:
        run.until(b"removed or replaced while `train` ran")
        go.write_text("")
        done = run.end()

    assert done.status == 70
