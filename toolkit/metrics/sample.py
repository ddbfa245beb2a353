"""One captured value, and what counts as a number."""

from toolkit.records import Record


class Sample(Record, frozen=True, kw_only=True):
    """A value of a metric."""

    name: str  # The metric's name.
    value: float  # May be NaN or infinite.
    time_s: float  # Seconds since the epoch.
    host: str  # The host's name.
    rank: int | None = None  # None: the host's ranks cannot be distinguished.
    step: int | None = None  # None: not known from the log.


def number(text: str | None) -> float | None:
    """Return *text* as a float, None if it is not one: what Python's `float` takes, "nan", "inf", "Infinity" and
    "1_000" included. "1,000" (in half of the world 1.0), "12%" and "3.4k" are none.
    """
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def whole(value: float | None) -> int | None:
    """Return *value* as a step, None if it is not a whole number (or too large to be counted exactly)."""
    if value is None or not -(2.0**53) <= value <= 2.0**53 or value != int(value):
        return None
    return int(value)


def json_value(value: float) -> float | str:
    """Return *value*; "NaN", "Infinity" or "-Infinity" for one that JSON has no number for."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value
