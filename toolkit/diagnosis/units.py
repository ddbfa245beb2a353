"""Measured values as people read them: "54 ms", "3 min 20 s", "5.44 GiB", "7.51 MB/s"."""

import math

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
_BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("bytes/s", "kB/s", "MB/s", "GB/s", "TB/s")


def format_seconds(seconds: float) -> str:
    """Return "54 ms", "1.4 s", "3 min 20 s", "2 h 05 min", "1 d 3 h"."""
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds < 0.9995:
        return f"{_round(seconds * 1000)} ms" if seconds else "0 s"
    if seconds < MINUTE - 0.05:
        return f"{_round(seconds) if seconds < 10 else f'{seconds:.1f}'.removesuffix('.0')} s"
    if seconds < HOUR:
        whole = round(seconds)
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    if seconds < DAY:
        return f"{int(seconds // HOUR)} h {int(seconds % HOUR // MINUTE):02d} min"
    return f"{int(seconds // DAY)} d {int(seconds % DAY // HOUR)} h"


def format_bytes(size: float) -> str:
    """Return "5.44 GiB", "an unknown size" for NaN."""
    return _scaled(size, 1024, _BINARY) if math.isfinite(size) else "an unknown size"


def format_value(value: float, unit: str) -> str:
    """Return *value*, measured in *unit* as numbers of findings have it, with the unit that reads best."""
    if unit == "s":
        return format_seconds(value)
    if unit == "percent":
        return f"{_round(value)} %"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "bytes/s":
        return _scaled(value, 1000, _DECIMAL)
    return f"{_round(value)} {unit}".rstrip()


def ordinal(count: int) -> str:
    """Return "2nd", "11th"."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th") if count % 100 not in (11, 12, 13) else "th"
    return f"{count}{ending}"


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    place = 0
    while abs(value) >= 0.9995 * step and place < len(units) - 1:
        value /= step
        place += 1
    return f"{value:,.0f} {units[place]}" if place == 0 else f"{_round(value)} {units[place]}"


def _round(value: float) -> str:
    """Return *value* with three digits and no exponent where people do without: "0.054", "12.3", "1,234"."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:.3g}"
