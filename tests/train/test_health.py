"""`toolkit health` beside a job: what a HEALTHCHECK sees."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.train.base import Base
from tests.train.live import Live, live

HEALTH = (sys.executable, "-m", "toolkit.cli.main", "health")


def health(base: Base, **more: str) -> tuple[int, str]:
    done = subprocess.run(HEALTH, env=base.environ(**more), capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def pulse_of(run: Live, scratch: Path) -> Path:
    (pulse,) = scratch.glob(f"toolkit-*/run-{run.pid}-*/pulse")
    return pulse


def fresh(pulse: Path, deadline_s: float) -> bool:
    ends_s = time.monotonic() + deadline_s
    while time.monotonic() - pulse.stat().st_mtime > 100:
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.05)
    return True


def test_a_train_that_is_stopped_is_hung_and_one_that_runs_is_not(base: Base, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    base.program("import time\nprint('computing', flush=True)\ntime.sleep(600)\n")
    with live(base, TMPDIR=str(scratch)) as run:
        run.until(b"computing")
        pulse = pulse_of(run, scratch)
        os.utime(pulse, (-1000, -1000))
        assert fresh(pulse, 30)
        assert health(base, TMPDIR=str(scratch)) == (0, "")

        run.signal(signal.SIGSTOP)
        os.utime(pulse, (-1000, -1000))
        code, output = health(base, TMPDIR=str(scratch))
        run.signal(signal.SIGCONT)

        assert code == 1
        assert f"train (pid {run.pid}) has not moved for" in output
        assert fresh(pulse, 30)


def test_a_hang_that_is_only_reported_shows(base: Base, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    base.program("import time\nprint('computing', flush=True)\ntime.sleep(600)\n")
    environ = {"TMPDIR": str(scratch), "TOOLKIT_STALL_S": "2", "TOOLKIT_STALL_ACTION": "report"}
    with live(base, **environ) as run:
        run.until(b"no rank has written or computed anything")

        code, output = health(base, TMPDIR=str(scratch))

        assert (code, "no rank has written or computed anything for 2 s" in output) == (1, True)


def test_where_no_job_runs_nothing_is_wrong(base: Base, tmp_path: Path) -> None:
    assert health(base, TMPDIR=str(tmp_path)) == (0, "")
