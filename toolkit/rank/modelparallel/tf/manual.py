"""Partitions by hand: what the script's `smp.partition` blocks say."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import layers


class Manual:
    """What the script's `smp.partition` blocks say: the layers made or called in them, by id."""

    def __init__(self) -> None:
        self.devices: dict[int, int] = {}
        self._kept: list[Any] = []
        self._stack: list[int] = []

    def assign(self, layer: Any) -> None:
        """Note that *layer* was made or called here; the innermost block counts.

        Raises:
            SMPError: it was in a block of another partition before.
        """
        if not self._stack:
            return
        device = self.devices.setdefault(id(layer), self._stack[-1])
        self._kept.append(layer)
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


MANUAL = Manual()
