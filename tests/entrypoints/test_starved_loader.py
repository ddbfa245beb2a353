"""KT's story in small: a loader that starves the job is found, the fix clears it, and one page compares the two."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.commands.simulate.toolkit_run import ROOT, ToolkitRun

MISSING = [name for name in ("torch", "sklearn", "numpy") if find_spec(name) is None]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11"),
]
WORKERS = 8
SMALL = {"teacher-epochs": 3, "epochs": 5, "teacher-dim": 16, "dim": 8}
# Half of the workers are too many on any machine; on two cores that is the default. Other programs beside the test make
# steps longer, and so the share of the wait shorter.
TOO_MANY = max(1, 100 * WORKERS // 2 // len(os.sched_getaffinity(0)))
RULES = {"Dataloader": {"max_threshold": TOO_MANY}, "DataWait": {"threshold": 5}}
TRACED = "TOOLKIT_PROFILE=steps 50-59"


class Monitored(ToolkitRun):
    deadline_s = 300


def train(folder: Path, **options: object) -> Path:
    """Run the workload on one host, with the monitor; return the job's folder."""
    folder.mkdir()
    words = [word for name, value in {**SMALL, **options}.items() for word in ("--hyperparameter", f"{name}={value}")]
    program = str(ROOT / "entrypoints/distill_digits/job.toml")
    variables = {"TOOLKIT_MONITOR": "on", "TOOLKIT_PROFILER_RULES": json.dumps(RULES), "TOOLKIT_STALL_S": "120"}
    with Monitored(folder, program, "--hosts", "1", "--env", TRACED, *words, **variables) as job:
        assert job.end() == 0, job.console
    return job.folder


def toolkit(*words: str) -> dict[str, Any]:
    command = (sys.executable, "-m", "toolkit", *words, "-o", "-", "--format", "json")
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    page: dict[str, Any] = json.loads(done.stdout)
    return page


def blocks(page: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {block["id"]: block for section in page["sections"] for block in section["blocks"] if block.get("id")}


@pytest.mark.long
def test_a_starving_loader_is_found_with_its_cause_and_the_fix_clears_it(tmp_path: Path) -> None:
    starved = train(tmp_path / "starved", **{"loader-workers": WORKERS, "zero": "off", "autocast": "off"})
    fixed = train(tmp_path / "fixed", **{"loader-workers": 0, "zero": "on", "autocast": "on"})

    starved_report, after = (json.dumps(toolkit("report", str(job))) for job in (starved, fixed))
    compared = toolkit("compare", str(starved), str(fixed))

    assert "the loader workers start anew in each epoch" in starved_report
    assert "persistent_workers=True" in starved_report
    assert "DataWait" not in after
    assert "Dataloader" not in after
    assert "Cleared: DataWait, Dataloader." in compared["summary"]
    tables = blocks(compared)
    assert [row[1:3] for row in tables["findings-table"]["rows"]] == [
        ["DataWait loader", "cleared"],
        ["Dataloader loader-workers", "cleared"],
    ]
    rates = next(row for row in tables["overview"]["rows"] if row[0].startswith("steps per second"))
    assert rates[1] > 0
    assert rates[2] > 0
    for row in tables["top-kernels"]["rows"]:
        assert all(row)
