"""Pressure stall information: the share of time in which tasks waited for cores, memory or I/O.

Of the container's control group (version 2), else of the machine. A line reads
"some avg10=0.00 avg60=0.00 avg300=0.00 total=12345"; `total` counts microseconds, so its growth gives the share of any
interval (https://docs.kernel.org/accounting/psi.html, seen 2026-11). Kernels without it have no such columns.
"""

from pathlib import Path

from toolkit import machine
from toolkit.folders import as_absent, is_file
from toolkit.monitor.kept_file import KeptFile
from toolkit.monitor.source import NAN, PERCENT, Rate, column

_KINDS = (("cpu", "some"), ("memory", "some"), ("memory", "full"), ("io", "some"), ("io", "full"))


def totals(text: bytes) -> dict[str, int]:
    """Return the microseconds of "some" and "full" in *text*."""
    totals_us = {}
    for line in text.splitlines():
        words = line.split()
        if words and words[-1].startswith(b"total="):
            totals_us[words[0].decode()] = int(words[-1][6:])
    return totals_us


class Pressure:
    """Stalls in percent of the time since the last sample."""

    def __init__(self, root: str, now_s: float) -> None:
        files = {kind: _file(Path(root), kind) for kind in ("cpu", "memory", "io")}
        first = {kind: totals(file.read()) for kind, file in files.items() if file is not None}
        self._files = {kind: file for kind, file in files.items() if file is not None and first[kind]}
        self._kinds = [(kind, share) for kind, share in _KINDS if share in first.get(kind, ())]
        self._rates = {(kind, share): Rate(first[kind][share], now_s) for kind, share in self._kinds}
        self.columns = tuple(column(f"pressure/{kind}/{share}_percent", PERCENT) for kind, share in self._kinds)

    def values(self, now_s: float) -> list[float]:
        """See SampleSource."""
        now = {kind: totals(file.read()) for kind, file in self._files.items()}
        return [self._share(kind, share, now[kind].get(share), now_s) for kind, share in self._kinds]

    def _share(self, kind: str, share: str, total: int | None, now_s: float) -> float:
        if total is None:
            return NAN
        return min(self._rates[kind, share].per_s(total, now_s) / 1e4, 100.0)


def _file(root: Path, kind: str) -> KeptFile | None:
    group = next(iter(machine.groups(root, "")), None)
    places = [*([group / f"{kind}.pressure"] if group is not None else []), root / "proc/pressure" / kind]
    return next((KeptFile(place) for place in places if is_file(place, as_absent)), None)
