"""Cores, memory and network of this host, as the kernel shows them under /proc, /sys and /dev.

A container sees the whole machine in /proc; what it may use is in its control group. Of version 2 (and of version 1 in
a namespace of its own) the limits lie at the mount's root; a group further down is looked at with all its parents,
since the smallest limit on the way holds.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from toolkit.folders import as_absent, exists, is_dir

CGROUPS = "sys/fs/cgroup"


def cpus(root: Path) -> int:
    """Return the cores this process may use: its affinity, less if a quota is smaller (rounded down, at least 1)."""
    return max(1, min([_affinity(), *map(int, _quotas(root))]))


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1  # A sandbox denies the question.


def quota_cores(root: Path) -> float | None:
    """Return the cores that this container's limit allows, None if it has no limit."""
    return min(_quotas(root), default=None)


def memory_bytes(root: Path) -> int:
    """Return the memory of this host or, if less, of this container; 0 if it cannot be found out."""
    lines = _read(root / "proc/meminfo").splitlines()
    totals = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    return min((*_memory_limits(root), *totals), default=0)


def boot_id(root: Path) -> str:
    """Return the id of the kernel's boot, which all containers of a machine share; empty if it cannot be found out."""
    return _read(root / "proc/sys/kernel/random/boot_id")


def interfaces(root: Path) -> tuple[str, ...]:
    """Return the names of the network interfaces, sorted."""
    return tuple(sorted(entry.name for entry in _entries(root / "sys/class/net") if is_dir(entry, as_absent)))


def route_interface(root: Path) -> str | None:
    """Return the interface of the default route, which also leads to the peers in a container's one network.

    Without a default route (an isolated network): the only interface besides loopback, None if there are several.
    """
    routes = [line.split() for line in _read(root / "proc/net/route").splitlines()[1:]]
    default = [route for route in routes if len(route) > 7 and route[1] == route[7] == "00000000"]
    if default:
        return min(default, key=lambda route: int(route[6]))[0]
    others = [name for name in interfaces(root) if name != "lo"]
    return others[0] if len(others) == 1 else None


def in_engine(root: Path) -> bool:
    """True in a container of Docker (or a pod that it made) or Podman: each puts an empty file at the root."""
    return any(exists(root / name, as_absent) for name in (".dockerenv", "run/.containerenv"))


def oom_kills(root: Path) -> int | None:
    """Return how many processes the out-of-memory killer has ended in this process's control group; None: not counted.

    Version 2 counts in memory.events (oom_kill), version 1 in memory.oom_control (oom_kill, Linux 4.13).
    """
    for file in (
        *(group / "memory.events" for group in groups(root, "")),
        *(group / "memory.oom_control" for group in groups(root, "memory")),
    ):
        for line in _read(file).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return None


def memory_peak_bytes(root: Path) -> int | None:
    """Return the most memory this process's control group has held, None if the kernel does not say."""
    for file in (
        *(group / "memory.peak" for group in groups(root, "")),
        *(group / "memory.max_usage_in_bytes" for group in groups(root, "memory")),
    ):
        if (peak := _read(file)).isdigit():
            return int(peak)
    return None


def fabric(root: Path) -> Literal["tcp", "efa", "infiniband"]:
    """Return the fastest network that processes here can open, by its devices and their driver."""
    if not any(entry.name.startswith("uverbs") for entry in _entries(root / "dev/infiniband")):
        return "tcp"
    drivers = {(entry / "device/driver").resolve().name for entry in _entries(root / "sys/class/infiniband")}
    return "efa" if "efa" in drivers else "infiniband"


def _quotas(root: Path) -> Iterator[float]:
    """Yield each limit of cores on the way from this process's group to the root."""
    for folder in groups(root, ""):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            yield int(quota) / int(period)
    for folder in groups(root, "cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # "-1" is no limit.
            yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[int]:
    """Yield each limit of memory on the way from this process's group to the root ("max" is none)."""
    for folder in groups(root, ""):
        if (limit := _read(folder / "memory.max")).isdigit():
            yield int(limit)
    for folder in groups(root, "memory"):
        if (limit := _read(folder / "memory.limit_in_bytes")).isdigit():
            yield int(limit)


def groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group for *controller* ("" for version 2) and of its parents."""
    mount = root / CGROUPS / controller
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            parts = [part for part in group.split("/") if part not in ("", "..")]
            yield from (mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))
            return
    yield mount


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _entries(folder: Path) -> tuple[Path, ...]:
    try:
        return tuple(folder.iterdir())
    except OSError:
        return ()
