"""The monitor's side of the process that asks NVML: its newest values, and how long the driver has been silent.

The child is never waited for. A child that says nothing for KILL_AFTER_S is killed, and if that ends it another is
started; a process that hangs in the driver does not end, and stays until the driver lets go of it.
"""

import json
import os
import subprocess
from collections.abc import Callable

from toolkit.monitor.source import BYTES, BYTES_PER_S, NAN, PERCENT, column
from toolkit.series.column import SampleColumn

KILL_AFTER_S = 60.0
# A value this old is no longer shown as the present one.
STALE_S = 15.0
STARTS = 5
ENDS_S = 0.1
_UNITS = {"percent": PERCENT, "bytes": BYTES, "per_s": BYTES_PER_S, "watts": "W", "mhz": "MHz", "celsius": "°C"}


class GpuSource:
    """GPUs through a child process that *argv* starts. `fd` is readable when the child has said something.

    *note* takes a line for the log, once: why there are no values.
    """

    def __init__(self, argv: tuple[str, ...], now_s: float, note: Callable[[str], None]) -> None:
        self._argv = argv
        self._note = note
        self.names: tuple[str, ...] = ()
        self.columns: tuple[SampleColumn, ...] = ()
        self._values: list[float] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._buffer = b""
        self._heard_s = now_s
        self._killed_s = float("-inf")
        self._start(now_s)

    @property
    def fd(self) -> int | None:
        """The descriptor of the child's output, None without a child."""
        return self._child.stdout.fileno() if self._child is not None and self._child.stdout is not None else None

    def values(self, now_s: float) -> list[float]:
        """See SampleSource. The last value is how long the driver has not answered, 0 while it does."""
        self.read(now_s)
        if not self.columns and self._child is None:
            return []
        silent_s = now_s - self._heard_s
        if silent_s > KILL_AFTER_S:
            self._restart(now_s)
        values = self._values if silent_s < STALE_S else [NAN] * len(self._values)
        return [*values, silent_s]

    def read(self, now_s: float) -> None:
        """Take what the child has written; never waits."""
        while self._child is not None and self._child.stdout is not None:
            try:
                piece = os.read(self._child.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                self._ended(now_s)
                return
            self._heard_s = now_s
            *lines, self._buffer = (self._buffer + piece).split(b"\n")
            for line in lines[-1:] if self.names else lines:
                self._take(line)

    def close(self) -> None:
        """End the child; one that hangs in the driver is left behind."""
        self._let_go()

    def _let_go(self) -> bool:
        """Kill the child; return whether it has ended, which takes no time unless the kernel holds the process."""
        child, self._child = self._child, None
        if child is None:
            return True
        child.kill()
        try:
            child.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            self._child = child
            return False
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        return True

    def _start(self, now_s: float) -> None:
        self._starts += 1
        self._heard_s = now_s
        self._buffer = b""
        try:
            self._child = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except OSError as error:
            self._note(f"GPUs are not measured: {self._argv[0]}: {error.strerror}")
            return
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        if not self.columns:
            self.columns = (_SILENT,)

    def _restart(self, now_s: float) -> None:
        """Replace a child that hangs, if it can be ended."""
        if self._child is None or self._starts >= STARTS:
            return
        if now_s - self._killed_s < KILL_AFTER_S:
            return
        self._killed_s = now_s
        if self._let_go():
            silent_since_s = self._heard_s
            self._start(now_s)
            self._heard_s = silent_since_s  # Silence lasts until a child says something.

    def _ended(self, now_s: float) -> None:
        """Give up a child that has ended by itself: it has said why, or another one may do better."""
        self._let_go()
        if self.names and self._starts < STARTS:
            self._start(now_s)
        else:
            self.columns, self._values = (), []

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return  # The child was killed within a line.
        if isinstance(message, list) and len(message) == len(self.columns) - 1:
            self._values = [NAN if value is None else value for value in message]
        elif isinstance(message, dict) and "reason" in message:
            self._note(f"GPUs are not measured: {message['reason']}")
        elif isinstance(message, dict):
            self.names = tuple(message["names"])
            metrics = [(gpu, metric) for gpu, names in enumerate(message["metrics"]) for metric in names]
            self.columns = (*(column(f"gpu/{gpu}/{name}", _unit(name)) for gpu, name in metrics), _SILENT)
            self._values = [NAN] * len(metrics)


_SILENT = column("gpu/driver/silent_s", "s")


def _unit(metric: str) -> str:
    return next((unit for end, unit in _UNITS.items() if metric.endswith(end)), "")
