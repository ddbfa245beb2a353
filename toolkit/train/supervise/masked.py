"""The streams of a program whose output may show secrets that the user has given it: pip names addresses with tokens.

The lines are masked before anything else sees them: the console, the cause, the files.
"""

from collections.abc import Callable

from toolkit.train.supervise.relay import Stream
from toolkit.train.supervise.screen import Screen


class MaskedStream(Stream):
    """One stream of a program that is relayed line by line: half a line may hold half a secret."""

    def __init__(self, fd: int, outlet: Screen, mask: Callable[[str], str]) -> None:
        super().__init__(fd, outlet, way="shared")
        self._mask = mask

    def _pass(self, block: bytes) -> None:
        super()._pass(self._masked(block))

    def _show_state(self, prefix: bytes, held: bytes) -> None:
        super()._show_state(prefix, self._masked(held))

    def _masked(self, block: bytes) -> bytes:
        return self._mask(block.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
