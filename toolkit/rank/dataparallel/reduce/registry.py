"""A process's knowledge of its groups: measured thresholds, and the number of groups that reduce hierarchically.

A measurement takes 0.1 to 0.5 s, and each group that reduces hierarchically a thread and about 20 descriptors. A
script with 20 groups of the same ranks (tensor, data and expert parallel) measures once, and only the first groups
use it.
"""

import threading
from typing import Any, NamedTuple

MAX_GROUPS = 8
Layout = tuple[int, int]  # ranks on a host, hosts


class GroupDecision(NamedTuple):
    """The choice on which all ranks of a group have agreed. `from_bytes` is the smallest size that is reduced
    hierarchically, None for no size; it counts only if `is_known`."""

    has_room: bool
    is_known: bool
    from_bytes: int | None


class GroupRegistry:
    """The groups of this process. There is one registry per process; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: dict[Layout, int | None] = {}
        self._groups = 0

    def agree(self, native: Any, layout: Layout) -> GroupDecision:
        """Return this group's decision, equal on all its ranks, and reserve a slot if every rank has one.

        It is known only if every rank knows the layout. Costs one small all-reduce of *native*.
        """
        import torch
        from torch.distributed import AllreduceOptions, ReduceOp

        with self._lock:
            is_known = layout in self._measured
            from_bytes_here = self._measured.get(layout)
            has_room = self._groups < MAX_GROUPS
            self._groups += has_room
        # The minimum over ranks of room, of knowledge, and of the negative size, which gives the largest size (None:
        # inf).
        votes = torch.tensor(
            [float(has_room), float(is_known), -float("inf") if from_bytes_here is None else -float(from_bytes_here)]
        )
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.MIN  # type: ignore[assignment]
        native.allreduce([votes], options).wait()
        all_room, all_known, largest = votes.tolist()
        from_bytes = None if largest == -float("inf") else int(-largest)
        decision = GroupDecision(bool(all_room), bool(all_known), from_bytes)
        if has_room and not (decision.has_room and not (decision.is_known and decision.from_bytes is None)):
            self.release()
        return decision

    def release(self) -> None:
        """Free a slot."""
        with self._lock:
            self._groups -= 1

    def remember(self, layout: Layout, from_bytes: int | None) -> None:
        """Remember what a group of *layout* has measured."""
        with self._lock:
            self._measured[layout] = from_bytes
