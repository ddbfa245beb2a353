"""Reads the traces for a report: the newest window of all ranks, and pairs of ranks that one request named."""

import re

from toolkit.commands.jobs.data import JobData
from toolkit.errors import UserError
from toolkit.records import Record
from toolkit.traces import chrome, folder
from toolkit.traces.chrome import ChromeTrace
from toolkit.traces.folder import Listing, TraceFile

# A trace of 20 steps takes some 0.4 s to read: a page must not take a minute for a thousand ranks.
MOST_RANKS = 8
MOST_PAIRS = 3
# The host, "" for all; the request's number; the attempt.
_Request = tuple[str, int, int]


class TracePair(Record, frozen=True, kw_only=True):
    """The traces of two ranks that one request asked for."""

    window: str
    """The name of the first rank's window."""
    first: ChromeTrace
    """The trace of the rank whose window began first."""
    second: ChromeTrace
    """The trace of the other rank."""
    first_rank: int
    """The rank of `first`."""
    second_rank: int
    """The rank of `second`."""
    first_host: str
    """The host of `first`."""
    second_host: str
    """The host of `second`."""
    attempt: int = 0
    """The attempt of the ranks, 0 for the first."""

    def of(self, slow: int, host: str) -> "tuple[ChromeTrace, ChromeTrace, int] | None":
        """Return the trace of the rank *slow* of *host*, that of the other rank, and that rank; None: another pair."""
        if (slow, host) == (self.first_rank, self.first_host):
            return self.first, self.second, self.second_rank
        if (slow, host) == (self.second_rank, self.second_host):
            return self.second, self.first, self.first_rank
        return None


class TracedJob(Record, frozen=True, kw_only=True):
    """The traces of a job that its page shows."""

    listings: tuple[Listing, ...] = ()
    """The list of traces of each rank."""
    window: str = ""
    """The name of the window that is shown."""
    traces: tuple[ChromeTrace, ...] = ()
    """The traces of its ranks, at most MOST_RANKS."""
    ranks: int = 0
    """The number of ranks that traced it."""
    pairs: tuple[TracePair, ...] = ()
    """The requests that exactly two ranks answered, by time."""
    unread: tuple[str, ...] = ()
    """Why files could not be used."""


def read_traces(job: JobData) -> TracedJob:
    """Return the traces of *job*."""
    listings: list[Listing] = []
    groups: dict[str, list[TraceFile]] = {}
    requests: dict[_Request, list[tuple[str, TraceFile]]] = {}
    for host in job.hosts:
        host_listings = folder.read_listings(host.traces)
        listings += host_listings
        for trace_file in folder.find_trace_files(host.traces, host_listings):
            groups.setdefault(trace_file.group, []).append(trace_file)
            if trace_file.window.request is not None:  # A restarted attempt counts its requests from 1 again.
                attempt = int((re.findall(r"_attempt-(\d+)", trace_file.path.name) or ["0"])[0])
                host_key = host.name if trace_file.window.request > 0 else ""  # Negative: asked for on all hosts.
                requests.setdefault((host_key, trace_file.window.request, attempt), []).append((host.name, trace_file))
    unread: list[str] = []
    newest = _choose_group(groups)
    files = groups.get(newest, [])
    return TracedJob(
        listings=tuple(listings),
        window=newest,
        traces=tuple(trace for file in files[:MOST_RANKS] if (trace := _read_trace(file, unread)) is not None),
        ranks=len(files),
        pairs=_read_pairs(requests, unread),
        unread=tuple(unread),
    )


def _choose_group(groups: dict[str, list[TraceFile]]) -> str:
    """Return the group that says most of the job: of the most ranks; then one that the job asked for, not a request for
    a slow rank; then the newest."""
    return max(
        groups,
        key=lambda name: (len(groups[name]), groups[name][0].window.request is None, groups[name][-1].window.start_s),
        default="",
    )


def _read_pairs(requests: dict[_Request, list[tuple[str, TraceFile]]], unread: list[str]) -> tuple[TracePair, ...]:
    """Return the newest pairs. The windows of the two may differ by a step: each rank begins when its step ends."""
    requested = [
        (attempt, files)
        for (_, _, attempt), files in requests.items()
        if len(files) == len({file.rank for _, file in files}) == 2
    ]
    pairs = []
    for attempt, files in sorted(requested, key=lambda request: request[1][1][1].window.start_s)[-MOST_PAIRS:]:
        (first_host, first_file), (second_host, second_file) = sorted(
            files, key=lambda host_file: host_file[1].window.start_s
        )
        first, second = _read_trace(first_file, unread), _read_trace(second_file, unread)
        if first is None or second is None or first_file.rank is None or second_file.rank is None:
            continue
        pairs.append(
            TracePair(
                window=first_file.group,
                first=first,
                second=second,
                first_rank=first_file.rank,
                second_rank=second_file.rank,
                first_host=first_host,
                second_host=second_host,
                attempt=attempt,
            )
        )
    return tuple(pairs)


def _read_trace(file: TraceFile, unread: list[str]) -> ChromeTrace | None:
    try:
        return chrome.read(file.path)
    except (UserError, OSError) as error:
        unread.append(str(error))
        return None
