"""The queue of an exporter: the monitor's samples that have not arrived yet.

Metrics wait in their own file, output/metrics.jsonl. A sample of the monitor is overwritten by the next, so it waits
here: at most MOST, then the oldest is dropped and counted. With one in 20 s, that is an hour without a server.
"""

import threading
from collections import deque

from toolkit.monitor.exporters.kept import Row

MOST = 180


class Waiting:
    """The samples, for one thread that adds them and one that sends them."""

    def __init__(self, rows: list[Row], most: int = MOST) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._rows = deque(rows)
        self.lost = 0

    def add(self, row: Row) -> None:
        """Add a sample; drop the oldest if there are too many."""
        with self._lock:
            self._rows.append(row)
            while len(self._rows) > self._most:
                self._rows.popleft()
                self.lost += 1

    def first(self) -> Row | None:
        """Return the oldest sample, None for none; it stays until `done`."""
        with self._lock:
            return self._rows[0] if self._rows else None

    def done(self, row: Row) -> None:
        """Drop *row*, which has arrived."""
        with self._lock:
            if self._rows and self._rows[0] is row:
                self._rows.popleft()

    def all(self) -> list[Row]:
        """Return all samples, oldest first."""
        with self._lock:
            return list(self._rows)
