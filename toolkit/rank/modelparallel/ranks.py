"""This rank's numbers, the sizes and the ranks of its groups, by the library's names."""

from toolkit.rank.modelparallel import world


def is_initialized() -> bool:
    """True after smp.init()."""
    return world.is_begun()


def rank() -> int:
    """This process's rank among all."""
    return world.current().rank


def size() -> int:
    """The number of ranks."""
    return world.current().size


def local_rank() -> int:
    """This process's rank on its host."""
    return world.current().local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return world.current().local_size


def pp_rank() -> int:
    """The number of this rank's partition, from 0."""
    return world.current().rank_in("pp")


def pp_size() -> int:
    """The number of partitions."""
    return len(world.current().group("pp"))


def tp_rank() -> int:
    """This rank's number among those that share tensors."""
    return world.current().rank_in("tp")


def tp_size() -> int:
    """The tensor parallel degree."""
    return len(world.current().group("tp"))


def rdp_rank() -> int:
    """This rank's number among those that hold the same parameters: the replica's."""
    return world.current().rank_in("rdp")


def rdp_size() -> int:
    """The number of replicas of the model."""
    return len(world.current().group("rdp"))


def dp_rank() -> int:
    """This rank's number in the data parallel group: tensor parallel ranks of all replicas of its partition."""
    return world.current().rank_in("dp")


def dp_size() -> int:
    """Ranks in the data parallel group: tp_size() x rdp_size()."""
    return len(world.current().group("dp"))


def mp_rank() -> int:
    """This rank's number among those that hold one copy of the model."""
    return world.current().rank_in("mp")


def mp_size() -> int:
    """Ranks that hold one copy of the model: pp_size() x tp_size()."""
    return len(world.current().group("mp"))


def get_pp_group() -> list[int]:
    """The ranks of this rank's pipeline, ascending."""
    return list(world.current().group("pp"))


def get_tp_group() -> list[int]:
    """The ranks with which this rank shares tensors, ascending."""
    return list(world.current().group("tp"))


def get_rdp_group() -> list[int]:
    """The ranks that hold the same parameters as this one, ascending."""
    return list(world.current().group("rdp"))


def get_dp_group() -> list[int]:
    """The ranks of this rank's data parallel group, ascending."""
    return list(world.current().group("dp"))


def get_mp_group() -> list[int]:
    """The ranks that hold this copy of the model, ascending."""
    return list(world.current().group("mp"))
