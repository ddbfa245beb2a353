"""Picklable objects between ranks: send, recv_from, broadcast, allgather and barriers, by the library's names.

The ranks of a group must call allgather and barrier in the same order; groups that do not share ranks do so in
parallel. `send` does not wait for the receiver.
"""

from collections.abc import Hashable
from enum import Enum
from typing import Any

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import Elsewhere, SMPError
from toolkit.rank.modelparallel.messenger import Message

STEP = "smp.step"  # The kind of the messages with which the first rank of a pipeline begins and ends a step.
COLLECTIVES = ("allgather", "barrier")


class CommGroup(Enum):
    """The groups of which every rank is in one of each kind; values are placement.KINDS."""

    WORLD = "world"
    MP_GROUP = "mp"
    DP_GROUP = "dp"
    TP_GROUP = "tp"
    PP_GROUP = "pp"
    RDP_GROUP = "rdp"


class RankType(Enum):
    """How a rank is numbered: over all ranks, or within a group of this rank."""

    WORLD_RANK = "world"
    MP_RANK = "mp"
    DP_RANK = "dp"
    TP_RANK = "tp"
    PP_RANK = "pp"
    RDP_RANK = "rdp"


def send(obj: Any, dest_rank: int, rank_type: RankType = RankType.WORLD_RANK) -> None:
    """Send *obj* to the rank *dest_rank*, which takes it with `recv_from`.

    Raises:
        SMPError: no such rank.
        PeerLost: it has ended.
    """
    here = world.current()
    here.messenger.send(_world_rank(here, dest_rank, rank_type), "object", None, obj)


def recv_from(src_rank: int, rank_type: RankType = RankType.WORLD_RANK) -> Any:
    """Return the next object that *src_rank* sent or broadcast to this rank. Waits for it.

    Raises:
        SMPError: no such rank.
        PeerLost: a rank has ended, and nothing is here.
    """
    here = world.current()
    return here.messenger.receive(_world_rank(here, src_rank, rank_type), "object").payload


def broadcast(obj: Any, group: CommGroup = CommGroup.WORLD) -> None:
    """Send *obj* to all other ranks of *group*, which take it with `recv_from`."""
    here = world.current()
    for rank in here.group(_kind(group)):
        if rank != here.rank:
            here.messenger.send(rank, "object", None, obj)


def allgather(obj: Any, group: CommGroup = CommGroup.WORLD) -> list[Any]:
    """Return the objects of all ranks of *group*, in order of rank. All of them call it."""
    return _gathered(obj, "allgather", _kind(group))


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Return when all ranks of *group* have called this."""
    _gathered(None, "barrier", _kind(group))


def mp_barrier() -> None:
    """Return when all ranks that hold this copy of the model have called this."""
    barrier(CommGroup.MP_GROUP)


def dp_barrier() -> None:
    """Return when all ranks of this rank's data parallel group have called this."""
    barrier(CommGroup.DP_GROUP)


def _gathered(obj: Any, what: str, kind: str) -> list[Any]:
    here = world.current()
    ranks = here.group(kind)
    key = (ranks, here.next_number(what, kind))
    for rank in ranks:
        if rank != here.rank:
            here.messenger.send(rank, what, key, obj)
    found = {here.rank: obj}
    first = here.group("pp")[0]
    # The pipeline's first rank comes first: it may be in a step, for which it needs this rank.
    for rank in sorted(ranks, key=lambda rank: rank != first):
        if rank != here.rank:
            found[rank] = receive(rank, what, key, f"smp.{what}()").payload
    return [found[rank] for rank in ranks]


def receive(rank: int, kind: str, key: Hashable, doing: str) -> Message:
    """Return the message of *kind* and *key* from *rank*, whom this rank's *doing* needs.

    Raises:
        SMPError: *rank* is in a step or another gathering, for which it needs this one.
    """
    here = world.current()
    try:
        return here.messenger.receive(rank, kind, key, instead=(STEP, *COLLECTIVES))
    except Elsewhere as error:
        its = "in a step" if error.kind == STEP else f"in another smp.{error.kind}()"
        raise apart(here, f"in {doing}", rank, its) from error


def apart(here: world.World, doing: str, other: int, its: str) -> SMPError:
    """Return that this rank, *doing* that, and rank *other*, *its* doing, wait for each other."""
    return SMPError(
        f"expected all ranks in the same call, found rank {here.rank} {doing} and rank {other} {its}: "
        "they wait for each other. All ranks must run the same number of steps and make the same calls between them; a "
        "loop may not end on one rank alone"
    )


def _world_rank(here: world.World, rank: int, rank_type: RankType) -> int:
    if not isinstance(rank_type, RankType):
        raise SMPError(f"expected one of smp.RankType for rank_type, found {rank_type!r}")
    ranks = here.group(rank_type.value)
    if rank not in range(len(ranks)):
        raise SMPError(f"expected a {rank_type.name} from 0 to {len(ranks) - 1}, found {rank!r}")
    return ranks[rank]


def _kind(group: CommGroup) -> str:
    if not isinstance(group, CommGroup):
        raise SMPError(f"expected one of smp.CommGroup for group, found {group!r}")
    return str(group.value)
