"""This rank's position among all ranks, and its gloo groups with others."""

from collections.abc import Mapping, Sequence
from typing import Any


class XlaPosition:
    """This rank's numbers and groups: `host` is its host's number, `master` the first host's address.

    The groups are made on first use, because a script may never need one.
    """

    FIELDS = ("rank", "size", "local_rank", "local_size", "host", "master")

    def __init__(self, *, rank: int, size: int, local_rank: int, local_size: int, host: int, master: str) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.host = host
        self.master = master
        self._store: Any = None
        self._groups: dict[tuple[int, ...], Any] = {}

    def store(self) -> Any:
        """Return a store that all ranks share, separate from those of torch.distributed's own groups."""
        if self._store is None:
            from torch.distributed.distributed_c10d import PrefixStore
            from torch.distributed.rendezvous import rendezvous

            store, _, _ = next(rendezvous("env://", self.rank, self.size))
            self._store = PrefixStore("toolkit/rank/xla", store)
        return self._store

    def group(self, ranks: Sequence[int] | None = None) -> Any:
        """Return the gloo group of *ranks* (None: of all). Each of them must call this. None if there is one rank."""
        from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, default_pg_timeout

        if self.size == 1:
            return None
        members = tuple(range(self.size)) if ranks is None else tuple(ranks)
        if members not in self._groups:
            store = PrefixStore("-".join(map(str, members)), self.store())
            self._groups[members] = ProcessGroupGloo(
                store, members.index(self.rank), len(members), timeout=default_pg_timeout
            )
        return self._groups[members]

    def group_among(self, groups: Sequence[Sequence[int]] | None) -> Any:
        """Return the group among *groups* (lists of ordinals) that contains this rank, None if none does.

        As in torch_xla, None or an empty list means one group of all ranks.
        """
        if not groups:
            return self.group()
        members_of_own_group = next((members for members in groups if self.rank in members), None)
        return None if members_of_own_group is None else self.group(members_of_own_group)


def read_position(environ: Mapping[str, str]) -> XlaPosition:
    """Return the position that the launcher wrote into *environ* (torchrun's variables)."""
    return XlaPosition(
        rank=int(environ.get("RANK", "0")),
        size=int(environ.get("WORLD_SIZE", "1")),
        local_rank=int(environ.get("LOCAL_RANK", "0")),
        local_size=int(environ.get("LOCAL_WORLD_SIZE", "1")),
        host=int(environ.get("GROUP_RANK", "0")),
        master=environ.get("MASTER_ADDR", "localhost"),
    )
