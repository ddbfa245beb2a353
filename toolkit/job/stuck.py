"""Finds the ranks that the others wait for in a job that hangs, and describes the places of all."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from msgspec import Meta

from toolkit.records import Record, meaning

# The most places in a message; the files with the stacks have all of them.
MOST = 8
Activity = Literal["waits", "works", "unclear", "silent", "unobserved"]


class StuckRank(Record, frozen=True, kw_only=True):
    """The place of one rank in a job that hangs."""

    process: Annotated[str, Meta(max_length=256, description="the process: rank 3, or script")]
    activity: Annotated[
        Activity,
        meaning(
            "waits: for other ranks; works: it waits for no rank (a sleep included); unclear: its call may do either;"
            " silent: it wrote no stack on request; unobserved: it has no handler for the request"
        ),
    ]
    process_state: Annotated[
        str, Meta(max_length=256, description="an unusual state of the process (stopped (SIGSTOP)); empty: none")
    ] = ""
    file: Annotated[
        str, Meta(max_length=4096, description="the file of its innermost frame in the user's own code; empty: none")
    ] = ""
    line: Annotated[int, Meta(ge=0, description="the line of that frame")] = 0
    function: Annotated[str, Meta(max_length=512, description="the function of that frame")] = ""
    call: Annotated[
        str, Meta(max_length=512, description="the library's function that it waits in (all_reduce); empty: not known")
    ] = ""


def culprits(ranks_by_host: Mapping[str, Iterable[StuckRank]]) -> list[tuple[str, str]]:
    """Return (host, "rank 1 is stopped (SIGSTOP)") of each rank that the others wait for, from all ranks by host.

    A stopped process is the strongest evidence, then a rank without a stack while others have one, then a rank that
    works while others wait. Without such a difference no rank is named.
    """
    ranks = [(host, rank) for host, host_ranks in ranks_by_host.items() for rank in host_ranks]
    kinds = {rank.activity for _, rank in ranks}
    if odd := [(host, f"{rank.process} is {rank.process_state}") for host, rank in ranks if rank.process_state]:
        return odd
    if "silent" in kinds and kinds & {"waits", "unclear", "works"}:
        return [
            (host, f"{rank.process} does not answer: it has written no stack")
            for host, rank in ranks
            if rank.activity == "silent"
        ]
    if not kinds & {"waits", "unclear"}:
        return []
    return [
        (host, f"{rank.process} is in {rank.function} ({rank.file}:{rank.line})")
        for host, rank in ranks
        if rank.activity == "works"
    ]


def described(ranks_by_host: Mapping[str, Iterable[StuckRank]], *, alone: bool) -> list[str]:
    """Return the description of a hang: the ranks that the others wait for, with their hosts unless the job has one
    host (*alone*); if there are none, where all ranks are: "rank 0 at train.py:12 in step (all_reduce)", "ranks 1-3
    at ...". Where they wait in different calls, which never meet, the first begins with that."""
    ranks = {host: tuple(host_ranks) for host, host_ranks in ranks_by_host.items()}
    sentences = [words if alone else f"{words} on host {host}" for host, words in culprits(ranks)] or _places(
        ranks, alone
    )
    return sentences if len(sentences) <= MOST else [*sentences[:MOST], f"{len(sentences) - MOST} more"]


def advise(ranks_by_host: Mapping[str, Iterable[StuckRank]]) -> str:
    """Return what to do about a hang of which the stacks show the cause, "" where they do not."""
    ranks = {host: tuple(host_ranks) for host, host_ranks in ranks_by_host.items()}
    if culprits(ranks):
        all_ranks = [rank for host_ranks in ranks.values() for rank in host_ranks]
        busy = [rank for rank in all_ranks if rank.activity == "works" and rank.file]
        if not busy or any(rank.process_state or rank.activity == "silent" for rank in all_ranks):
            return ""  # It is stopped, or wrote no stack: no line of its code is known.
        return f"Look at {busy[0].file}:{busy[0].line}, where {busy[0].process} is: the others wait for it."
    if _wait_in_different_calls(ranks):
        return "Let all ranks make the same collective calls in the same order: compare the places that are named."
    return ""


def _wait_in_different_calls(ranks_by_host: Mapping[str, tuple[StuckRank, ...]]) -> bool:
    ranks = [rank for host_ranks in ranks_by_host.values() for rank in host_ranks]
    return {rank.activity for rank in ranks} == {"waits"} and len({rank.call for rank in ranks} - {""}) > 1


def _places(ranks_by_host: Mapping[str, tuple[StuckRank, ...]], alone: bool) -> list[str]:
    groups: dict[tuple[str, int, str, str], list[str]] = {}
    for host, host_ranks in ranks_by_host.items():
        for rank in host_ranks:
            if rank.file:
                of_job = alone or rank.process.startswith("rank ")  # Each host has its own "script".
                name = rank.process if of_job else f"{rank.process} on host {host}"
                groups.setdefault((rank.file, rank.line, rank.function, rank.call), []).append(name)
    differ = "the ranks wait in different calls: " if _wait_in_different_calls(ranks_by_host) else ""
    ordered = sorted(groups.items(), key=lambda group: min(map(_number, group[1])))
    places = [
        f"{_listed(names)} at {file.rpartition('/')[2]}:{line} in {function}{f' ({call})' if call else ''}"
        for (file, line, function, call), names in ordered
    ]
    return [f"{differ}{places[0]}", *places[1:]] if places else []


def _listed(names: list[str]) -> str:
    """Return "ranks 0, 2-4" for names of ranks; other names as they are."""
    if len(names) == 1 or any(_number(name) < 0 for name in names):
        return " and ".join(names)
    return name_ranks(map(_number, names))


def name_ranks(numbers: Iterable[int]) -> str:
    """Return "rank 2" or "ranks 0, 2-4"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    named = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank {named}" if named.isdecimal() else f"ranks {named}"


def _number(name: str) -> int:
    number = name.removeprefix("rank ")
    return int(number) if number != name and number.isdigit() else -1
