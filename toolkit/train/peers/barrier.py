"""Pure: the barrier before a job's ranks start: the ranks of all hosts start together, once every host is ready."""

from toolkit.train.peers.messages import EndReport
from toolkit.train.peers.protocol import ANSWER_S, TELL_EVERY_S
from toolkit.train.peers.reports import (
    describe_needs,
    describe_two_leaders,
    name_hosts,
    report_late,
    report_shared_address,
    with_cause,
)


class StartBarrier:
    """Knows which of *hosts* (the first leads) are ready. *survey*: `take_addresses` must be called before the ranks
    start."""

    def __init__(self, hosts: tuple[str, ...], join_s: float, now_s: float, *, survey: bool) -> None:
        self._hosts = hosts
        self._join_s = join_s
        # Whether the hosts' addresses are being looked up; the network namespace of each host, and its address, where
        # that is certain.
        self._surveys = survey
        self._addresses: dict[str, frozenset[str]] = {}
        self._spaces: dict[str, str] = {}
        self._seen: dict[str, frozenset[str]] = {}
        # Where a leader of this job answers, too.
        self._leaders: set[str] = set()
        self.begin(now_s)

    def begin(self, now_s: float) -> None:
        """Begin an attempt: no host is ready."""
        self.opened = False
        self._ready: set[str] = set()
        # What each host that is not ready waits for.
        self._waits: dict[str, str] = {}
        self._ends_s = now_s + self._join_s
        self._next_tell_s = now_s + TELL_EVERY_S

    def note_place(self, host: str, space: str, address: str = "") -> None:
        """Note that *host* is in the network namespace *space*, and has *address*, if that is certain."""
        self._spaces[host] = space
        if address:
            self._seen[host] = frozenset({address})

    def take_addresses(self, addresses: dict[str, frozenset[str]], own_addresses: frozenset[str] = frozenset()) -> None:
        """Take the addresses of each host, as far as this host's look-up found them; *own_addresses*: those of
        them that are its own."""
        self._surveys = False
        self._addresses = addresses
        self._seen[self._hosts[0]] = own_addresses

    def note_rival(self, host: str) -> None:
        """Note that at *host*, which has not joined, a leader of this job answers."""
        self._leaders.add(host)

    def note_ready(self, host: str) -> None:
        self._ready.add(host)
        self._waits.pop(host, None)

    def note_needs(self, host: str, needs: str) -> None:
        """Note that *host* is not ready: it waits for *needs*."""
        self._waits[host] = needs

    @property
    def is_complete(self) -> bool:
        """True once the ranks may start."""
        return not self.opened and not self._surveys and len(self._ready) == len(self._hosts)

    def find_conflict(self) -> EndReport | None:
        """Return the report of two hosts whose names lead to one of them; None if there are none.

        MPI would start the ranks of both on one of them; other launchers would wait for ranks that cannot be reached.
        """
        twins = _twins(self._addresses, self._seen, self._spaces)
        return report_shared_address(self._hosts[0], *twins) if twins is not None else None

    def is_timed_out(self, now_s: float) -> bool:
        """True once the time in which every host has to be ready is over."""
        return now_s >= self._ends_s

    def report_overdue(self, absent: set[str], now_s: float, now_ns: int) -> EndReport | None:
        """Return the report of the hosts that are not ready in time; None while they have time. *absent*: the hosts
        that have not joined."""
        missing, busy = self._missing(absent)
        # A host whose own wait ends at this moment is about to report what it waited for.
        untold = {self._hosts[0], *busy} - self._ready - self._waits.keys()
        if now_s < self._ends_s + (ANSWER_S if untold else 0.0):
            return None
        late = [*missing, *busy] or [self._hosts[0]]
        report = report_late(late, self._join_s, now_ns, came=not missing, waits=self._waits)
        return with_cause(report, message=report.cause.message + self._of_leaders(missing))

    def take_reminder(self, absent: set[str], now_s: float) -> str:
        """Return, every few seconds, a line with the hosts that the job waits for; otherwise ""."""
        if now_s < self._next_tell_s:
            return ""
        self._next_tell_s = now_s + TELL_EVERY_S
        missing, busy = self._missing(absent)
        ready = f"{name_hosts(busy)} to be ready" + describe_needs(busy, self._waits)
        parts = [f"{name_hosts(missing)} to join"] * bool(missing) + [ready] * bool(busy)
        return "waiting for " + " and ".join(parts) + self._of_leaders(missing) if parts else ""

    def _of_leaders(self, missing: list[str]) -> str:
        leaders = [host for host in missing if host in self._leaders]
        return f"; {describe_two_leaders(self._hosts[0], leaders[0])}" if leaders else ""

    def _missing(self, absent: set[str]) -> tuple[list[str], list[str]]:
        """Return (followers that have not joined, followers that have joined and are not ready), in the job's order."""
        followers = self._hosts[1:]
        missing = [host for host in followers if host in absent]
        return missing, [host for host in followers if host not in absent and host not in self._ready]

    def due_s(self) -> tuple[float, ...]:
        """Return the times at which the results of `report_overdue` or `take_reminder` may change."""
        return () if self.opened else (self._ends_s, self._ends_s + ANSWER_S, self._next_tell_s)


def _twins(
    addresses: dict[str, frozenset[str]], certain: dict[str, frozenset[str]], spaces: dict[str, str]
) -> tuple[str, str, frozenset[str]] | None:
    """Return (host, other host, addresses) of two hosts in different network namespaces of which one name leads to the
    other host, as all its addresses prove; None if there are none.

    *certain*: where each host is for certain. *spaces*: the namespace of each host that has reported it. One address of
    several may be on every host (that of docker0), and the name of a service may have the addresses of all of them.
    """
    order = list(addresses)
    first: dict[frozenset[str], str] = {}
    owner = {address: host for host in order for address in certain.get(host, ())}

    def apart(first: str, other: str) -> bool:
        return first != other and not (spaces.get(first) and spaces.get(first) == spaces.get(other))

    def pair(first: str, other: str) -> tuple[str, str, frozenset[str]]:
        earlier, later = sorted((first, other), key=order.index)
        return earlier, later, addresses[host]

    for host in order:
        named_addresses, host_addresses = addresses[host], certain.get(host, frozenset())
        if not named_addresses or named_addresses & host_addresses:
            continue
        owners = {owner.get(address, "") for address in named_addresses}
        if len(owners) == 1 and (owner_host := owners.pop()) and apart(owner_host, host):
            return pair(owner_host, host)
    for host in order:
        if not addresses[host]:
            continue
        same = first.setdefault(addresses[host], host)
        # A host that is at none of the addresses of its name, where another one of that name is.
        stray = {bool(certain[twin] & addresses[twin]) for twin in (same, host) if certain.get(twin)} == {True, False}
        if apart(same, host) and (len(addresses[host]) == 1 or stray):
            return pair(same, host)
    return None
