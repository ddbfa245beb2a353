"""Control groups of version 2 of a real kernel: limits of cores and of memory, and a process that is killed for memory.

The monitor's sources are in a control group and a cgroup namespace of their own, as in a container. The first of these
that can be had serves: a Linux that runs as a process (scripts/beds/uml) and sees this machine's files, read-only; this
machine, if it has the controllers in version 2; a container of an engine that has them (scripts/beds/docker).
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.docker.engine import BASE, environ_of

ROOT = Path(__file__).parents[2]
BEDS = Path(os.environ.get("TOOLKIT_BEDS") or ROOT / ".beds").absolute()
GROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = {"cpu", "memory"}
DEADLINE_S = 300
pytestmark = [
    pytest.mark.root,
    pytest.mark.uml,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for control groups of its own"),
]

# $1 is the group, which exists; the rest is the command that runs in it. Without swap, for the kernel to kill.
IN_GROUP = """
echo "50000 100000" > $1/cpu.max
echo 200M > $1/memory.max
[ ! -e $1/memory.swap.max ] || echo 0 > $1/memory.swap.max
echo $$ > $1/cgroup.procs
shift
exec unshare -m -C sh -c 'umount /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec "$@"' sh "$@"
"""
INIT = """#!/bin/sh
exec >/dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo "+cpu +memory" > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/box
PYTHONPATH={root} sh {folder}/in_group.sh /sys/fs/cgroup/box {python} {folder}/measures.py
echo o > /proc/sysrq-trigger
sleep 60
"""
# The machine's files with the container's own /proc and /sys: its Python and the sources as they are here.
IN_CONTAINER = 'mount --rbind /proc /host/proc && mount --rbind /sys /host/sys && exec chroot /host "$@"'
MEASURES = """
import json, subprocess, sys, time
from toolkit.monitor.sources.memory import MemorySource
from toolkit.monitor.sources.quota import Quota

sources = [Quota("/", time.monotonic()), MemorySource("/")]
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


class UnavailableError(Exception):
    """This way to control groups of version 2 cannot be had here, and why."""


def _in_a_kernel_of_its_own(folder: Path) -> str:
    if shutil.which("linux.uml") is None:
        raise UnavailableError("no test bed: scripts/beds/uml")
    refusal = BEDS / "uml/refusal"  # The script has booted the kernel once.
    if refusal.exists():
        raise UnavailableError(f"scripts/beds/uml: {refusal.read_text().strip()}")
    init = folder / "init.sh"
    init.write_text(INIT.format(root=ROOT, python=sys.executable, folder=folder))
    init.chmod(0o755)
    argv = ("linux.uml", "mem=512M", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}", "quiet")
    return _output((*argv, "con=null", "con0=null,fd:1", f"uml_dir={folder}"))


def _on_this_machine(folder: Path) -> str:
    if not (GROUPS / "cgroup.controllers").exists():
        raise UnavailableError("this machine's control groups are of version 1")
    group = GROUPS / f"toolkit-test-{os.getpid()}"
    try:
        (GROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        group.mkdir()
    except OSError as error:
        raise UnavailableError(f"this machine lets no group have the controllers: {error}") from None
    try:
        measures = (sys.executable, str(folder / "measures.py"))
        return _output(("sh", str(folder / "in_group.sh"), str(group), *measures), PYTHONPATH=str(ROOT))
    finally:
        group.rmdir()


def _in_a_container(folder: Path) -> str:
    if not (BEDS / "docker/env").exists():
        raise UnavailableError("no test bed: scripts/beds/docker")
    environ = environ_of(BEDS / "docker")
    version = _output(("docker", "info", "--format", "{{.CgroupVersion}}"), **environ).strip()
    if version != "2":
        raise UnavailableError(f"the container engine's control groups are of version {version or 'unknown'}")
    limits = ("--cpus", "0.5", "--memory", "200m", "--memory-swap", "200m", "--cgroupns", "private")
    argv = ("docker", "run", "--rm", "--privileged", *limits, "-v", "/:/host:ro", BASE, "sh", "-c", IN_CONTAINER, "sh")
    measures = ("env", f"PYTHONPATH={ROOT}", sys.executable, str(folder / "measures.py"))
    return _output((*argv, *measures), **environ)


WAYS: tuple[Callable[[Path], str], ...] = (_in_a_kernel_of_its_own, _on_this_machine, _in_a_container)


def _output(argv: Sequence[str], **environ: str) -> str:
    """Return what *argv* writes, on both streams."""
    done = subprocess.run(
        argv,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    return done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, float], dict[str, float], int]:
    """Return the values after two seconds of computing with 50 MiB held, those after a process was killed, and its
    code."""
    folder = tmp_path_factory.mktemp("groups")
    (folder / "measures.py").write_text(MEASURES)
    (folder / "in_group.sh").write_text(IN_GROUP)
    reasons = []
    for way in WAYS:
        try:
            output = way(folder)
        except UnavailableError as reason:
            reasons.append(str(reason))
            continue
        lines = [line.partition("SAMPLES ")[2] for line in output.splitlines() if "SAMPLES " in line]
        assert lines, output
        samples: Any = json.loads(lines[0])
        return samples[0], samples[1], samples[2]
    pytest.skip("; ".join(reasons))


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
