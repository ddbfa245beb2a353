"""Finds the start and the end of a job in its hosts' files, for jobs without a platform's report."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from toolkit import files, folders
from toolkit.commands.jobs.data import HostData
from toolkit.metrics.file import decoded
from toolkit.series.debugger_names import files_of

TAIL_BYTES = 65_536


def span(hosts: Sequence[HostData]) -> tuple[float | None, float | None]:
    """Return the first and the last time (seconds since the epoch) in the files of *hosts*; None: there is none."""
    times_s = [time_s for host in hosts for time_s in _read_times(host)]
    return (min(times_s), max(times_s)) if times_s else (None, None)


def last_written_s(folder: Path) -> float:
    """Return when a file in *folder*, or one of its monitor, was last written; 0 if there is none."""
    written_s = []
    for watched in (folder, folder / "monitor", folder / "monitor" / "samples", folder / "monitor" / "steps"):
        for path in (watched, *folders.matching(watched, "*", folders.named_elsewhere)):
            try:
                written_s.append(path.stat().st_mtime)
            except OSError:
                pass  # It is not there, or a file went away meanwhile.
    return max(written_s, default=0.0)


def _read_times(host: HostData) -> Iterator[float]:
    if host.outcome is not None:
        for process in host.outcome.exits:
            yield from (at_ns / 1e9 for at_ns in (process.started_ns, process.ended_ns) if at_ns > 0)
    try:
        with files.opened(host.metrics) as file:
            yield from (sample.time_s for sample in decoded(file.readlines(TAIL_BYTES)[:1]))
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            yield from (sample.time_s for sample in decoded(file.readlines()[-2:]))
    except OSError:
        pass  # It captured nothing.
    try:
        document = msgspec.json.decode(files.read(host.monitor / "monitor.json"))
        if isinstance(document, dict) and isinstance(document.get("start_s"), int | float):
            yield float(document["start_s"])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # The monitor was off.
    newest = last_written_s(host.output)
    if newest and host.outcome is None and host.is_monitored:
        yield newest
    if not host.is_monitored:
        yield from _read_debugger_times(host)


def _read_debugger_times(host: HostData) -> Iterator[float]:
    """Yield the times of the first and the last whole line in SageMaker Debugger's files of *host*."""
    paths = files_of(host.output).get(host.name, ())
    for path, index in ((paths[0], 0), (paths[-1], -1)) if paths else ():
        try:
            line = files.read(path, files.RECORDS_BYTES).rpartition(b"\n")[0].split(b"\n")[index]
            record = msgspec.json.decode(line)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # The other end is still known.
        if isinstance(record, dict) and isinstance(record.get("Timestamp"), int | float):
            yield float(record["Timestamp"])
