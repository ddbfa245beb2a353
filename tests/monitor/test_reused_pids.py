"""Pids that another process takes while the monitor samples: real ones, in a pid namespace of the test's own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a pid namespace"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare, of util-linux"),
]

# `again(process)` ends a process and starts another that gets its pid and burns a core.
REUSE = """
import math, os, pathlib, subprocess, sys, time
from toolkit.log import Log
from toolkit.monitor.roster import Roster
from toolkit.monitor.sources.ranks import Ranks
from toolkit.train.monitored import Monitored, process_started

BURNS = [sys.executable, "-S", "-c", "print(flush=True)\\nwhile True: pass"]

def burns():
    process = subprocess.Popen(BURNS, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process

def again(process):
    process.kill()
    process.wait()
    pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(process.pid - 1))
    other = burns()
    assert other.pid == process.pid, (other.pid, process.pid)
    return other

def silent(ranks, now_s):
    return not ranks.any_lives() and all(map(math.isnan, ranks.values(now_s)))
"""


def in_namespace(code: str) -> str:
    """Run *code* after REUSE with pids of its own; return what it prints."""
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", REUSE + code]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=90)
    if "ns_last_pid" in done.stderr:
        pytest.skip("the kernel does not let a test choose a pid")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_rank_that_ended_before_the_monitor_saw_it_is_not_another_process_with_its_pid(tmp_path: Path) -> None:
    output = in_namespace(
        f"""
path = pathlib.Path({str(tmp_path / "ranks")!r})
rank = burns()
path.write_text(f"0 0 {{rank.pid}} {{process_started(rank.pid)}}\\n")
again(rank)
(listed,) = Roster(path).new()
ranks = Ranks()
ranks.add(listed.rank, listed.pid, 100.0, listed.started)
print(silent(ranks, 101.0))
"""
    )

    assert output == "True\n"


def test_a_rank_whose_pid_is_taken_between_two_samples_is_over() -> None:
    output = in_namespace(
        """
rank = burns()
ranks = Ranks()
ranks.add(0, rank.pid, 100.0, process_started(rank.pid))
print(ranks.any_lives(), silent(ranks, 101.0))
again(rank)
print(silent(ranks, 102.0))
"""
    )

    assert output == "True False\nTrue\n"


def test_a_worker_whose_pid_is_taken_by_the_next_one_is_counted_as_two() -> None:
    """The loader of an epoch ends, and that of the next one gets its pid."""
    output = in_namespace(
        """
RANK = '''
import os, sys
for line in sys.stdin:
    if line[0] != "0":
        with open("/proc/sys/kernel/ns_last_pid", "w") as last:
            last.write(str(int(line) - 1))
    child = os.fork()
    if child == 0:
        with open("/proc/self/comm", "w") as comm:
            comm.write("pt_data_worker")
        print(os.getpid(), flush=True)
        while True:
            pass
    sys.stdin.readline()
    os.kill(child, 9)
    os.waitpid(child, 0)
    print("ended", flush=True)
'''
rank = subprocess.Popen([sys.executable, "-u", "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def told(line):
    print(line, file=rank.stdin, flush=True)
    return rank.stdout.readline().strip()
ranks = Ranks()
ranks.add(0, rank.pid, 100.0, process_started(rank.pid))
first = told("0")
ranks.values(102.0)
told("end")
second = told(first)
assert second == first, (first, second)
ranks.values(104.0)
_, _, _, workers, starts, *_ = ranks.values(106.0)
print(workers, starts)
"""
    )

    assert output == "1.0 2.0\n"
