"""Tests that are marked as long: scripts/test leaves them out, scripts/test --all does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.test_repository import ROOT

CONFTEST = "from tests.conftest import pytest_addoption, pytest_collection_modifyitems\n"
TESTS = """
import pytest

def test_short(): pass

@pytest.mark.long
def test_long(): pass

@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.long)])
def test_some(number): pass
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "2 passed, 2 deselected in "),
        (("--all",), "4 passed in "),
        (("test_a.py::test_long",), "1 passed in "),
        (("test_a.py::test_some[1]", "test_a.py"), "3 passed, 1 deselected in "),
    ],
)
def test_a_long_test_runs_with_all_or_by_its_name(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text(TESTS)

    argv = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)

    assert expected in done.stdout.splitlines()[-1]
