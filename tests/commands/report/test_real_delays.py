"""Delays injected into the loader, one rank, a checkpoint and a failure of a real job come back within 5 %."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.commands import jobs
from toolkit.commands.report.model import Shares
from toolkit.commands.report.sections.page import build_page

PROGRAM = Path(__file__).parents[2] / "programs" / "delays.py"
SAVED_AFTER = 15  # As the program has it.


@pytest.mark.torch
@pytest.mark.long
def test_injected_delays_come_back_from_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    shutil.copy(PROGRAM, tmp_path / "code" / "train.py")
    words = ["--hosts", "2", "--distribution", "pytorchddp", "--job-dir", str(tmp_path / "job"), "--quiet"]
    completed = subprocess.run(
        [sys.executable, "-m", "toolkit", "run", "train.py", *words, "--env", "TOOLKIT_GRACE_S=3"],
        cwd=tmp_path / "code",
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert completed.returncode == 1, completed.stdout + completed.stderr
    rank_facts = [
        json.loads((tmp_path / f"job/hosts/algo-{rank + 1}/opt/ml/model/delays-{rank}.json").read_text())
        for rank in (0, 1)
    ]
    job = jobs.read(tmp_path / "job")
    assert job.start_s is not None and job.end_s is not None

    page = build_page(job, now_s=job.end_s)

    ledger = next(block for section in page.sections for block in section.blocks if isinstance(block, Shares))
    parts = {part.name: part.value for part in ledger.parts}
    assert sum(parts.values()) == pytest.approx(job.billable_s, abs=1e-6)
    saved_s = max(facts["saved"][0][1] for facts in rank_facts)
    failed_s = job.outcome.cause.failed_ns / 1e9 if job.outcome else 0.0
    ready = list(zip(rank_facts[0]["ready"], rank_facts[1]["ready"], strict=True))
    expected = {
        "start-up": sum(facts["loaded"][0][0] - job.start_s for facts in rank_facts),
        "data wait": sum(end - begin for facts in rank_facts for begin, end in facts["loaded"][:SAVED_AFTER]),
        "straggler wait": sum(abs(a - b) for a, b in ready[:SAVED_AFTER]),
        "checkpoints": sum(end - begin for facts in rank_facts for begin, end in facts["saved"]),
        "work lost since the last checkpoint": 2 * (failed_s - saved_s),
        "idle after the failure": 2 * (job.end_s - failed_s),
    }
    # A step of the machine's own noise, 2 ms, is allowed beside the 5 %.
    slack_s = 0.002 * 2 * SAVED_AFTER
    measured = {name: parts[name] for name in expected}
    assert measured == {name: pytest.approx(seconds, rel=0.05, abs=slack_s) for name, seconds in expected.items()}
    assert page.summary.startswith("Rank 1 of host algo-2, ") and "RuntimeError: injected" in page.summary
