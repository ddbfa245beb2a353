"""Where a follower looks for its leader: the addresses of its name, in turn, and its ports."""

from toolkit.peers.link import place
from toolkit.peers.lookup import Address, Lookup, numeric

# Until the leader is met, its name may not resolve yet, or may resolve to an old address.
RESOLVE_EVERY_S = 5.0
# A leader whose port is taken listens on another one. The follower tries the others as soon as another program answers
# at the first port; if nothing answers there, once in this many tries.
TRIES = 10
# How long a connection may take until the leader has proved itself: on its first port, as long as the leader itself
# waits; on another port, which a firewall may silently block; once the leader was met, when only a bad network is slow.
PROVE_WITHIN_S = 5.0
ELSEWHERE_S = 1.0
RESTART_S = 0.5


class Route:
    """The addresses to try, in turn. *ports*: the leader's first port, then those that it uses if that one is taken."""

    def __init__(self, host: str, ports: tuple[int, ...], now_s: float) -> None:
        self._host = host
        self._ports = ports
        self._addresses: list[Address] = []
        self._resolved_s = now_s
        self._tries = 0
        self._elsewhere = 0
        self._last: Address | None = None
        self._met: Address | None = None
        self.lookup: Lookup | None = None
        self.within_s = PROVE_WITHIN_S

    @property
    def met(self) -> bool:
        """True once the leader was found; from then on only that address is tried."""
        return self._met is not None

    @property
    def last(self) -> str:
        """The address of the last try, as text."""
        return "no address" if self._last is None else place(self._last[1])

    @property
    def ways_out(self) -> str:
        """Advice for when other programs have the leader's ports."""
        ports = ", ".join(map(str, self._ports))
        every = "on every host set TOOLKIT_LINK_PORT to a free port of the leader's"
        return f"the leader takes the first free one of ports {ports}: if all are taken, {every}"

    @property
    def elsewhere(self) -> bool:
        """True if the next try is at another port than the leader's first."""
        return self._elsewhere > 0

    def next(self, now_s: float) -> Address | None:
        """Return the address to try now, None while the name is being looked up (`lookup`)."""
        if self._met is not None:
            return self._met
        if not self._addresses or now_s >= self._resolved_s + RESOLVE_EVERY_S:
            found = numeric(self._host, self._ports[0])
            if not found:
                self.lookup = Lookup(self._host, self._ports[0])
                return None
            self._addresses, self._resolved_s = found, now_s
        self._last = self._choose()
        return self._last

    def resolved(self, now_s: float) -> bool:
        """Take the result of `lookup`; return False if it found no address."""
        assert self.lookup is not None
        self.lookup.close()
        found, self.lookup = self.lookup.found, None
        if found:
            self._addresses, self._resolved_s = found, now_s
        return bool(found)

    def works(self, way_s: float) -> None:
        """Note that the leader has proved itself at the last address; *way_s*: how long an answer takes from there."""
        self._met = self._last if self._met is None else self._met
        self.within_s = max(RESTART_S, 4 * way_s)

    def answered(self) -> None:
        """Note that something other than the leader answered at the last address."""
        if self._elsewhere == 0 and self._met is None:
            self._elsewhere = len(self._ports) - 1

    def close(self) -> None:
        if self.lookup is not None:
            self.lookup.close()

    def _choose(self) -> Address:
        family, address = self._addresses[0]
        if self._elsewhere:
            port = self._ports[-self._elsewhere]
            self._elsewhere -= 1
            self.within_s = ELSEWHERE_S
            return family, (address[0], port, *address[2:])
        self._addresses = [*self._addresses[1:], self._addresses[0]]
        self._tries += 1
        if self._tries % TRIES == 0:
            self._elsewhere = len(self._ports) - 1
        self.within_s = PROVE_WITHIN_S
        return family, address
