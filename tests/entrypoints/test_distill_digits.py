"""The distillation workload: alone, and over backend "smddp" on two hosts, with half the optimizer's state on each."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun

MISSING = [name for name in ("torch", "sklearn") if find_spec(name) is None]
pytestmark = [pytest.mark.torch, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")]

WORKLOAD = Path(__file__).parents[2] / "entrypoints/distill_digits"
SHORT = {"teacher-epochs": "2", "epochs": "2"}
SILENT_S = "120"  # Then the toolkit ends the job and says where each rank was, well before the deadline.


class Patient(ToolkitRun):
    """Two models are trained one after the other: a quarter of a minute, several where every core is busy."""

    deadline_s = 300


def state_bytes(console: str) -> dict[str, int]:
    """Return the optimizer state of the fullest rank, by whose optimizer it was."""
    sizes = re.findall(r"(teacher|student): optimizer_state_bytes=(\d+) ", console)
    return {name: int(size) for name, size in sizes}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11")
@pytest.mark.long
def test_the_student_learns_over_smddp_on_two_hosts_and_each_keeps_half_of_the_state(tmp_path: Path) -> None:
    words = [word for name, value in SHORT.items() for word in ("--hyperparameter", f"{name}={value}")]
    with Patient(tmp_path, str(WORKLOAD / "job.toml"), *words, TOOLKIT_STALL_S=SILENT_S) as job:
        assert job.end() == 0, job.console
    argv = [sys.executable, str(WORKLOAD / "train.py"), "--model-dir", str(tmp_path / "model")]
    alone = subprocess.run(
        [*argv, *(word for name in SHORT for word in (f"--{name}", "1"))],
        env={name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )

    halves, wholes = state_bytes(job.console), state_bytes(alone.stdout)
    assert set(halves) == set(wholes) == {"teacher", "student"}
    assert all(0.5 <= halves[name] / wholes[name] < 0.51 for name in wholes)
    assert job.report["metrics"]["accuracy"] > 0.4
    assert job.report["metrics"]["optimizer_state_bytes"] == halves["student"]
    assert "[toolkit] smddp: 2 ranks; all-reduce: " in job.console
    assert (
        "smddp: AWS's library is not installed (no smddprun on PATH); torchrun starts the open backend" in job.console
    )
    assert sorted(job.archive("model.tar.gz")) == ["metadata.json", "student.pt"]
