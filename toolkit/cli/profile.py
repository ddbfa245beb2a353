"""`toolkit profile`: let the ranks of a running job trace their next steps, or merge the traces of a job."""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.parser import Parser, whole
from toolkit.errors import UserError
from toolkit.folders import is_dir
from toolkit.log import Log

if TYPE_CHECKING:
    from toolkit.traces.windows import TracedWindow
    from toolkit.train.probe.ranks import RunningHost

EPILOG = """\
Without JOB, the job of this container is meant: docker exec CONTAINER toolkit profile --steps 5
Each rank that is asked begins when its current step ends. The traces are Chrome's JSON, gzipped; Perfetto
(https://ui.perfetto.dev) opens them. To read more: toolkit docs profiler
"""
LOOK_S = 0.2


def add(parser: Parser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        default="",
        help="a job of toolkit run: its name or folder (default: see below)",
    )
    parser.add_argument("--steps", metavar="N", type=whole, default=5, help="how many steps, 1 to 20 (default: 5)")
    parser.add_argument("--ranks", metavar="R[,R]", default="", help="one or two ranks (default: all)")
    parser.add_argument(
        "--merge",
        metavar="FILE",
        type=Path,
        help="ask for nothing; write the traces that most ranks have of one window, the newest such, to this file"
        " (.json.gz), with their clocks aligned; the job may have ended",
    )
    parser.add_argument("--wait", metavar="S", type=whole, default=60, help="seconds to wait for traces (default: 60)")


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Ask for the traces and print their paths as they appear; return 1 if one does not come in time."""
    from toolkit.status_pages.pages import MOST_TRACED_STEPS, request_trace

    ranks = _parse_ranks(arguments.ranks)
    if arguments.merge is not None:
        from toolkit.commands.simulate.catalogue import folder_of

        job = folder_of(arguments.job, os.environ, Path.cwd()) if arguments.job else _find_base("")
        return _merge(job, ranks, arguments.merge, log)
    if not 1 <= arguments.steps <= MOST_TRACED_STEPS:
        raise UserError(
            f"expected 1 to {MOST_TRACED_STEPS} steps, found {arguments.steps}",
            hint="A trace takes memory in each step.",
        )
    below = _find_base(arguments.job)
    hosts = _find_hosts(below, ranks)
    missing = set()
    requests = {}
    for host in hosts:
        try:
            requests[host] = request_trace(host.status, steps=arguments.steps, ranks=ranks)
        except PermissionError as error:
            raise _make_user_error(error.filename or host.status, (host.status.owner(),)) from None
        except OSError:
            raise UserError("the job has just ended", where=str(below)) from None
        missing |= {(host, rank) for rank in host.ranks if not ranks or rank in ranks}
    deadline_s = time.monotonic() + arguments.wait
    while missing and time.monotonic() < deadline_s and any(is_dir(host.status) for host in hosts):
        time.sleep(LOOK_S)
        missing -= _print_traces(missing, requests)
    missing -= _print_traces(missing, requests)
    if not missing:
        return 0
    names = ", ".join(str(rank) for rank in sorted(rank for _, rank in missing))
    if not any(is_dir(host.status) for host in hosts):
        log.error(f"rank {names}: the job ended before the trace was written")
        return 1
    log.error(
        f"rank {names}: no trace within {arguments.wait} s. The request stands until the rank ends a step. A loop"
        " without a torch optimizer, Keras, smppy.annotate or heartbeats has no steps: then set"
        ' TOOLKIT_PROFILE="seconds 60-75" before the job starts'
    )
    return 1


def _merge(below: Path, ranks: tuple[int, ...], target: Path, log: Log) -> int:
    """Write the traces of one window of *ranks*, all if there are none, of the job *below* to *target*."""
    from toolkit.commands import jobs
    from toolkit.traces import folder, merging

    groups: dict[str, list[merging.RankTrace]] = {}
    for host in jobs.read(below).hosts:
        for trace_file in folder.find_trace_files(host.traces, folder.read_listings(host.traces)):
            if trace_file.rank is not None and (not ranks or trace_file.rank in ranks):
                groups.setdefault(trace_file.group, []).append(
                    merging.RankTrace(path=trace_file.path, host=host.name, rank=trace_file.rank)
                )
    if not groups:
        raise UserError(
            "expected traces of ranks, found none",
            where=str(below),
            hint="Let them trace: toolkit profile JOB while it runs, or TOOLKIT_PROFILE before it starts.",
        )
    group, traces = max(reversed(groups.items()), key=lambda item: len(item[1]))  # Of equal ones the newest.
    try:
        offsets_s = merging.write_merged(traces, target)
    except OSError as error:
        where = str(error.filename or target)
        raise UserError(
            f"it cannot be read or written ({error.strerror})", where=where, hint="Name another file."
        ) from None
    for name, offset_s in offsets_s.items():
        if offset_s:
            log.info(f"the clock of {name} was {offset_s * 1e3:.3g} ms off by the ends of steps, and is corrected")
    print(f"{group}: {len(traces)} ranks: {target}")
    return 0


def _parse_ranks(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) > 2 or not all(word.isascii() and word.isdigit() for word in words):
        raise UserError(f"expected one or two ranks, as 0 or 0,3, found {text!r}", where="--ranks")
    return tuple(int(word) for word in words)


def _find_base(job: str) -> Path:
    """Return the folder below which the job's output is."""
    if job:
        from toolkit.commands.simulate import catalogue

        return catalogue.find(job, os.environ, Path.cwd())
    from toolkit.train.platforms import table as platforms

    environ = dict(os.environ)
    return platforms.detect(environ).folders(environ).base


def _find_hosts(below: Path, ranks: tuple[int, ...]) -> "list[RunningHost]":
    from toolkit.train.probe.ranks import find_hidden_users, find_running_hosts

    running_hosts = find_running_hosts(below)
    if not running_hosts and (users := find_hidden_users()):
        raise _make_user_error(below, users)
    if not running_hosts:
        raise UserError(
            "expected a running job, found no rank of one",
            where=str(below),
            hint="Name the job (`toolkit jobs` lists those of toolkit run), or run this in the job's container.",
        )
    armed = [host for host in running_hosts if host.traces]
    if not armed:
        raise UserError(
            "the ranks of this job do not watch for requests",
            where=str(below),
            hint="Start the job with TOOLKIT_MONITOR=1, which toolkit run sets, and without TOOLKIT_RANK_HOOK=off.",
        )
    running_ranks = sorted({rank for host in armed for rank in host.ranks})
    strange = [rank for rank in ranks if rank not in running_ranks]
    if strange:
        raise UserError(
            f"expected ranks that run here ({', '.join(map(str, running_ranks))}), found {strange[0]}", where="--ranks"
        )
    return [host for host in armed if not ranks or set(ranks) & set(host.ranks)]


def _make_user_error(source: object, users: Sequence[str]) -> UserError:
    """Return the error of a user who may not look at the job of *users*."""
    import getpass

    owner = users[0]
    return UserError(
        f"expected a job of this user, {getpass.getuser()}, found processes of {', '.join(users)}, which only that"
        " user may look at",
        where=str(source),
        hint=f"Run the same as that user: sudo -u {owner} toolkit profile ..., in a container docker exec -u {owner}.",
    )


def _print_traces(
    missing: "set[tuple[RunningHost, int]]", requests: "dict[RunningHost, int]"
) -> "set[tuple[RunningHost, int]]":
    """Print the traces that have come, and return whose they are."""
    come = set()
    for host, rank in sorted(missing, key=lambda host_and_rank: host_and_rank[1]):
        for framework, window in _find_windows(host, rank, requests[host]):
            print(f"rank {rank}: steps {window.first_step} to {window.last_step}: {framework / window.file}")
            come.add((host, rank))
    return come


def _find_windows(host: "RunningHost", rank: int, request: int) -> "list[tuple[Path, TracedWindow]]":
    from toolkit.traces import windows

    framework = host.output / "profiler" / "framework"
    listings = (listing for listing in windows.read(framework) if listing.rank == rank)
    return [(framework, window) for listing in listings for window in listing.windows if window.request == request]
