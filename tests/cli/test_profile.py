"""`toolkit profile`: its errors. tests/profiler/test_tracing.py has a rank that answers it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--steps", "21"], "expected 1 to 20 steps, found 21"),
        (["--ranks", "0,1,2"], "--ranks: expected one or two ranks, as 0 or 0,3, found '0,1,2'"),
        (["--ranks", "all"], "--ranks: expected one or two ranks, as 0 or 0,3, found 'all'"),
        (["nowhere"], "expected the name of a job or its folder, found 'nowhere'"),
        ([], "expected a running job, found no rank of one"),
    ],
)
def test_what_cannot_be_traced_is_said_with_what_was_expected(tmp_path: Path, arguments: list[str], told: str) -> None:
    environ = {**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path / "base"), "HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "toolkit", "profile", *arguments],
        env={**environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == UserError.exit_code
    assert told in done.stderr
