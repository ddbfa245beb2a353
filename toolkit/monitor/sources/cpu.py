"""The cores of the machine: /proc/stat, whose columns are ticks since the start (proc_stat(5)).

With 64 cores this is the dearest part of a sample (77 us, of which the kernel's part comes on top), so the whole text
is cut once, and the numbers of each kind are taken as a slice over all cores.
"""

from collections.abc import Sequence
from operator import add, sub
from typing import NamedTuple

from toolkit.monitor.kept_file import KeptFile
from toolkit.monitor.source import PERCENT, column
from toolkit.series.column import SampleColumn

# Places in a line after the name: user nice system idle iowait irq softirq steal; the guests' are in user and nice.
_IDLE, _IOWAIT, _COUNTED = 4, 5, 8


class Ticks(NamedTuple):
    """The ticks of the whole machine and of each core in `names` ("all", "core0", ...): in total, unused, waiting."""

    names: tuple[str, ...]
    total: Sequence[int]
    idle: Sequence[int]
    iowait: Sequence[int]


def parse(text: bytes) -> Ticks | None:
    """Return the ticks in *text*, the content of /proc/stat; None if it has another form."""
    tokens = text[: text.find(b"\nintr")].split()
    width = next((index for index, token in enumerate(tokens[1:16], 1) if token.startswith(b"cpu")), len(tokens))
    if width <= _COUNTED or len(tokens) % width or not tokens[0].startswith(b"cpu"):
        return None
    total: Sequence[int] = ()
    kinds = {}
    for place in range(1, _COUNTED + 1):
        ticks = list(map(int, tokens[place::width]))
        total = list(map(add, total, ticks)) if total else ticks
        kinds[place] = ticks
    names = tuple("all" if name == b"cpu" else f"core{name[3:].decode()}" for name in tokens[::width])
    return Ticks(names, total, kinds[_IDLE], kinds[_IOWAIT])


def shares(earlier: Ticks, now: Ticks) -> tuple[list[float], list[float]]:
    """Return the percent of the time between two reads that each of `now.names` was busy, and waited for I/O.

    Idle and waiting times may go back by a tick, and a core that is off has no ticks: both count as 0.
    """
    passed = list(map(sub, now.total, earlier.total))
    idle = map(sub, now.idle, earlier.idle)
    iowait = list(map(sub, now.iowait, earlier.iowait))
    used = [100.0 * (all_ - idle_ - io) / (all_ or 1) for all_, idle_, io in zip(passed, idle, iowait, strict=True)]
    waited = [100.0 * io / (all_ or 1) for all_, io in zip(passed, iowait, strict=True)]
    return _within(used), _within(waited)


def _within(percents: list[float]) -> list[float]:
    """Return *percents*, those out of range cut to 0 and 100."""
    if min(percents) >= 0.0 and max(percents) <= 100.0:
        return percents
    return [min(max(percent, 0.0), 100.0) for percent in percents]


class Cpu:
    """Use and I/O wait of the machine and of each core, in percent."""

    def __init__(self, root: str = "/") -> None:
        self._file = KeptFile(f"{root}/proc/stat")
        self._before = parse(self._file.read())
        self._last: list[float] = []
        self.columns = _columns(self._before)

    def values(self, now_s: float) -> list[float]:
        """See SampleSource."""
        now, earlier = parse(self._file.read()), self._before
        if now is None:
            return [float("nan")] * len(self.columns)
        if earlier is None or earlier.names != now.names:  # A core was switched on or off.
            self.columns = _columns(now)
            self._before, self._last = now, [0.0] * len(self.columns)
            return self._last
        if now.total[0] == earlier.total[0] and self._last:
            return self._last  # Less than a tick has passed.
        used, waited = shares(earlier, now)
        self._before, self._last = now, used + waited
        return self._last


def _columns(ticks: Ticks | None) -> tuple[SampleColumn, ...]:
    names = ticks.names if ticks is not None else ()
    kinds = ("used_percent", "iowait_percent")
    return tuple(column(f"cpu/{name}/{kind}", PERCENT) for kind in kinds for name in names)
