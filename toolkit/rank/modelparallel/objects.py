"""Picklable objects between ranks: send, recv_from, broadcast, allgather and barriers, by the library's names.

The ranks of a group must call allgather and barrier in the same order; groups that do not share ranks do so in
parallel. `send` does not wait for the receiver.
"""

from collections.abc import Hashable
from enum import Enum
from typing import Any

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import PeerInOtherCall, SMPError
from toolkit.rank.modelparallel.messenger import Message

STEP = "smp.step"  # The kind of the messages with which the first rank of a pipeline begins and ends a step.
COLLECTIVES = ("allgather", "barrier")


class CommGroup(Enum):
    """The kinds of groups; every rank is in one group of each kind. Values are placement.KINDS."""

    WORLD = "world"
    MP_GROUP = "mp"
    DP_GROUP = "dp"
    TP_GROUP = "tp"
    PP_GROUP = "pp"
    RDP_GROUP = "rdp"


class RankType(Enum):
    """The numbering of a rank: over all ranks, or within a group of this rank."""

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
    current_world = world.current()
    current_world.messenger.send(_world_rank(current_world, dest_rank, rank_type), "object", None, obj)


def recv_from(src_rank: int, rank_type: RankType = RankType.WORLD_RANK) -> Any:
    """Return the next object that *src_rank* sent or broadcast to this rank. Waits for it.

    Raises:
        SMPError: no such rank.
        PeerLost: a rank has ended, and nothing is here.
    """
    current_world = world.current()
    return current_world.messenger.receive(_world_rank(current_world, src_rank, rank_type), "object").payload


def broadcast(obj: Any, group: CommGroup = CommGroup.WORLD) -> None:
    """Send *obj* to all other ranks of *group*, which take it with `recv_from`."""
    current_world = world.current()
    for rank in current_world.group(_kind(group)):
        if rank != current_world.rank:
            current_world.messenger.send(rank, "object", None, obj)


def allgather(obj: Any, group: CommGroup = CommGroup.WORLD) -> list[Any]:
    """Return the objects of all ranks of *group*, in order of rank. All of them call it."""
    return _gather(obj, "allgather", _kind(group))


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Return when all ranks of *group* have called this."""
    _gather(None, "barrier", _kind(group))


def mp_barrier() -> None:
    """Return when all ranks that hold this copy of the model have called this."""
    barrier(CommGroup.MP_GROUP)


def dp_barrier() -> None:
    """Return when all ranks of this rank's data parallel group have called this."""
    barrier(CommGroup.DP_GROUP)


def _gather(obj: Any, collective: str, kind: str) -> list[Any]:
    current_world = world.current()
    ranks = current_world.group(kind)
    key = (ranks, current_world.next_number(collective, kind))
    for rank in ranks:
        if rank != current_world.rank:
            current_world.messenger.send(rank, collective, key, obj)
    objects = {current_world.rank: obj}
    first = current_world.group("pp")[0]
    # The pipeline's first rank comes first: it may be in a step, for which it needs this rank.
    for rank in sorted(ranks, key=lambda rank: rank != first):
        if rank != current_world.rank:
            objects[rank] = receive(rank, collective, key, f"smp.{collective}()").payload
    return [objects[rank] for rank in ranks]


def receive(rank: int, kind: str, key: Hashable, purpose: str) -> Message:
    """Return the message of *kind* and *key* from *rank*, which this rank needs for *purpose*.

    Raises:
        SMPError: *rank* is in a step or another collective, for which it needs this rank.
    """
    current_world = world.current()
    try:
        return current_world.messenger.receive(rank, kind, key, instead=(STEP, *COLLECTIVES))
    except PeerInOtherCall as error:
        activity = "in a step" if error.kind == STEP else f"in another smp.{error.kind}()"
        raise mutual_wait_error(current_world, f"in {purpose}", rank, activity) from error


def mutual_wait_error(current_world: world.World, activity: str, other: int, other_activity: str) -> SMPError:
    """Return the error that this rank (in *activity*) and rank *other* (in *other_activity*) wait for each other."""
    return SMPError(
        f"expected all ranks in the same call, found rank {current_world.rank} {activity} and "
        f"rank {other} {other_activity}: "
        "they wait for each other. All ranks must run the same number of steps and make the same calls between them; a "
        "loop may not end on one rank alone"
    )


def _world_rank(current_world: world.World, rank: int, rank_type: RankType) -> int:
    if not isinstance(rank_type, RankType):
        raise SMPError(f"expected one of smp.RankType for rank_type, found {rank_type!r}")
    ranks = current_world.group(rank_type.value)
    if rank not in range(len(ranks)):
        raise SMPError(f"expected a {rank_type.name} from 0 to {len(ranks) - 1}, found {rank!r}")
    return ranks[rank]


def _kind(group: CommGroup) -> str:
    if not isinstance(group, CommGroup):
        raise SMPError(f"expected one of smp.CommGroup for group, found {group!r}")
    return str(group.value)
