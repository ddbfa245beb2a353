"""Pure: OpenTelemetry's names for the monitor's columns and the script's metrics (docs/opentelemetry.md).

Names, units and attributes of the semantic conventions 1.44 where they have one, under `toolkit.` where they do not.
"""

import re
from collections.abc import Callable
from functools import cache

from toolkit.records import Record

# The convention's own: a letter, then letters, digits and these; at most 255 characters
# (https://opentelemetry.io/docs/specs/otel/metrics/api/#instrument-name-syntax, seen 2026-11).
_REFUSED = re.compile(r"[^A-Za-z0-9_.\-/]")
MOST = 255
METRIC = "toolkit.metric."
OTHER = "toolkit.system."


class Named(Record, frozen=True, kw_only=True):
    """A column of the monitor under OpenTelemetry's name."""

    name: str
    """The metric's name."""
    unit: str = "1"
    """Its unit, in UCUM."""
    attributes: dict[str, str | int] = {}
    """What distinguishes it from others of that name."""
    scale: float = 1.0
    """The factor from the column's unit."""


_PERCENT = 0.01  # The conventions have fractions; a rank's and a container's use is in cores.
# A column, as a pattern, with what it is called there. Groups become attributes by their names.
_ROWS: tuple[tuple[str, str, str, float, dict[str, str]], ...] = (
    (r"cpu/all/used_percent", "system.cpu.utilization", "1", _PERCENT, {}),
    (r"cpu/core(?P<cpu_logical_number>\d+)/used_percent", "system.cpu.utilization", "1", _PERCENT, {}),
    (r"cpu/container/used_cores", "container.cpu.usage", "{cpu}", 1.0, {}),
    (r"memory/host/used_percent", "system.memory.utilization", "1", _PERCENT, {"system.memory.state": "used"}),
    (r"memory/container/used_bytes", "container.memory.usage", "By", 1.0, {}),
    (r"memory/container/limit_bytes", "toolkit.system.memory.limit", "By", 1.0, {}),
    (r"disk/all/read_bytes_per_s", "toolkit.system.disk.io.rate", "By/s", 1.0, {"disk.io.direction": "read"}),
    (r"disk/all/write_bytes_per_s", "toolkit.system.disk.io.rate", "By/s", 1.0, {"disk.io.direction": "write"}),
    (r"disk/output/free_bytes", "system.filesystem.usage", "By", 1.0, {"system.filesystem.state": "free"}),
    (
        r"network/all/received_bytes_per_s",
        "toolkit.system.network.io.rate",
        "By/s",
        1.0,
        {"network.io.direction": "receive"},
    ),
    (
        r"network/all/sent_bytes_per_s",
        "toolkit.system.network.io.rate",
        "By/s",
        1.0,
        {"network.io.direction": "transmit"},
    ),
    (r"rank/(?P<toolkit_rank>\d+)/cpu_percent", "toolkit.process.cpu.usage", "{cpu}", _PERCENT, {}),
    (r"rank/(?P<toolkit_rank>\d+)/memory_bytes", "process.memory.usage", "By", 1.0, {}),
    (r"rank/(?P<toolkit_rank>\d+)/threads", "process.thread.count", "{thread}", 1.0, {}),
    (r"gpu/(?P<hw_id>\d+)/used_percent", "hw.gpu.utilization", "1", _PERCENT, {"hw.type": "gpu"}),
    (r"gpu/(?P<hw_id>\d+)/memory_used_bytes", "hw.gpu.memory.usage", "By", 1.0, {"hw.type": "gpu"}),
    (r"gpu/(?P<hw_id>\d+)/memory_used_percent", "hw.gpu.memory.utilization", "1", _PERCENT, {"hw.type": "gpu"}),
    (r"gpu/(?P<hw_id>\d+)/power_watts", "hw.power", "W", 1.0, {"hw.type": "gpu"}),
    (r"gpu/(?P<hw_id>\d+)/temperature_celsius", "hw.temperature", "Cel", 1.0, {"hw.type": "gpu"}),
)
_ATTRIBUTES: dict[str, tuple[str, Callable[[str], str | int]]] = {
    "cpu_logical_number": ("cpu.logical_number", int),
    "toolkit_rank": ("toolkit.rank", int),
    "hw_id": ("hw.id", str),
}
_UNITS = {"percent": "%", "bytes": "By", "bytes_per_s": "By/s", "s": "s", "cores": "{cpu}", "mhz": "MHz"}


@cache
def of_column(column: str) -> Named:
    """Return the name of the monitor's *column*."""
    for pattern, name, unit, scale, fixed in _ROWS:
        match = re.fullmatch(pattern, column)
        if match:
            parts = {_ATTRIBUTES[group]: text for group, text in match.groupdict().items()}
            own = {attribute: convert(text) for (attribute, convert), text in parts.items()}
            return Named(name=name, unit=unit, attributes={**fixed, **own}, scale=scale)
    kind, _, rest = column.partition("/")
    subject, _, metric = rest.rpartition("/")
    attributes: dict[str, str | int] = {"toolkit.subject": subject} if subject else {}
    if kind == "rank" and subject.isdecimal():
        attributes = {"toolkit.rank": int(subject)}
    unit = next((unit for ending, unit in _UNITS.items() if metric.endswith(f"_{ending}")), "1")
    return Named(
        name=clean(f"{OTHER}{kind}.{metric}" if metric else f"{OTHER}{kind}"), unit=unit, attributes=attributes
    )


def clean(name: str) -> str:
    """Return a name that OpenTelemetry takes; `Names` shortens it."""
    return _REFUSED.sub("_", name)
