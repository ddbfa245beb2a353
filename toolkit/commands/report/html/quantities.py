"""Numbers and units for the eye. static/units.js does the same for what is computed in the browser."""

import math
from datetime import datetime, timezone
from functools import cache

from toolkit.records import Record

_BINARY = (("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("TiB", 2.0**40))
_SHORT = (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0))
_DECIMAL = (("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))
# The units that builders write, each with what a page shows, and the other units it may show instead, ascending.
_UNITS: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "percent": ("%", ()),
    "bytes": ("bytes", _BINARY),
    "B": ("bytes", _BINARY),
    "bytes/s": ("B/s", tuple((f"{name}/s", size) for name, size in _DECIMAL)),
    "B/s": ("B/s", tuple((f"{name}/s", size) for name, size in _DECIMAL)),
    "bytes_per_s": ("B/s", tuple((f"{name}/s", size) for name, size in _DECIMAL)),
    "s": ("s", _SHORT),
    "celsius": ("°C", ()),
    "watts": ("W", ()),
    "mhz": ("MHz", ()),
}


class Scale(Record, frozen=True, kw_only=True):
    """A unit as a page shows it: a value divided by `divisor`, followed by `label`."""

    label: str
    divisor: float = 1.0


@cache
def scale(unit: str, top: float) -> Scale:
    """Return the unit in which values up to *top* read best: "bytes" up to 8e10 are GiB."""
    label, others = _UNITS.get(unit, (unit, ()))
    fitting = [Scale(label=name, divisor=size) for name, size in others if abs(top) >= size]
    return fitting[-1] if fitting else Scale(label=label)


def number(value: float | int | None) -> str:
    """Return *value* with about four digits, "1,234" or "0.0123"; a whole number in full; a gap as a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return _use_minus_sign(f"{int(value):,}")
    size = abs(value)
    if size >= 1e9 or size < 1e-4:
        return _use_minus_sign(f"{value:.3g}")
    decimals = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3 - math.floor(math.log10(size))
    text = f"{value:,.{decimals}f}"
    return _use_minus_sign(text.rstrip("0") if size < 1 else text)


def moment(seconds: float) -> str:
    """Return seconds since the epoch as "2026-11-23 03:12:05 UTC"."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


def clock(seconds: float) -> str:
    """Return 3725.2 as "1:02:05", a duration."""
    minutes, rest = divmod(round(abs(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{'−' if seconds < 0 else ''}{hours}:{minutes:02}:{rest:02}"


def _use_minus_sign(text: str) -> str:
    return text.replace("-", "−", 1) if text.startswith("-") else text
