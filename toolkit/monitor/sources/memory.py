"""Memory of the container and of the host, and what the kernel's out-of-memory killer did.

The container's memory is that of its control group, version 2 or 1. Cached files are subtracted, since the kernel drops
them before it kills (https://docs.kernel.org/admin-guide/cgroup-v2.html, memory.stat, seen 2026-11). Outside a control
group with a memory controller the host stands for the container.
"""

import os
from pathlib import Path

from toolkit import machine
from toolkit.folders import as_absent, is_file
from toolkit.monitor.kept_file import KeptFile
from toolkit.monitor.source import BYTES, NAN, PERCENT, column

# Of version 1, memory.stat counts this group alone unless the name starts with total_.
_CACHED = {b"active_file", b"inactive_file"}
_CACHED_V1 = {b"total_active_file", b"total_inactive_file"}


def cached_bytes(stat: bytes, names: set[bytes]) -> int:
    """Return the sum of *names* in *stat*, the content of memory.stat."""
    total_bytes = 0
    for line in stat.splitlines():
        name, _, value = line.partition(b" ")
        if name in names:
            total_bytes += int(value)
    return total_bytes


def meminfo(text: bytes) -> dict[bytes, int]:
    """Return the values of /proc/meminfo, in bytes, by name."""
    lines = (line.split() for line in text.splitlines())
    return {line[0].rstrip(b":"): int(line[1]) * 1024 for line in lines if len(line) > 1 and line[1].isdigit()}


class MemorySource:
    """Memory used and its limit, kills since the start, and what /dev/shm holds."""

    def __init__(self, root: str = "/") -> None:
        top = Path(root)
        self._meminfo = KeptFile(f"{root}/proc/meminfo")
        self._used, self._stat, self._cached = _group(top)
        self._limit_bytes = machine.memory_bytes(top)
        self._events = _first(top, ("", "memory.events"), ("memory", "memory.oom_control"))
        self._kills = _kills(self._events)
        self._shm = os.path.join(root, "dev/shm")
        self.columns = (
            column("memory/container/used_bytes", BYTES),
            column("memory/container/limit_bytes", BYTES),
            column("memory/container/used_percent", PERCENT),
            column("memory/host/used_percent", PERCENT),
            column("memory/events/oom_kills"),
            column("memory/shm/used_bytes", BYTES),
        )

    def values(self, now_s: float) -> list[float]:
        """See SampleSource."""
        machine = meminfo(self._meminfo.read())
        total = machine.get(b"MemTotal", 0)
        host_used = total - machine.get(b"MemAvailable", machine.get(b"MemFree", 0))
        used: float = host_used if self._used is None else self._group_bytes()
        limit = self._limit_bytes
        return [
            used,
            float(limit) if limit else NAN,
            100.0 * used / limit if limit else NAN,
            100.0 * host_used / total if total else NAN,
            float(_kills(self._events) - self._kills),
            _shm_bytes(self._shm),
        ]

    def _group_bytes(self) -> float:
        assert self._used is not None
        assert self._stat is not None
        text = self._used.read()
        if not text.strip().isdigit():
            return NAN
        return max(float(int(text) - cached_bytes(self._stat.read(), self._cached)), 0.0)


def _group(root: Path) -> tuple[KeptFile | None, KeptFile | None, set[bytes]]:
    """Return the files of the group's memory in use and of its parts, and the names of cached files among these."""
    for controller, used, names in (("", "memory.current", _CACHED), ("memory", "memory.usage_in_bytes", _CACHED_V1)):
        for folder in machine.groups(root, controller):
            if is_file(folder / used, as_absent):
                return KeptFile(folder / used), KeptFile(folder / "memory.stat"), names
    return None, None, set()


def _first(root: Path, *places: tuple[str, str]) -> KeptFile | None:
    for controller, name in places:
        for folder in machine.groups(root, controller):
            if is_file(folder / name, as_absent):
                return KeptFile(folder / name)
    return None


def _kills(events: KeptFile | None) -> int:
    """Return how many processes the kernel has killed in the group."""
    for line in events.read().splitlines() if events is not None else ():
        name, _, count = line.partition(b" ")
        if name == b"oom_kill" and count.isdigit():
            return int(count)
    return 0


def _shm_bytes(folder: str) -> float:
    try:
        file_system = os.statvfs(folder)
    except OSError:
        return NAN
    return float((file_system.f_blocks - file_system.f_bfree) * file_system.f_frsize)
