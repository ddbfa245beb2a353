"""The times of tests (tests/times.py): whose CPU time counts, and the tables."""

import os
import subprocess
import sys
from pathlib import Path

from tests import times
from tests.project.test_repository import ROOT
from tests.times import TestTime

BURNS_S = 0.3
TESTS = """
import atexit, subprocess, sys, pytest

BURN = "import time\\nwhile time.process_time() < 0.3: pass\\nprint(flush=True)\\n"

@pytest.fixture
def burnt():
    exec(BURN.replace("process_time() <", f"process_time() - {__import__('time').process_time()} <"))

def test_of_its_own(burnt): pass

def test_of_a_child(): subprocess.run([sys.executable, "-c", BURN], check=True)

def test_of_a_grandchild_that_lives_on():
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r} + 'input()'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    atexit.register(child.communicate)

@pytest.mark.long
def test_of_nobody(): pass
"""


def test_the_cpu_time_of_a_test_is_that_of_all_it_started_and_its_fixtures(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    (tmp_path / "test_a.py").write_text(TESTS)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), times.FILE: str(tmp_path / "times")}

    argv = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.times")
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout
    rows = list(times.read(tmp_path / "times").values())
    assert [row.test.partition("::test_of_")[2] for row in rows] == [
        "its_own",
        "a_child",
        "a_grandchild_that_lives_on",
        "nobody",
    ]
    assert [row.cpu_s > 0.9 * BURNS_S for row in rows] == [True, True, True, False]
    assert [row.is_long for row in rows] == [False, False, False, True]


def test_the_tables_have_folders_and_tests_by_their_cpu_time() -> None:
    rows = [
        TestTime(test="tests/test_log.py::test_a", is_long=False, wall_s=1.0, cpu_s=0.5),
        TestTime(test="tests/rank/hook/test_site.py::test_b", is_long=False, wall_s=2.0, cpu_s=3.0),
        TestTime(test="tests/rank/hook/test_site.py::test_c[x]", is_long=True, wall_s=40.0, cpu_s=30.0),
        TestTime(test="tests/cli/test_main.py::test_d", is_long=False, wall_s=9.0, cpu_s=1.0),
    ]

    text = times.tables({row.test: row for row in rows}, dearest=2)

    assert text.splitlines()[2:6] == [
        "| tests/rank/hook | 2 | 42 | 33 | 1 | 40 | 30 |",
        "| tests/cli | 1 | 9 | 1 |  |  |  |",
        "| tests | 1 | 1 | 0 |  |  |  |",
        "| all | 4 | 52 | 34 | 1 | 40 | 30 |",
    ]
    assert text.splitlines()[9:] == [
        "| `rank/hook/test_site.py::test_c[x]` | 40.0 | 30.0 | yes |",
        "| `rank/hook/test_site.py::test_b` | 2.0 | 3.0 |  |",
    ]
