"""Pure: decides if a whole job hangs: only if no host is active, since the others may wait for an active one."""

from toolkit.train.peers.messages import Idle


class JobHang:
    """Collects the hosts' reports of how long none of their ranks has written or computed anything."""

    def __init__(self, now_s: float) -> None:
        self._idle: dict[str, Idle] = {}
        self._moved_s = now_s

    def restart_count(self, now_s: float) -> None:
        """Restart the count of all hosts: ranks of a host ended, or stacks were written."""
        self._moved_s = now_s

    def note_idle(self, host: str, message: Idle) -> None:
        if message.seconds:
            self._idle[host] = message
        else:
            self._idle.pop(host, None)

    def forget(self, host: str) -> None:
        self._idle.pop(host, None)

    def idle_s(self, unended: set[str], without_ranks: set[str], now_s: float) -> float | None:
        """Return the seconds without activity of any rank of the job, once that is long enough for a hang; else None.

        *unended*: the hosts that have not ended. *without_ranks*: hosts whose ranks have all ended; they do not count.
        """
        if len(self._idle) + len(without_ranks) < len(unended):
            return None
        at_work = unended - without_ranks
        if not at_work or not at_work <= self._idle.keys():
            return None
        idle_s = min(now_s - self._moved_s, *(self._idle[host].seconds for host in at_work))
        return idle_s if idle_s >= max(self._idle[host].limit_s for host in at_work) else None

    def stops(self, hosts: set[str]) -> bool:
        """True if one of *hosts* is set to end the job when it hangs."""
        return any(self._idle[host].stops for host in hosts)
