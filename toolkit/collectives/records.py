"""The collective calls of a rank, as the comparison (comparison.py) and the link between hosts have them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from toolkit.records import Record, encode

# Limits of what a rank, which is the user's process, may have written.
MOST_GROUPS = 64
MOST_CALLS = 2000
MOST_RANKS = 1000
MOST_NAME = 100
MOST_PATH = 300

Name = Annotated[str, Meta(max_length=MOST_NAME)]
Path = Annotated[str, Meta(max_length=MOST_PATH)]
Number = Annotated[int, Meta(ge=0, le=1 << 53)]


class CollectiveCall(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One collective of one rank in one process group."""

    number: Number
    """torch's collective_seq_id: all ranks of the group count alike."""
    operation: Name
    """torch's name, without the backend's: all_reduce, barrier."""
    payload: Name = ""
    """What must be equal on all ranks for this operation, as "4 Float"; empty: nothing."""
    is_complete: bool = False
    file: Path = ""
    """The innermost frame outside of torch, preferably of the user's own code; empty: not known."""
    line: Number = 0
    function: Name = ""


class GroupCalls(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The calls of one rank in one process group, by ascending number."""

    name: Name
    """torch's name of the group: the same on all of its ranks."""
    description: Name = ""
    ranks: Annotated[tuple[Number, ...], Meta(max_length=MOST_RANKS)] = ()
    """The ranks of the group, by their numbers in the job; empty: not known."""
    calls: Annotated[tuple[CollectiveCall, ...], Meta(max_length=MOST_CALLS)] = ()

    @property
    def title(self) -> str:
        """The group's name for people: "the default group", "group 3 (tensor_parallel)"."""
        if self.description == "default_pg":
            return "the default group"
        described = self.description not in ("", "undefined")
        return f"group {self.name} ({self.description})" if described else f"group {self.name}"


class RankCalls(Record, frozen=True, kw_only=True, omit_defaults=True):
    """All that one rank has recorded."""

    rank: Number
    """The rank's number in the job."""
    process: Annotated[str, Meta(max_length=256)] = ""
    """The name of its process in `train`: rank 3, or script."""
    is_whole: bool = False
    """The recorder has dropped nothing: the rank has made no call in a group that is not here."""
    groups: Annotated[tuple[GroupCalls, ...], Meta(max_length=MOST_GROUPS)] = ()


def keep_newest(rank_calls: RankCalls, most_calls: int) -> RankCalls:
    """Return *rank_calls* with at most *most_calls* (1 or more) calls of each group, the newest."""
    groups = tuple(msgspec.structs.replace(group, calls=group.calls[-most_calls:]) for group in rank_calls.groups)
    return msgspec.structs.replace(rank_calls, groups=groups)


def fit_calls(all_calls: tuple[RankCalls, ...], most_bytes: int) -> tuple[RankCalls, ...]:
    """Return the newest calls of each rank that *most_bytes* of JSON hold; () if even one of each is too much."""
    count = MOST_CALLS
    while count:
        fitting = tuple(keep_newest(rank_calls, count) for rank_calls in all_calls)
        if len(encode(fitting)) <= most_bytes:
            return fitting
        count //= 2
    return ()
