"""The interface of what watches the ranks of one attempt: by their lines, or by time."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.train.log_rules.event import RuleEvent


class AttemptMonitor:
    """Watches the ranks of one attempt. A monitor does by default nothing of what it may do."""

    reads_lines = False

    def read(self, _block: bytes, _rank: int, _host: str) -> "list[RuleEvent]":
        """Search a block of whole lines of a rank on a host ("": unknown)."""
        return []

    def tick(self, _now_s: float) -> "list[RuleEvent]":
        """Apply what depends on time."""
        return []

    def due_in_s(self, _now_s: float) -> float | None:
        """Return the seconds until `tick` is due, None if nothing depends on time."""
        return None

    def close(self) -> None:
        """End: the attempt is over."""
