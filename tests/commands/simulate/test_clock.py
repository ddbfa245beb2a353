"""The wall clock is set while `toolkit run` runs a job."""

from pathlib import Path

import pytest

from tests.clocks import WallClock, build, missing
from tests.commands.simulate.toolkit_run import ToolkitRun

SCRIPT = """
import os, time
print("up", flush=True)
while not os.path.exists({meet!r}):
    time.sleep(0.01)
"""


def test_training_seconds_are_those_that_passed(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    clock = WallClock(build(tmp_path), tmp_path / "ahead")
    script, meet = tmp_path / "script.py", tmp_path / "meet"
    script.write_text(SCRIPT.format(meet=str(meet)))
    with ToolkitRun(tmp_path, str(script), **clock.environ) as job:
        job.until("up")
        clock.set_ahead(3600)
        meet.touch()
        assert job.end() == 0, job.console

    assert job.report["training_seconds"] < job.deadline_s
    assert job.report["start_time"] < job.report["end_time"]
