"""Control groups of version 2 of a real kernel: limits of cores and of memory, and a process that is killed for memory.

Linux runs as a process here (scripts/beds/uml), and sees this machine's files, read-only. The monitor's sources are in
a control group and a cgroup namespace of their own, as in a container.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.root,
    pytest.mark.uml,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for its own kernel to be root"),
    pytest.mark.skipif(shutil.which("linux.uml") is None, reason="no test bed: scripts/beds/uml"),
]

INIT = """#!/bin/sh
exec >/dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo "+cpu +memory" > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/box
echo "50000 100000" > /sys/fs/cgroup/box/cpu.max
echo 200M > /sys/fs/cgroup/box/memory.max
sh -c 'echo $$ > /sys/fs/cgroup/box/cgroup.procs; exec unshare -m -C sh -c "
  umount /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; PYTHONPATH={root} exec {python} {measures}"'
echo o > /proc/sysrq-trigger
sleep 60
"""
MEASURES = """
import json, subprocess, sys, time
from toolkit.monitor.sources.memory import Memory
from toolkit.monitor.sources.quota import Quota

sources = [Quota("/", time.monotonic()), Memory("/")]
def sample():
    values = {}
    for source in sources:
        names = [column.name for column in source.columns]
        values.update(zip(names, source.values(time.monotonic()), strict=True))
    return values

ends_s = time.monotonic() + 2
while time.monotonic() < ends_s:
    pass
held = bytearray(b"x") * (50 << 20)
burnt = sample()
killed = subprocess.run([sys.executable, "-S", "-c", "held = bytearray(b'x') * (400 << 20)"]).returncode
print("SAMPLES " + json.dumps([burnt, sample(), killed]), flush=True)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, float], dict[str, float], int]:
    """Return the values after two seconds of computing with 50 MiB held, those after a process was killed, and its
    code."""
    folder = tmp_path_factory.mktemp("uml")
    (folder / "measures.py").write_text(MEASURES)
    init = folder / "init.sh"
    init.write_text(INIT.format(root=ROOT, python=sys.executable, measures=folder / "measures.py"))
    init.chmod(0o755)
    argv = ("linux.uml", "mem=512M", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}", "quiet")
    words = ("con=null", "con0=null,fd:1", f"uml_dir={folder}")
    done = subprocess.run((*argv, *words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    lines = [line.partition("SAMPLES ")[2] for line in done.stdout.splitlines() if "SAMPLES " in line]
    assert lines, done.stdout + done.stderr
    found: Any = json.loads(lines[0])
    return found[0], found[1], found[2]


def test_the_limit_of_cores_and_what_reached_it_are_measured(
    measured: tuple[dict[str, float], dict[str, float], int],
) -> None:
    burnt, _, _ = measured

    assert burnt["cpu/all/quota_cores"] == 0.5
    assert burnt["cpu/all/throttled_percent"] > 50
    assert 0.25 < burnt["cpu/container/used_cores"] < 0.75


def test_the_limit_of_memory_and_what_is_held_are_measured(
    measured: tuple[dict[str, float], dict[str, float], int],
) -> None:
    burnt, _, _ = measured

    assert burnt["memory/container/limit_bytes"] == 200 << 20
    assert 50 << 20 < burnt["memory/container/used_bytes"] < 120 << 20
    assert burnt["memory/events/oom_kills"] == 0


def test_a_process_that_is_killed_for_memory_is_counted(
    measured: tuple[dict[str, float], dict[str, float], int],
) -> None:
    _, after, code = measured

    assert code == -9
    assert after["memory/events/oom_kills"] == 1
