"""What a process knows of all its groups: measured thresholds, and how many groups reduce hierarchically.

A measurement takes 0.1 to 0.5 s, and each group that reduces hierarchically a thread and about 20 descriptors. A
script with 20 groups of the same ranks (tensor, data and expert parallel) measures once, and only the first groups
use it.
"""

import threading
from typing import Any, NamedTuple

MAX_GROUPS = 8
Layout = tuple[int, int]  # ranks on a host, hosts


class Decision(NamedTuple):
    """What all ranks of a group have agreed on. `from_bytes` is the smallest size that is reduced hierarchically, None
    for no size; it counts only if `is_known`."""

    has_room: bool
    is_known: bool
    from_bytes: int | None


class GroupRegistry:
    """One per process; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: dict[Layout, int | None] = {}
        self._groups = 0

    def agree(self, native: Any, layout: Layout) -> Decision:
        """Return this group's decision, equal on all its ranks, and reserve a slot if every rank has one.

        It is known only if every rank knows the layout. Costs one small all-reduce of *native*.
        """
        import torch
        from torch.distributed import AllreduceOptions, ReduceOp

        with self._lock:
            known = layout in self._measured
            ours = self._measured.get(layout)
            room = self._groups < MAX_GROUPS
            self._groups += room
        # The minimum over ranks: of room, of knowledge, and of the negative size, that is the largest size (None: inf).
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
        """Free a slot."""
        with self._lock:
            self._groups -= 1

    def remember(self, layout: Layout, from_bytes: int | None) -> None:
        """Remember what a group of *layout* has measured."""
        with self._lock:
            self._measured[layout] = from_bytes
