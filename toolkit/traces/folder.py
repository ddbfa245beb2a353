"""The folder of a host's traces: the traced windows of each rank, and their share of the run."""

import re
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from toolkit import files, folders
from toolkit.records import Record

_LISTING = "*_rank-*.json"  # The profiler writes them beside the traces, which lie in folders of their own.


class TraceWindow(Record, frozen=True, kw_only=True):
    """A trace file of one rank."""

    file: str
    """The path below the folder."""
    reason: str = ""
    """The reason for which it was traced, as in TracedWindow."""
    request: int | None = None
    """The number of the request that asked for it."""
    first_step: int | None = None
    """The first step; None without steps."""
    last_step: int | None = None
    """The last step; None without steps."""
    steps: int = 0
    """The number of steps."""
    start_s: float = 0.0
    """The begin, seconds since the epoch; 0 if not known."""
    end_s: float = 0.0
    """The end, seconds since the epoch; 0 if not known."""


class Listing(Record, frozen=True, kw_only=True):
    """The list of one rank's traces."""

    rank: int
    """The rank."""
    host: str = ""
    """The name of its host."""
    world_size: int = 1
    """The number of ranks of the job."""
    framework: str = ""
    """The framework that was traced, such as "pytorch"."""
    steps_run: int = 0
    """The steps that the rank ran."""
    steps_traced: int = 0
    """The steps that were traced."""
    windows: tuple[TraceWindow, ...] = ()
    """The traces, in order of time."""


class TraceFile(Record, frozen=True, kw_only=True):
    """A trace file with its rank and window. `group` is equal for the ranks that traced the same window."""

    path: Path
    group: str
    rank: int | None
    window: TraceWindow


def read_listings(folder: Path) -> tuple[Listing, ...]:
    """Return each rank's list of its traces in *folder*, by rank. A file that is half written is skipped."""
    listings = []
    for path in folders.matching(folder, _LISTING, folders.named_elsewhere):
        try:
            listings.append(msgspec.json.decode(files.read(path), type=Listing))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return tuple(sorted(listings, key=lambda listing: listing.rank))


def _written_s(path: Path) -> float | None:
    """Return the time at which the file was last written; None if it is gone, or not a regular file."""
    try:
        status = folders.status(path)
    except OSError:
        return None
    return status.st_mtime if status is not None and stat.S_ISREG(status.st_mode) else None


def find_trace_files(folder: Path, listings: Sequence[Listing]) -> tuple[TraceFile, ...]:
    """Return the traces in *folder* by time, then rank: those in *listings*, and others in the folder."""
    trace_files = [
        TraceFile(path=folder / window.file, group=str(Path(window.file).parent), rank=listing.rank, window=window)
        for listing in listings
        for window in listing.windows
        if folders.is_file(folder / window.file, folders.as_absent) and _is_trace(window.file)
    ]
    listed = {trace_file.path for trace_file in trace_files}
    paths = (Path(entry.path) for entry in folders.walk(folder, folders.named_elsewhere) if ".json" in entry.name)
    for path in sorted(paths):
        if path not in listed and _is_trace(path.name) and not path.match(_LISTING):
            written_s = _written_s(path)
            if written_s is None:
                continue
            rank_in_name = re.search(r"rank[-_.]?(\d+)", path.name)
            group = str(path.parent.relative_to(folder))
            rank = int(rank_in_name[1]) if rank_in_name else None
            window = TraceWindow(file=str(path.relative_to(folder)), start_s=written_s)
            trace_files.append(TraceFile(path=path, group=group, rank=rank, window=window))
    return tuple(
        sorted(
            trace_files,
            key=lambda trace_file: (trace_file.window.start_s, -1 if trace_file.rank is None else trace_file.rank),
        )
    )


def _is_trace(name: str) -> bool:
    return name.endswith((".json", ".json.gz"))
