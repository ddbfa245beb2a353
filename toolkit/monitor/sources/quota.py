"""The container's share of the cores: its limit, what it used of it, and how often it was throttled.

cpu.stat of the control group: version 2 has usage_usec, nr_periods and nr_throttled; version 1 the last two, and the
usage in cpuacct.usage (https://docs.kernel.org/admin-guide/cgroup-v2.html, seen 2026-11).
"""

from pathlib import Path

from toolkit import machine
from toolkit.folders import as_absent, is_file
from toolkit.monitor.kept_file import KeptFile
from toolkit.monitor.source import PERCENT, Rate, column


class Quota:
    """`cpu/all/quota_cores` and `cpu/all/throttled_percent` exist only where the container has a limit."""

    def __init__(self, root: str, now_s: float) -> None:
        top = Path(root)
        self._stat, self._usage = _files(top)
        self._cores = machine.quota_cores(top)
        now = self._counts()
        self._used = Rate(now.get(b"usage", 0.0), now_s)
        self._has_usage = b"usage" in now
        self._periods = (now.get(b"nr_periods", 0.0), now.get(b"nr_throttled", 0.0))
        self._throttled = 0.0
        self.columns = (
            *([column("cpu/container/used_cores", "cores")] if self._has_usage else []),
            *([column("cpu/all/quota_cores", "cores")] if self._cores else []),
            *([column("cpu/all/throttled_percent", PERCENT)] if self._cores else []),
        )

    def values(self, now_s: float) -> list[float]:
        """See SampleSource. The percentage is that of the kernel's periods (100 ms each) in which the limit was
        reached."""
        if not self.columns:
            return []
        now = self._counts()
        values = [self._used.per_s(now.get(b"usage", 0.0), now_s)] if self._has_usage else []
        if self._cores:
            periods, throttled = now.get(b"nr_periods", 0.0), now.get(b"nr_throttled", 0.0)
            if passed := periods - self._periods[0]:
                self._throttled = min(max(100.0 * (throttled - self._periods[1]) / passed, 0.0), 100.0)
                self._periods = (periods, throttled)
            values += [self._cores, self._throttled]
        return values

    def _counts(self) -> dict[bytes, float]:
        """Return the counters; `usage` in seconds."""
        pairs = (line.split() for line in self._stat.read().splitlines()) if self._stat is not None else ()
        counts = {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2}
        if b"usage_usec" in counts:
            counts[b"usage"] = counts[b"usage_usec"] / 1e6
        elif self._usage is not None and (text := self._usage.read()).strip().isdigit():
            counts[b"usage"] = int(text) / 1e9
        return counts


def _files(root: Path) -> tuple[KeptFile | None, KeptFile | None]:
    """Return the files of periods and of usage: of version 2 both are one. The root group has neither a limit nor, in
    the machine's own view, a usage that is the container's."""
    for folder in machine.groups(root, ""):
        if is_file(folder / "cpu.stat", as_absent):
            return KeptFile(folder / "cpu.stat"), None
    stat = next((f / "cpu.stat" for f in machine.groups(root, "cpu") if is_file(f / "cpu.stat", as_absent)), None)
    usage = next(
        (f / "cpuacct.usage" for f in machine.groups(root, "cpuacct") if is_file(f / "cpuacct.usage", as_absent)), None
    )
    return (None if stat is None else KeptFile(stat)), (None if usage is None else KeptFile(usage))
