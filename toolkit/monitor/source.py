"""The interface of a source of samples: its columns, and their values now."""

from typing import Protocol

from toolkit.series.column import SampleColumn

NAN = float("nan")
PERCENT, BYTES, BYTES_PER_S = "%", "bytes", "bytes/s"


class SampleSource(Protocol):
    """A part of the machine that is measured. `columns` may change from one sample to the next."""

    @property
    def columns(self) -> tuple[SampleColumn, ...]:
        """The columns that `values` returns values of, in this order."""

    def values(self, now_s: float) -> list[float]:
        """Return the values at *now_s*, seconds of the monotonic clock; NaN where nothing could be measured.

        A rate is that of the time since the last call, the first that since the source was made.
        """


def column(name: str, unit: str = "") -> SampleColumn:
    """Return the column *name*, KIND/NAME/METRIC."""
    return SampleColumn(name=name, unit=unit)


class Rate:
    """The growth per second of a counter. A counter that was reset begins anew."""

    def __init__(self, value: float, now_s: float) -> None:
        self._value, self._at_s = value, now_s

    def per_s(self, value: float, now_s: float) -> float:
        """Return the growth per second since the last call."""
        grown, passed_s = value - self._value, now_s - self._at_s
        self._value, self._at_s = value, now_s
        return grown / passed_s if passed_s > 0 and grown >= 0 else 0.0 if grown >= 0 else NAN
