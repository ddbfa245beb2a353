"""Times, sizes and names as a report writes them. All times of day are UTC, and say so."""

from datetime import datetime, timezone

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


def format_utc(at_s: float) -> str:
    """Return "2026-01-31 12:00:00 UTC"; "at an unknown time" for what no calendar has, as a damaged file may say."""
    try:
        return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"


def format_duration(seconds: float) -> str:
    """Return *seconds* for reading: "0.25 s", "12.5 s", "3 min 20 s", "2 h 05 min", "1 d 3 h"."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < MINUTE:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.1f} s"
    if seconds < HOUR:
        return f"{int(seconds // MINUTE)} min {int(seconds % MINUTE):02d} s"
    if seconds < DAY:
        return f"{int(seconds // HOUR)} h {int(seconds % HOUR // MINUTE):02d} min"
    return f"{int(seconds // DAY)} d {int(seconds % DAY // HOUR)} h"


def format_number(value: float | None) -> str:
    """Return *value* with four significant digits, "?" for None; large numbers with separators."""
    if value is None:
        return "?"
    if value == value and abs(value) >= 10_000 and abs(value) != float("inf"):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def count_words(count: int, singular: str, plural: str = "") -> str:
    """Return "1 host", "2,000 hosts"; *plural* is an irregular plural of *singular*."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def format_size(count: float) -> str:
    """Return a number of bytes as "1.5 GiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.2f} {unit}"
        count /= 1024
    raise AssertionError  # The loop returns at its last unit.


def first_line(text: str) -> str:
    """Return the first line of *text* that says something, "" if there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
