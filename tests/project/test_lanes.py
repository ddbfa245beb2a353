"""Several tests at once: tests/lanes.py, also under a real `pytest -n 2`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lanes import ordered, unit

ROOT = Path(__file__).parents[2]
CONFTEST = "from tests.conftest import pytest_configure, pytest_xdist_make_scheduler\n"
# Each notes its worker.
NOTES = """
import os, pytest
from pathlib import Path

@pytest.mark.parametrize("number", range(6))
def test_that_notes(number):
    with Path(__file__).with_suffix(".seen").open("a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


@pytest.mark.parametrize(
    ("nodeid", "dealt"),
    [
        ("tests/train/test_stop.py::test_a", "tests/train/test_stop.py"),
        ("tests/train/test_stop.py::test_a[x::y]", "tests/train/test_stop.py"),
        ("tests/docker/test_run.py::test_a", "tests/docker/"),
        ("tests/docker/test_end.py::test_b[1]", "tests/docker/"),
        ("tests/rank/modelparallel/torch/test_api.py::test_c", "tests/rank/modelparallel/torch/"),
        ("tests/rank/modelparallel/tf/test_jobs.py::test_c", "tests/rank/modelparallel/tf/test_jobs.py"),
        ("tests/faults/test_matrix.py::test_two[late]", "tests/faults/test_matrix.py::test_two[late]"),
    ],
)
def test_a_test_is_dealt_out_with_its_file_or_folder_or_by_itself(nodeid: str, dealt: str) -> None:
    assert unit(nodeid) == dealt


def test_what_waits_and_what_computes_is_dealt_out_in_turn_and_before_all_else() -> None:
    nodeids = [
        "tests/cli/test_main.py::a",
        "tests/rank/compiler/test_torch.py::b",
        "tests/rank/compiler/test_torch.py::c",
        "tests/docker/test_end.py::d",
        "tests/faults/test_matrix.py::e",
        "tests/docker/test_run.py::f",
        "tests/faults/test_matrix.py::g",
        "tests/train/test_stop.py::h",
    ]

    assert [nodeid[-1] for nodeid in ordered(nodeids)] == ["d", "f", "b", "c", "h", "e", "g", "a"]


def test_a_files_tests_are_one_workers_and_a_failure_of_any_worker_is_the_exit_status(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(NOTES)
    (tmp_path / "test_d.py").write_text("def test_that_fails(): assert 1 == 2\n")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    words = (sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", tmp_path)
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)

    workers_seen = [(tmp_path / f"test_{name}.seen").read_text().split() for name in ("a", "b", "c")]
    assert [(len(workers), len(set(workers))) for workers in workers_seen] == [(6, 1)] * 3
    assert len({workers[0] for workers in workers_seen}) == 2
    assert done.returncode == 1
    assert "1 failed, 18 passed in " in done.stdout.splitlines()[-1]
