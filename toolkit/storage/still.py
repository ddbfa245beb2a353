"""Remembers since when things are as they are, by a clock that nobody sets.

The time of a file's last change comes from the clock of its file system, and is compared with the host's. Either may
jump, or differ from the other: then a file seems to have changed a moment ago, or in the future, for as long as that.
"""

import time
from collections.abc import Callable, Mapping


class StableSince:
    """Things by name, as they were at the last look, and since when. *steady_s*: a clock that only goes on."""

    def __init__(self, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._steady_s = steady_s
        self._now_s = steady_s()
        self._since: dict[str, tuple[object, float]] = {}

    def update(self, things: Mapping[str, object]) -> None:
        """Note *things* as they are now."""
        self._now_s = self._steady_s()
        earlier = self._since
        self._since = {
            name: earlier[name] if name in earlier and earlier[name][0] == thing else (thing, self._now_s)
            for name, thing in things.items()
        }

    def is_unchanged(self, name: str, for_s: float) -> bool:
        """True if the thing *name* had been the same for at least *for_s* at the last look."""
        return name in self._since and self._now_s - self._since[name][1] >= for_s
