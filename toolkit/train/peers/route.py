"""Pure, but for the look-up: where a follower looks for its leader: all addresses of its name, in turn, and its ports.

A name may have addresses that lead nowhere (a network that the hosts do not share), to this host (docker0) or to
another host (a service with all pods). So the address that was tried least recently is the next one, whatever newer
look-ups say, and one that drops packets costs CONNECT_S.
"""

from toolkit.records import Record
from toolkit.train.peers.link_end import format_address
from toolkit.train.peers.lookup import Address, Lookup, Place, parse_address

# Until the leader is met, its name may not resolve yet, or may resolve to an old address.
RESOLVE_EVERY_S = 5.0
# A leader whose port is taken listens on another one. The follower tries the others as soon as another program answers
# at the first port; if nothing answers there, once in this many tries of an address.
TRIES = 10
# How long it may take until a connection is accepted, where the name has other addresses: TCP sends its second packet
# after 1 s.
CONNECT_S = 1.5
# How long a connection may take until the leader has proved itself: on its first port, as long as the leader itself
# waits; on another port, which a firewall may silently block.
PROVE_WITHIN_S = 5.0
ELSEWHERE_S = 1.0
# Once the leader was met, only a bad network or a busy leader is slow: each try takes longer than the one before, so
# that thousands of hosts that reconnect at once leave the leader time for those that it has accepted.
RESTART_S = 0.5
LONGER = 1.5
# The pause between two tries: so long at first, later a part of the time that the search has taken, but less than the
# leader waits for the next sign of a host that is away.
PAUSE_S = 0.1
LONGEST_PAUSE_S = 0.6
PAUSES_SHARE = 0.05
# Of the addresses that were tried, how many are named.
MOST = 4


class AddressTry(Record, frozen=True, kw_only=True):
    """The last try of an address: its number among all tries, how many there were, and how it ended ("": it runs)."""

    number: int = 0
    count: int = 0
    outcome: str = ""


class Route:
    """The addresses to try, in turn. *ports*: the leader's first port, then those that it uses if that one is taken."""

    def __init__(self, host: str, ports: tuple[int, ...], now_s: float) -> None:
        self._host = host
        self._ports = ports
        self._addresses: list[Address] = []
        self._resolved_s = now_s
        self._since_s = now_s
        self._number = 0
        self._tries: dict[Place, AddressTry] = {}
        self._elsewhere: list[Address] = []
        self._last: Address | None = None
        self._met: Address | None = None
        self._restart_s = RESTART_S
        self.lookup: Lookup | None = None
        # How long the last try may take until it is accepted, and until the leader has proved itself.
        self.connect_s = self.within_s = PROVE_WITHIN_S

    @property
    def met(self) -> bool:
        """True once the leader was found; from then on only that address is tried."""
        return self._met is not None

    @property
    def last(self) -> str:
        """The address of the last try, as text."""
        return "no address" if self._last is None else format_address(self._last[1])

    @property
    def ways_out(self) -> str:
        """Advice for when other programs have the leader's ports."""
        ports = ", ".join(map(str, self._ports))
        every = "on every host set TOOLKIT_LINK_PORT to a free port of the leader's"
        return f"the leader takes the first free one of ports {ports}: if all are taken, {every}"

    @property
    def elsewhere(self) -> bool:
        """True if the next try is at another port than the leader's first."""
        return bool(self._elsewhere)

    def describe_tries(self) -> str:
        """Return, for a log or a cause, which addresses of the leader were tried and how that ended; "" if none was."""
        if not self._addresses:
            ends = "has not been answered" if self.lookup is not None else "gave no address"
            return f"the look-up of the name {self._host} {ends}"
        outcomes = [
            f"{format_address(address)} ({attempt.outcome})"
            for address, attempt in self._tries.items()
            if attempt.outcome
        ]
        more = f" and {len(outcomes) - MOST} more" if len(outcomes) > MOST else ""
        return f"tried {', '.join(outcomes[:MOST])}{more}" if outcomes else ""

    def choose_address(self, now_s: float) -> Address | None:
        """Return the address to try now, None if none is known yet: the name is being looked up (`lookup`)."""
        if self._met is not None:
            self.within_s, self._restart_s = self._restart_s, min(LONGER * self._restart_s, PROVE_WITHIN_S)
            return self._met
        if self.lookup is None and (not self._addresses or now_s >= self._resolved_s + RESOLVE_EVERY_S):
            addresses = parse_address(self._host, self._ports[0])
            self._addresses, self._resolved_s = addresses or self._addresses, now_s
            if not addresses:
                self.lookup = Lookup(self._host, self._ports[0])
        if not self._addresses:
            return None
        self._last = self._choose()
        return self._last

    def take_lookup(self, now_s: float) -> bool:
        """Take the result of `lookup`; return False if it found no address."""
        assert self.lookup is not None
        self.lookup.close()
        addresses, self.lookup = self.lookup.found, None
        if addresses:
            self._addresses, self._resolved_s = addresses, now_s
        return bool(addresses)

    def pause_s(self, now_s: float, chance: float) -> float:
        """Return how long to wait after a try that failed; *chance*: from 0 to 1, so that hosts differ.

        Before the leader is met, it is shared between the name's addresses.
        """
        longest_s = min(max(PAUSES_SHARE * (now_s - self._since_s), PAUSE_S), LONGEST_PAUSE_S)
        share = 1 if self._met is not None else min(max(len(self._addresses), 1), TRIES)
        return longest_s * (0.75 + chance / 2) / share

    def note_outcome(self, outcome: str) -> None:
        """Note how the last try ended. Of a port that is not the first, only a program that answers is of interest."""
        if self._met is None and self._last is not None and (last := self._tries.get(self._last[1])) is not None:
            self._tries[self._last[1]] = AddressTry(number=last.number, count=last.count, outcome=outcome)

    def note_success(self, way_s: float, now_s: float) -> None:
        """Note that the leader has proved itself at the last address; *way_s*: how long an answer takes from there."""
        self._met = self._last if self._met is None else self._met
        self.connect_s = self._restart_s = max(RESTART_S, 4 * way_s)
        self._since_s = now_s

    def note_loss(self, now_s: float) -> None:
        """Note that the connection to the leader was lost."""
        self._since_s = now_s

    def note_other_program(self) -> None:
        """Note that something other than the leader answered at the last address. If that was its first port, the
        others are next; if not, they have their turn already."""
        if self._met is None and self._last is not None and self._last[1][1] == self._ports[0]:
            self._look_elsewhere(self._last)

    def close(self) -> None:
        if self.lookup is not None:
            self.lookup.close()

    def _look_elsewhere(self, first_port: Address) -> None:
        family, address = first_port
        self._elsewhere = [(family, (address[0], port, *address[2:])) for port in self._ports[1:]]

    def _choose(self) -> Address:
        if self._elsewhere:
            self.connect_s = self.within_s = ELSEWHERE_S
            return self._elsewhere.pop(0)
        # The first of those that were never tried: the system's order is that of preference.
        chosen = min(self._addresses, key=lambda address: self._last_try(address).number)
        last = self._last_try(chosen)
        self._number += 1
        self._tries[chosen[1]] = AddressTry(number=self._number, count=last.count + 1, outcome=last.outcome)
        if (last.count + 1) % TRIES == 0:
            self._look_elsewhere(chosen)
        self.within_s = PROVE_WITHIN_S
        self.connect_s = CONNECT_S if len(self._addresses) > 1 else PROVE_WITHIN_S
        return chosen

    def _last_try(self, address: Address) -> AddressTry:
        return self._tries.get(address[1], AddressTry())
