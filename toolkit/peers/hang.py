"""Pure: whether a whole job hangs. It does only if no host moves: one that does may be what the others wait for."""

from toolkit.peers.messages import Idle


class HangWatch:
    """What the hosts say of how long none of their ranks has written or computed anything."""

    def __init__(self, now_s: float) -> None:
        self._idle: dict[str, Idle] = {}
        self._moved_s = now_s

    def moved(self, now_s: float) -> None:
        """Ranks of a host ended, or stacks were written: no host's silence counts from before."""
        self._moved_s = now_s

    def heard(self, host: str, message: Idle) -> None:
        if message.seconds:
            self._idle[host] = message
        else:
            self._idle.pop(host, None)

    def forget(self, host: str) -> None:
        self._idle.pop(host, None)

    def idle_s(self, unended: set[str], resting: set[str], now_s: float) -> float | None:
        """Return how long no rank of the job has moved, once that is as long as a hang takes; None before.

        *unended*: the hosts that have not ended; *resting*: those whose ranks have, and which therefore do not count.
        """
        if len(self._idle) + len(resting) < len(unended):
            return None
        at_work = unended - resting
        if not at_work or not at_work <= self._idle.keys():
            return None
        idle_s = min(now_s - self._moved_s, *(self._idle[host].seconds for host in at_work))
        return idle_s if idle_s >= max(self._idle[host].limit_s for host in at_work) else None

    def stops(self, hosts: set[str]) -> bool:
        """True if one of *hosts* wants the job to end of a hang."""
        return any(self._idle[host].stops for host in hosts)
