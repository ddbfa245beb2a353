"""`train`'s side of the status pages: reads the pages that ranks write, writes the stop page that they read.

status_pages/layout.py has the bytes. Whatever a script did to the folder, reading it gives None, never an error.
"""

import fcntl
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from toolkit.errors import ContractError
from toolkit.patterns import lazy
from toolkit.records import Record, decode
from toolkit.status_pages import layout as layout

RAISED_FILE_BYTES = 1 << 20
MOST_OTHERS = 256
MOST_TRACED_STEPS = 20
_RANK = lazy(r"rank-([1-9][0-9]{0,9})")
_RAISED = lazy(r"raised-([1-9][0-9]{0,9})\.json")


class StopNotice(Record, frozen=True, kw_only=True):
    """A stop request.

    `requested_at_ns` and `deadline_ns` (SIGKILL) are time.monotonic_ns(), which setting the clock does not change.
    `stop_step`: the step from which every rank stops, None if none is agreed yet, 0 for at once.
    """

    requested_at_ns: int
    deadline_ns: int
    signal: int
    stop_step: int | None = None


class RankStatus(Record, frozen=True, kw_only=True):
    """The last state that one process reported by `toolkit.status`. Times are time.monotonic_ns()."""

    pid: int
    step: int | None = None
    """The last one that it has reached, None before its first heartbeat."""
    step_time_ns: int | None = None
    """The time of that heartbeat."""
    step_ns: int | None = None
    """The time that a step took between the last two heartbeats."""
    heartbeats: int = 0
    """The number of heartbeats so far."""
    progress: float | None = None
    """The share of the work that is done, 0 to 1."""
    holding: int = 0
    """The number of open contexts for checkpoints."""
    holding_since_ns: int | None = None
    """The start of the oldest of them."""


class Thrown(Record, frozen=True, kw_only=True):
    """An exception in the chain of another one."""

    kind: str
    """Its type as Python prints it."""
    message: str = ""
    """The first 8,192 characters of its message."""
    place: str = ""
    """Its innermost frame: "FILE:LINE in FUNCTION"."""
    frames: tuple[str, ...] = ()
    """Its innermost frames, innermost first; of frames of one file in a row only the innermost."""
    link: Literal["", "cause", "context"] = ""
    """Its link to the exception that Python prints after it: "cause" (raise ... from), "context" (it was being
    handled); "" for one that Python does not print."""
    captured_output: str = ""
    """The end of the output of a command that failed, if the script had captured it (CalledProcessError)."""


class Raised(Record, frozen=True, kw_only=True):
    """The exception that ended a process or only a thread of it.

    A SystemExit has the place where sys.exit was called, and its text, if it had one; if an exception was being handled
    there, that one is `handling`, `text` is its traceback, and `behind` is its chain.
    """

    time_ns: int
    """The time at which it was raised: time.monotonic_ns()."""
    kind: str
    """Its type as Python prints it."""
    text: str
    """The whole traceback, chained ones included, at most 64 KiB."""
    message: str = ""
    """As in Thrown; so are the next three."""
    place: str = ""
    frames: tuple[str, ...] = ()
    captured_output: str = ""
    parent: int = 0
    """The process that started this one, 0 if not known."""
    pid: int = 0
    """The process; 0 in the file, whose name has it."""
    thread: Literal["main", "other"] = "main"
    """"main": it ends the process; "other": only a thread."""
    code: int = 1
    """The exit code of the process."""
    handling: Thrown | None = None
    """The exception that was being handled where sys.exit was called."""
    behind: tuple[Thrown, ...] = ()
    """The exceptions that it was raised from, or while they were handled, the first 1,024 characters of each message:
    first those that Python prints, the nearest first (of a long chain its first is the last here), then the others,
    which `raise ... from None` keeps out of `text`."""
    unfinished: str = ""
    """"MPI": a rank that ended with 0 had not called MPI_Finalize."""


def create_stop_page(folder: Path) -> None:
    """Create the stop page without a stop request. Call it before the ranks of each attempt start.

    Raises:
        OSError: it cannot be written.
    """
    fd = os.open(folder / layout.STOP_NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The whole page, never truncated: a rank that has it mapped would die of SIGBUS at a missing byte.
        page = layout.STOP_HEAD.pack(layout.VERSION).ljust(layout.PAGE_BYTES, b"\0")
        written = 0
        while written < len(page):  # The write after a short one raises what kept it short: a full disk, a limit.
            written += os.pwrite(fd, page[written:], written)
    finally:
        os.close(fd)


def write_done(folder: Path, rank: str) -> None:
    """Let ranks see that *rank* ("rank 1 of host algo-1") has ended with 0.

    Raises:
        OSError: it cannot be written.
    """
    new_file = folder / f"{layout.DONE_NAME}.new"
    new_file.write_text(rank)
    new_file.rename(folder / layout.DONE_NAME)


def request_stop(folder: Path, stop: StopNotice) -> None:
    """Write *stop* to the stop page. Call it before sending the signal: a rank that reads it does not die of SIGTERM.

    Call it again when a stop_step is agreed, or with a new deadline.

    Raises:
        OSError: there is no stop page.
    """
    step = layout.NONE if stop.stop_step is None else stop.stop_step
    fd = os.open(folder / layout.STOP_NAME, os.O_RDWR | os.O_CLOEXEC)
    try:
        (count,) = layout.STOP_HEAD.unpack(os.pread(fd, 8, layout.STOP_HEAD.size).ljust(8, b"\0"))
        fields = (count + 1, stop.requested_at_ns, stop.deadline_ns, stop.signal, step, count + 1)
        os.pwrite(fd, layout.STOP_BODY.pack(*fields), layout.STOP_HEAD.size)
    finally:
        os.close(fd)


def create_request_page(folder: Path) -> None:
    """Create the page on which a trace can be requested, without a request. Call it before the ranks start.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / layout.PROFILE_NAME
    if path.write_bytes(bytes(layout.PAGE_BYTES)) != layout.PAGE_BYTES:
        raise OSError(f"{path} is not whole")


def request_trace(folder: Path, *, steps: int, ranks: tuple[int, ...] = (), number: int | None = None) -> int:
    """Ask the ranks of the status folder *folder* to trace their next *steps* (1 to 20); return the request's number.

    *ranks*: one or two of the job's ranks, none for all. A rank begins when its current step ends, and names the
    request's number in its list of windows (docs/profiler.md). A rank that does not end a step never begins. *number*:
    given for a request to all hosts of the job, and then negative; the requests of one host are counted from 1.

    Raises:
        ValueError: more than two ranks, or steps out of range.
        OSError: there is no page: `train` made none, or the job has ended.
    """
    if len(ranks) > 2 or not 1 <= steps <= MOST_TRACED_STEPS:
        raise ValueError(f"expected at most two ranks and 1 to {MOST_TRACED_STEPS} steps, found {ranks}, {steps}")
    rank, other = (ranks[0], ranks[-1]) if ranks else (layout.NONE, layout.NONE)
    fd = os.open(folder / layout.PROFILE_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # The monitor and a person may ask at the same time.
        count, *_ = layout.PROFILE_BODY.unpack(os.pread(fd, layout.PROFILE_BODY.size, 0))
        request = count + 1 if number is None else number
        os.pwrite(fd, layout.PROFILE_BODY.pack(count + 1, request, steps, rank, other, count + 1), 0)
    finally:
        os.close(fd)
    return int(request)


def read_all(folder: Path) -> dict[int, RankStatus]:
    """Return the status of every process in *folder* by pid, those that have ended included."""
    try:
        pids = sorted(int(match[1]) for match in (_RANK.fullmatch(path.name) for path in folder.iterdir()) if match)
    except OSError:
        return {}
    pages = {pid: read_rank(folder / (layout.RANK_NAME % pid)) for pid in pids}
    return {pid: page for pid, page in pages.items() if page is not None and page.pid == pid}


def read_rank(path: Path) -> RankStatus | None:
    """Return the status on the page *path*, None if there is none, or none of this version."""
    fields = _read_rank_fields(path)
    if fields is None:
        return None
    (version, pid), (step, time_ns, step_ns, heartbeats, progress, holding, since_ns) = fields
    if version != layout.VERSION:
        return None
    return RankStatus(
        pid=pid,
        step=_step(step),
        step_time_ns=time_ns or None,
        step_ns=step_ns or None,
        heartbeats=heartbeats,
        progress=progress if progress == progress else None,
        holding=holding,
        holding_since_ns=since_ns or None,
    )


def read_raised(folder: Path, pid: int) -> Raised | None:
    """Return the exception that process *pid* recorded, None if there is none that can be read."""
    text = _read_bytes(folder / (layout.RAISED_NAME % pid), RAISED_FILE_BYTES)
    try:
        return msgspec.structs.replace(decode(text, Raised, "status folder"), pid=pid) if text else None
    except ContractError:
        return None


def read_raised_by_others(folder: Path, known_pids: Collection[int]) -> tuple[Raised, ...]:
    """Return the exceptions that ended other processes than *known_pids*, at most MOST_OTHERS."""
    try:
        names = [_RAISED.fullmatch(path.name) for path in folder.iterdir()]
    except OSError:
        return ()
    pids = [int(match[1]) for match in names if match is not None and int(match[1]) not in known_pids]
    records = (read_raised(folder, pid) for pid in pids[:MOST_OTHERS])
    return tuple(record for record in records if record is not None and record.thread == "main")


def choose_stop_step(ranks: Iterable[RankStatus], now_ns: int, known_ns: int) -> int:
    """Return a stop step that none of *ranks*, read at *now_ns*, will have passed at *known_ns*, when all of them know
    it (both time.monotonic_ns()). 0 (at once) if no rank has sent a heartbeat.

    Pure. *ranks* are those of all hosts. A step may take half the time of the fastest rank's last one.
    """
    beating = [rank for rank in ranks if rank.step is not None]
    pace_ns = min((rank.step_ns for rank in beating if rank.step_ns), default=0) // 2
    return max((_step_at(rank, pace_ns, now_ns, known_ns) for rank in beating), default=-1) + 1


def _step_at(rank: RankStatus, pace_ns: int, now_ns: int, known_ns: int) -> int:
    """Return the step that *rank* can have reached at *known_ns*.

    Counted from now, not from its last heartbeat: a rank does not catch up on steps after a long evaluation.
    """
    step = rank.step or 0
    if not pace_ns:
        return step + 1  # In its first step: its pace is not known.
    next_ns = max(now_ns, (rank.step_time_ns or 0) + pace_ns)
    return step + (1 + (known_ns - next_ns) // pace_ns if next_ns <= known_ns else 0)


# `train` must not block on a fifo in place of a file, nor follow a link.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


def _read_rank_fields(path: Path) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Return the fields of the head and of the newer body (less its counters), None if they are not there."""
    head, body = layout.RANK_HEAD, layout.RANK_BODY
    try:
        fd = os.open(path, _READ)
    except OSError:
        return None
    try:
        start = os.pread(fd, head.size, 0)
        fields = layout.read_newer(lambda: os.pread(fd, 2 * body.size, head.size), body)
    except OSError:
        return None
    finally:
        os.close(fd)
    return None if fields is None else (head.unpack(start), fields)


def _read_bytes(path: Path, limit: int) -> bytes:
    """Return the first *limit* bytes of *path*, none if it cannot be read."""
    try:
        fd = os.open(path, _READ)
    except OSError:
        return b""
    try:
        return os.read(fd, limit)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _step(step: int) -> int | None:
    return None if step < 0 else step
