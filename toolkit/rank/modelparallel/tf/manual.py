"""Partitions that the script assigns in `smp.partition` blocks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import layers


class ManualPartition:
    """The partitions of the script's `smp.partition` blocks: of the layers made or called in them, by id."""

    def __init__(self) -> None:
        self.devices: dict[int, int] = {}
        self._assigned: list[Any] = []
        self._stack: list[int] = []

    def assign(self, layer: Any) -> None:
        """Assign *layer*, which was made or called now, to the partition of the innermost block.

        Raises:
            SMPError: it was in a block of another partition before.
        """
        if not self._stack:
            return
        device = self.devices.setdefault(id(layer), self._stack[-1])
        self._assigned.append(layer)
        if device != self._stack[-1]:
            raise SMPError(
                f"Layer {layer.name!r} is in smp.partition({device}) and in smp.partition({self._stack[-1]}): expected "
                "one partition for a layer."
            )

    @contextmanager
    def within(self, device: int) -> Iterator[None]:
        """Within the block, layers belong to partition *device*."""
        base = layers.keras().layers.Layer
        original = base.__init__

        def __init__(layer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(layer, *args, **kwargs)
            self.assign(layer)

        self._stack.append(device)
        base.__init__ = __init__
        try:
            yield
        finally:
            base.__init__ = original
            self._stack.pop()


MANUAL = ManualPartition()
