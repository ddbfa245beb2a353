"""A real job that fails with each cause of docs/failures.md has that cause in the first six lines of its report."""

import subprocess
import sys
from pathlib import Path

import pytest

CASES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "an exception": (
        "raise FileNotFoundError('no shard 7')",
        (),
        ("Script of host algo-1", "FileNotFoundError: no shard 7 (at /opt/ml/code/train.py:1"),
    ),
    "an exit code": ("import sys; print('3 of 4 inputs are empty'); sys.exit(3)", (), ("3 of 4 inputs are empty",)),
    "an exit inside of except": (
        "try:\n    open('config.yaml')\nexcept OSError:\n    raise SystemExit('no configuration: give --config')",
        (),
        ("no configuration: give --config",),
    ),
    "a segmentation fault": ("import ctypes; ctypes.string_at(0)", (), ("SIGSEGV (signal 11)",)),
    "an abort": ("import os; os.abort()", (), ("SIGABRT (signal 6)",)),
    "a package that pip cannot install": (
        "print('never runs')",
        ("--env", "PIP_NO_INDEX=1", "--requirements", "needs.txt"),
        ("No matching distribution found for einops==99.0",),
    ),
    "a wrong setting": (
        "pass",
        ("--hosts", "2", "--env", "TOOLKIT_JOB_SECRET_FILE=/nowhere/secret"),
        ("TOOLKIT_JOB_SECRET_FILE: /nowhere/secret",),
    ),
    "a host that vanishes": (
        "import time\nfor _ in range(600): time.sleep(0.1)",
        ("--hosts", "2", "--kill", "algo-2@2s"),
        ("Host algo-2 vanished",),
    ),
    "a stop": (
        "import time\nfor _ in range(600): time.sleep(0.1)",
        ("--stop-after", "2s"),
        ("STOPPED", "stopped by SIGTERM"),
    ),
    "a full disk": (
        "raise OSError(28, 'No space left on device')",
        (),
        ("No space left on device", "What to do: A disk is full"),
    ),
    "a hang": (
        "import time\nprint('step 1', flush=True)\nfor _ in range(600): time.sleep(0.5)",
        ("--env", "TOOLKIT_STALL_S=2"),
        ("no rank",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_in_the_first_six_lines(tmp_path: Path, case: str) -> None:
    script, words, expected = CASES[case]
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(script + "\n")
    (tmp_path / "code" / "needs.txt").write_text("einops==99.0\n")
    toolkit(tmp_path / "code", "run", "train.py", "--job-dir", str(tmp_path / "job"), "--quiet", *words)

    completed = toolkit(tmp_path, "report", "job", "-o", "-")

    assert completed.returncode == 0, completed.stderr
    first = "\n".join(completed.stdout.splitlines()[:6])
    assert [item for item in expected if item not in first] == [], completed.stdout[:2000]
    assert "Traceback" not in completed.stderr


def toolkit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *words], cwd=folder, capture_output=True, text=True, timeout=120
    )
