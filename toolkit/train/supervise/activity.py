"""Measures whether a host's ranks are active: whether they write or compute anything.

A rank that waits in a collective for a peer that never comes does neither. A rank is active if it writes output, or if
it and the processes that it started use more than 2 % of a core over a second or more. Threads that only poll use less
(torch's: 0.4 %).
"""

import os

from toolkit.train.supervise.kernel import descendants, stat_fields

BUSY_SHARE = 0.02
# Over a shorter time, a rank that shares its core may seem inactive.
OVER_S = 1.0
# The kernel rounds user and system time down to whole ticks (10 ms), so a difference may be two ticks too large.
ROUNDING_TICKS = 2
STOPPED = "stopped (SIGSTOP)"
STATES = {b"T": STOPPED, b"t": "stopped by a debugger", b"D": "in the kernel, on a disk or a device"}


class RankActivity:
    """Knows when the ranks were last active. Times are monotonic seconds."""

    def __init__(self, now_s: float, *, ticks_per_s: int = os.sysconf("SC_CLK_TCK")) -> None:
        self._ticks_per_s = ticks_per_s
        self._moved_s = now_s
        self._seen: dict[int, tuple[float, int, int]] = {}

    def look(self, ranks: dict[int, tuple[int, int]], now_s: float) -> float:
        """Return the seconds since any rank was active. *ranks*: by pid, the bytes written and the ticks used so far
        (`used_ticks`)."""
        for pid, (written_bytes, ticks) in ranks.items():
            since_s, ticks_then, bytes_then = self._seen.get(pid, (now_s, -1, -1))
            busy_ticks = BUSY_SHARE * (now_s - since_s) * self._ticks_per_s + ROUNDING_TICKS
            moved = written_bytes != bytes_then or ticks - ticks_then >= busy_ticks
            if moved:
                self._moved_s = now_s
            if moved or now_s - since_s >= OVER_S:
                self._seen[pid] = (now_s, ticks, written_bytes)
        self._seen = {pid: activity for pid, activity in self._seen.items() if pid in ranks}
        return now_s - self._moved_s


def used_ticks(pid: int) -> int:
    """Return the processor time of a process and of those that it started, in ticks."""
    return sum(_ticks(process) for process in (pid, *descendants(pid)))


def unusual_state(pid: int) -> str:
    """Return the state of a process if it is unusual ("stopped (SIGSTOP)"), "" if it runs or sleeps."""
    return STATES.get(b"".join(stat_fields(pid)[:1]), "")


def _ticks(pid: int) -> int:
    fields = stat_fields(pid)
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0
