"""Pure: when a side of the protocol calls `tick` next, and how long its process was paused meanwhile."""


class TickTimer:
    """The time of the next `tick`, in seconds. A call that comes much later means that this process was paused."""

    def __init__(self, now_s: float) -> None:
        self.due_s = now_s
        self._ticked_s = now_s

    def bring_forward(self, at_s: float) -> None:
        """Have `tick` called at *at_s* if that is sooner than was planned."""
        self.due_s = min(self.due_s, at_s)

    def due_in_s(self, now_s: float) -> float:
        return max(self.due_s - now_s, 0.0)

    def note_tick(self, heartbeat_s: float, now_s: float) -> float:
        """Note that `tick` was called; return for how long this process was paused before, 0.0 if it was not."""
        pause_s = now_s - self.due_s
        was_paused = self.due_s > self._ticked_s and pause_s > heartbeat_s
        self._ticked_s = now_s
        return pause_s if was_paused else 0.0
