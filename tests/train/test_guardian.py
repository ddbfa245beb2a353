"""Nothing is left of a job whose `train` is killed, whatever its processes were started with."""

import os
import re
import signal
import time
from pathlib import Path

from tests.train.base import Base
from tests.train.live import Live, gone, live
from tests.train.test_install import slow

GUARDIAN = "toolkit-guard"
STARTS = """
import os, subprocess, sys, time
child = subprocess.Popen(["/bin/sleep", "600"], {how})
print(f"ready {{os.getpid()}} {{child.pid}}.", flush=True)
time.sleep(600)
"""

# A child with a session of its own, and an orphan, which `train` adopts.
SESSIONS = """
import os, subprocess, sys, time
child = subprocess.Popen(["/bin/sleep", "600"], env={}, start_new_session=True)
start = '''
import subprocess
print(subprocess.Popen(["/bin/sleep", "600"], env={}, start_new_session=True, stdout=subprocess.DEVNULL).pid)
'''
orphan = subprocess.run([sys.executable, "-c", start], env={}, stdout=subprocess.PIPE, text=True).stdout.strip()
print(f"ready {os.getpid()} {child.pid} {orphan}.", flush=True)
time.sleep(600)
"""


def guardian_of(running: Live) -> int:
    """Return the pid of the guardian of a running `train`."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    (guardian_pid,) = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == GUARDIAN]
    return int(guardian_pid)


def started(running: Live) -> list[int]:
    """Return the pids that a STARTS script has told."""
    running.until(b".\n")
    ready = re.search(rb"ready ([\d ]+)\.", running.out)
    assert ready is not None
    return [int(pid) for pid in ready[1].split()]


def waits(pid: int) -> int:
    """Return how often a process has gone to sleep so far."""
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("voluntary_ctxt")
    ]
    return int(line.split()[1])


def test_what_was_started_with_an_empty_environment_ends_with_a_killed_train(base: Base) -> None:
    base.program(STARTS.format(how="env={}"))

    with live(base) as running:
        pids = started(running)
        running.signal(signal.SIGKILL)

        assert all(gone(pid) for pid in pids)


def test_so_does_what_began_a_session_of_its_own_and_was_seen(base: Base) -> None:
    base.program(SESSIONS)

    with live(base) as running:
        pids = started(running)
        guardian = guardian_of(running)
        waits_before, ends_s = waits(guardian), time.monotonic() + 60
        while waits(guardian) < waits_before + 2:  # Each look at the processes ends in another wait.
            assert time.monotonic() < ends_s
            time.sleep(0.05)
        running.signal(signal.SIGKILL)

        assert all(gone(pid) for pid in pids)


def test_the_build_of_a_package_ends_with_a_killed_train(base: Base, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    base.program("")
    package = slow(
        base.code / "slow", f"import os, time; open({str(file)!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(600)"
    )
    (base.code / "requirements.txt").write_text(f"{package}\n")

    with live(base, PIP_NO_INDEX="1") as running:
        ends_s = time.monotonic() + 60
        while not file.exists() or not file.read_text().endswith("."):
            assert time.monotonic() < ends_s, running.err
            time.sleep(0.05)
        running.signal(signal.SIGKILL)

        assert gone(int(file.read_text()[:-1]))


def test_a_guardian_that_was_killed_is_replaced(base: Base) -> None:
    base.program(STARTS.format(how="env={}"))

    with live(base) as running:
        pids = started(running)
        os.kill(guardian_of(running), signal.SIGKILL)
        running.until(b"another has taken its place")
        running.signal(signal.SIGKILL)

        assert all(gone(pid) for pid in pids)


def test_a_guardian_that_somebody_stops_goes_on_and_ends_what_is_left(base: Base) -> None:
    base.program(STARTS.format(how="env={}"))

    with live(base) as running:
        pids = started(running)
        guardian = guardian_of(running)
        waits_before, ends_s = waits(guardian), time.monotonic() + 30
        os.kill(guardian, signal.SIGSTOP)
        while waits(guardian) == waits_before or "T (stopped)" in Path(f"/proc/{guardian}/status").read_text():
            assert time.monotonic() < ends_s
            time.sleep(0.005)
        os.kill(running.pid, signal.SIGKILL)

        assert all(gone(pid) for pid in (*pids, guardian))
