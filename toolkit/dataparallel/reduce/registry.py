"""What the groups of one process share: what was measured, and how many of them may go through level 1.

A measurement takes 0.1 to 0.5 s, and a group at level 1 a thread and some 20 descriptors: a script that makes 20 groups
of the same ranks (tensor, data and expert parallel, one for each kind of message) pays once, and a few of them have it.
"""

import threading
from typing import Any, NamedTuple

MAX_GROUPS = 8
Layout = tuple[int, int]  # ranks on a host, hosts


class Decision(NamedTuple):
    """What all ranks of a group have agreed on. `from_bytes`: the smallest size that goes through level 1, None for no
    size at all; of no meaning where nobody `is_known` to have measured."""

    has_room: bool
    is_known: bool
    from_bytes: int | None


class GroupRegistry:
    """One for a process; used by any of its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: dict[Layout, int | None] = {}
        self._groups = 0

    def agree(self, native: Any, layout: Layout) -> Decision:
        """Return what this group does, the same on all its ranks, and take a place if all have one; a group whose ranks
        do not all know the layout measures anew. One small all-reduce of *native*.
        """
        import torch
        from torch.distributed import AllreduceOptions, ReduceOp

        with self._lock:
            known = layout in self._measured
            ours = self._measured.get(layout)
            room = self._groups < MAX_GROUPS
            self._groups += room
        # The smallest of each: room, knowledge, and of the sizes the largest (None: none is large enough).
        words = torch.tensor([float(room), float(known), -float("inf") if ours is None else -float(ours)])
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.MIN  # type: ignore[assignment]
        native.allreduce([words], options).wait()
        all_room, all_known, largest = words.tolist()
        from_bytes = None if largest == -float("inf") else int(-largest)
        agreed = Decision(bool(all_room), bool(all_known), from_bytes)
        if room and not (agreed.has_room and not (agreed.is_known and agreed.from_bytes is None)):
            self.release()
        return agreed

    def release(self) -> None:
        """Give a place back."""
        with self._lock:
            self._groups -= 1

    def remember(self, layout: Layout, from_bytes: int | None) -> None:
        """Remember what a group of *layout* has measured."""
        with self._lock:
            self._measured[layout] = from_bytes
