"""Two tests at once: tests/lanes.py under a real `pytest -n 2`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lanes import place, unit

ROOT = Path(__file__).parents[2]
INI = "[pytest]\nmarkers = alone\n"
CONFTEST = "from tests.conftest import pytest_configure, pytest_xdist_make_scheduler\n"
# Each test notes who ran it, and from when to when.
NOTES = """
import json, os, time
from pathlib import Path

import pytest

def note(name):
    began_s = time.monotonic()
    time.sleep(0.02)
    noted = {"name": name, "worker": os.environ["PYTEST_XDIST_WORKER"], "from": began_s, "to": time.monotonic()}
    Path(__file__).with_name(f"{name}.json").write_text(json.dumps(noted))
"""
MANY = """
@pytest.mark.parametrize("number", range(12))
def test_beside_others(number):
    note(f"NAME-{number}")
"""
ALONE = """
@pytest.mark.alone
@pytest.mark.parametrize("number", range(4))
def test_alone(number):
    note(f"alone-{number}")
"""


@pytest.mark.parametrize(
    ("nodeid", "dealt"),
    [
        ("tests/walk/test_stop.py::test_a", "tests/walk/test_stop.py"),
        ("tests/walk/test_stop.py::test_a[x::y]", "tests/walk/test_stop.py"),
        ("tests/docker/test_run.py::test_a", "tests/docker/"),
        ("tests/docker/test_end.py::test_b[1]", "tests/docker/"),
        ("tests/faults/test_matrix.py::test_two[late]", "tests/faults/test_matrix.py::test_two[late]"),
    ],
)
def test_a_test_is_dealt_out_with_its_file_or_folder_or_by_itself(nodeid: str, dealt: str) -> None:
    assert unit(nodeid) == dealt


def test_what_takes_long_comes_first() -> None:
    nodeids = ["tests/cli/test_main.py::a", "tests/walk/test_stop.py::b", "tests/docker/test_run.py::c"]

    assert sorted(nodeids, key=place) == [*reversed(nodeids)]


def test_no_test_runs_beside_one_that_is_marked_alone_and_a_failure_is_the_exit_status(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(NOTES + MANY.replace("NAME", name))
    (tmp_path / "test_c.py").write_text(NOTES + ALONE + "def test_that_fails(): assert 1 == 2\n")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    words = (sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", tmp_path)
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)

    noted = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    alone = [note for name, note in noted.items() if name.startswith("alone")]
    assert (len(noted), len(alone)) == (28, 4), done.stdout
    for one in alone:
        for other in noted.values():
            assert other is one or other["to"] <= one["from"] or other["from"] >= one["to"]
    for name in ("a", "b", "alone"):  # A file's tests are one worker's.
        assert len({note["worker"] for each, note in noted.items() if each.startswith(f"{name}-")}) == 1
    assert len({note["worker"] for note in noted.values()}) == 2
    assert done.returncode == 1
    assert "1 failed, 28 passed in " in done.stdout.splitlines()[-1]
