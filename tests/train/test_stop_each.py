"""Each process of a job is signalled, one after the other and `train` last, as Slurm does with proctrack/linuxproc."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.train.base import Base
from tests.train.live import live
from tests.train.test_guardian import guardian_of

HANDLES = "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n"
WAITS = "import os, time\nprint(f'ready {os.getpid()}.', flush=True)\nwhile True: time.sleep(0.05)\n"


def wait_until_reaped(pid: int) -> None:
    ends_s = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < ends_s, f"{pid} is there after 60 s"
        time.sleep(0.01)


@pytest.mark.parametrize(("script", "status"), [(HANDLES + WAITS, 0), (WAITS, 143)], ids=["ends with 0", "dies of it"])
def test_a_script_that_ends_before_train_is_signalled_was_stopped(base: Base, script: str, status: int) -> None:
    base.program(script)

    with live(base) as running:
        running.until(b".\n")
        pid = int(running.out.split()[1][:-1])
        os.kill(guardian_of(running), signal.SIGTERM)
        os.kill(pid, signal.SIGTERM)
        wait_until_reaped(pid)
        running.signal(signal.SIGTERM)
        done = running.end()

    assert done.outcome["status"] == "stopped", done
    assert done.status == status
