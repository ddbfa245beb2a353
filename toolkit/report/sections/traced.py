"""The traces that a report shows: the newest window of all ranks, and pairs of a slow and a healthy rank."""

from toolkit.errors import UserError
from toolkit.jobs.data import JobData
from toolkit.records import Record
from toolkit.traces import chrome, folder
from toolkit.traces.chrome import Trace
from toolkit.traces.folder import Listing, TraceFile

# A trace of 20 steps takes some 0.4 s to read: a page must not take a minute for a thousand ranks.
MOST_RANKS = 8
MOST_PAIRS = 3


class Traced(Record, frozen=True, kw_only=True):
    """What was traced. `window`: the name of the newest window; `traces`: of its ranks, at most MOST_RANKS.

    `ranks`: how many traced it. `pairs`: windows that exactly two ranks were asked for. `unread`: why
    files could not be used.
    """

    listings: tuple[Listing, ...] = ()
    window: str = ""
    traces: tuple[Trace, ...] = ()
    ranks: int = 0
    pairs: tuple[tuple[str, Trace, Trace], ...] = ()
    unread: tuple[str, ...] = ()


def read(job: JobData) -> Traced:
    """Return the traces of *job*."""
    listings: list[Listing] = []
    groups: dict[str, list[TraceFile]] = {}
    for host in job.hosts:
        known = folder.listings(host.traces)
        listings += known
        for each in folder.trace_files(host.traces, known):
            groups.setdefault(each.group, []).append(each)
    unread: list[str] = []
    newest = max(groups, key=lambda name: groups[name][-1].window.start_s, default="")
    pairs = []
    for name, files in groups.items():
        if len(files) == 2 and files[0].window.request is not None:
            both = [trace for file in files if (trace := _trace(file, unread)) is not None]
            if len(both) == 2:
                pairs.append((name, both[0], both[1]))
    wide = [name for name in groups if len(groups[name]) == max(map(len, groups.values()))]
    if wide and newest not in wide:  # A window of two ranks says less of the job than one of all.
        newest = max(wide, key=lambda name: groups[name][-1].window.start_s)
    files = groups.get(newest, [])
    return Traced(
        listings=tuple(listings),
        window=newest,
        traces=tuple(trace for file in files[:MOST_RANKS] if (trace := _trace(file, unread)) is not None),
        ranks=len(files),
        pairs=tuple(pairs[-MOST_PAIRS:]),
        unread=tuple(unread),
    )


def _trace(file: TraceFile, unread: list[str]) -> Trace | None:
    try:
        return chrome.read(file.path)
    except (UserError, OSError) as error:
        unread.append(str(error))
        return None
