"""The folder of a host's traces: which windows were traced, of which ranks, and how much of the run that is."""

import re
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from toolkit import files, folders
from toolkit.records import Record

_LISTING = "*_rank-*.json"  # What the profiler writes beside the traces; the traces lie in folders of their own.


class Window(Record, frozen=True, kw_only=True):
    """A trace file of one rank. `file` is below the folder. `request`: the number of the request it answers.

    `first_step`, `last_step`: None without steps. `start_s`, `end_s`: seconds since the epoch, 0: not known.
    """

    file: str
    reason: str = ""
    request: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    steps: int = 0
    start_s: float = 0.0
    end_s: float = 0.0


class Listing(Record, frozen=True, kw_only=True):
    """What one rank has traced. `steps_run`: all of its steps, so that `steps_traced` is known as a share of them."""

    rank: int
    host: str = ""
    world_size: int = 1
    framework: str = ""
    steps_run: int = 0
    steps_traced: int = 0
    windows: tuple[Window, ...] = ()


class TraceFile(Record, frozen=True, kw_only=True):
    """A trace and what is known of it. `group`: the same for the ranks that traced the same window."""

    path: Path
    group: str
    rank: int | None
    window: Window


def listings(folder: Path) -> tuple[Listing, ...]:
    """Return what each rank says of its traces in *folder*, by rank. A file that is half written is skipped."""
    found = []
    for path in folders.matching(folder, _LISTING, folders.named_elsewhere):
        try:
            found.append(msgspec.json.decode(files.read(path), type=Listing))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return tuple(sorted(found, key=lambda listing: listing.rank))


def _written_s(path: Path) -> float | None:
    """Return when the file was last written; None: it is gone, or no regular file."""
    try:
        found = folders.status(path)
    except OSError:
        return None
    return found.st_mtime if found is not None and stat.S_ISREG(found.st_mode) else None


def trace_files(folder: Path, known: Sequence[Listing]) -> tuple[TraceFile, ...]:
    """Return the traces in *folder* by time, then rank: those that *known* lists, and others that lie there."""
    found = [
        TraceFile(path=folder / window.file, group=str(Path(window.file).parent), rank=listing.rank, window=window)
        for listing in known
        for window in listing.windows
        if folders.is_file(folder / window.file, folders.as_absent) and _is_trace(window.file)
    ]
    listed = {each.path for each in found}
    paths = (Path(entry.path) for entry in folders.walk(folder, folders.named_elsewhere) if ".json" in entry.name)
    for path in sorted(paths):
        if path not in listed and _is_trace(path.name) and not path.match(_LISTING):
            written_s = _written_s(path)
            if written_s is None:
                continue
            named = re.search(r"rank[-_.]?(\d+)", path.name)
            group = str(path.parent.relative_to(folder))
            rank = int(named[1]) if named else None
            window = Window(file=str(path.relative_to(folder)), start_s=written_s)
            found.append(TraceFile(path=path, group=group, rank=rank, window=window))
    return tuple(sorted(found, key=lambda each: (each.window.start_s, -1 if each.rank is None else each.rank)))


def _is_trace(name: str) -> bool:
    return name.endswith((".json", ".json.gz"))
