"""Merges the traces of several ranks into one file, with their clocks aligned and each process named by its rank.

The ranks of one host share its clock. Hosts do not: in synchronous training all ranks leave a step together, so that
the clock of a host is off by the median difference of its steps' ends from those of the first host.
"""

import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from toolkit.records import Record
from toolkit.traces import chrome

STEP = re.compile(r"ProfilerStep#(\d+)")
# Of fewer steps in common, no difference of clocks is derived.
FEWEST_STEPS = 3
# Events by which arrows are drawn: their number is one of their own file.
FLOWS = ("s", "t", "f")
PIDS_OF_RANK = 1000


class RankTrace(Record, frozen=True, kw_only=True):
    """The trace file of one rank of one host."""

    path: Path
    host: str
    rank: int


class _Content(msgspec.Struct):
    """The fields of a trace file that a merged file needs; the events as they are."""

    events: list[dict[str, Any]] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)


def write_merged(traces: Sequence[RankTrace], target: Path) -> Mapping[str, float]:
    """Write *traces* as one gzipped trace to *target*; return by which each host's clock was corrected, in seconds.

    Raises:
        UserError: a file is not a trace, or it is cut off.
        OSError: a file cannot be read or written.
    """
    ends = {trace: list_step_ends(chrome.read(trace.path)) for trace in traces}
    offsets_s = estimate_offsets(ends)
    base_ns, separator = 0, b""
    part = target.with_name(f".{target.name}.part")
    try:
        with gzip.open(part, "wb", compresslevel=1) as file:
            for number, trace in enumerate(sorted(traces, key=lambda trace: (trace.rank, trace.host))):
                content = read_content(trace.path)
                if number == 0:
                    base_ns = content.base_ns
                    file.write(b'{"schemaVersion":1,"baseTimeNanoseconds":%d,"traceEvents":[' % base_ns)
                shift_us = (content.base_ns - base_ns) / 1e3 - offsets_s[trace.host] * 1e6
                events = msgspec.json.encode(list(rename_events(content.events, trace, number, shift_us)))
                file.write(separator + events[1:-1])
                separator = b"," if len(events) > len(b"[]") else separator
            file.write(b"]}")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return offsets_s


def read_content(path: Path) -> _Content:
    """Return the events of the trace at *path*, which `chrome.read` has read without an error."""
    text = chrome.read_unpacked(path)
    if text.lstrip()[:1] == b"[":
        return _Content(msgspec.json.decode(text, type=list[dict[str, Any]]))
    return msgspec.json.decode(text, type=_Content)


def list_step_ends(trace: chrome.ChromeTrace) -> dict[int, float]:
    """Return the end of each whole step in *trace*, by its number, in seconds since the epoch."""
    matches = ((STEP.fullmatch(event.name), event) for event in trace.events)
    return {int(match[1]): trace.base_s + event.end / 1e6 for match, event in matches if match}


def estimate_offsets(ends: Mapping[RankTrace, Mapping[int, float]]) -> dict[str, float]:
    """Return by how many seconds the clock of each host is ahead of that of the first host, from the *ends* of steps.

    0 where it cannot be told: too few steps in common, or differences that vary more than they are large.
    """
    offsets_s: dict[str, float] = {}
    first = min(ends, key=lambda trace: (trace.rank, trace.host), default=None)
    for trace, own in sorted(ends.items(), key=lambda row: (row[0].rank, row[0].host)):
        if trace.host in offsets_s or first is None:
            continue
        differences = [own[step] - ends[first][step] for step in own.keys() & ends[first].keys()]
        offsets_s[trace.host] = 0.0
        if trace.host != first.host and len(differences) >= FEWEST_STEPS:
            offset_s = median(differences)
            if median(abs(difference - offset_s) for difference in differences) < abs(offset_s) / 2:
                offsets_s[trace.host] = offset_s
    return offsets_s


def rename_events(
    events: Sequence[dict[str, Any]], trace: RankTrace, number: int, shift_us: float
) -> Iterator[dict[str, Any]]:
    """Yield *events* of the file *number*, later by *shift_us*, with processes and arrows that no other file has."""
    pids: dict[Any, int] = {}
    for event in events:
        if "pid" in event:
            pid = pids.setdefault(event["pid"], number * PIDS_OF_RANK + len(pids))
            event = {**event, "pid": pid}
        if isinstance(event.get("ts"), int | float):
            event["ts"] = event["ts"] + shift_us
        if event.get("ph") in FLOWS and "id" in event:
            event["id"] = f"{number}-{event['id']}"
        if event.get("ph") != "M" or event.get("name") not in ("process_name", "process_sort_index"):
            yield event
    for own_pid, pid in pids.items():
        name = f"rank {trace.rank} of {trace.host}"
        part = own_pid if isinstance(own_pid, str) else ""  # Kineto's own "Spans" and "Traces", TensorFlow's devices.
        yield _make_metadata("process_name", pid, "name", f"{name}: {part}" if part else name)
        yield _make_metadata("process_sort_index", pid, "sort_index", pid)


def _make_metadata(
    name: Literal["process_name", "process_sort_index"], pid: int, key: str, value: object
) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": 0, "ts": 0, "args": {key: value}}
