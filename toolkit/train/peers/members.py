"""Pure: which followers are connected, which have lost their connection, and which have vanished."""

from toolkit.train.peers.protocol import BREAK_NS, CLAIM_S, FAREWELL_S, LEAST_CLAIMS, RECONNECT_S, RECONNECTS_PER_S
from toolkit.train.peers.reports import describe_break, describe_silence


class Members:
    """The followers of a job, as the leader sees their connections. One is silent after
    *heartbeat_timeout_s*."""

    def __init__(self, followers: tuple[str, ...], heartbeat_timeout_s: float) -> None:
        self._heartbeat_timeout_s = heartbeat_timeout_s
        # By follower: the mark of its process that joined.
        self._marks: dict[str, str] = {}
        self._heard_s: dict[str, float] = {}
        # When each follower that may still reconnect lost its connection.
        self._away_s: dict[str, float] = {}
        # The address of each follower, and when a connection last came from an address while any follower was away.
        self._address_of: dict[str, str] = {}
        self._addresses: set[str] = set()
        self._knocked_s: dict[str, float] = {}
        # By address: how many connections from there have not proved themselves yet.
        self._knocking: dict[str, int] = {}
        # The most hosts that were away at once since none was.
        self._most_away = 0
        # Followers of which a message came after the leader had taken them: they know that they have joined.
        self._confirmed: set[str] = set()
        # Followers that never joined; those declared gone; those that are connected and have not sent Bye.
        self.absent = set(followers)
        self.gone: set[str] = set()
        self.here: set[str] = set()
        # Followers that connect through a proxy or address translation.
        self._proxied: set[str] = set()
        # By follower that has not joined: when its machine first sent a proof made with another key, and how many.
        self._claims: dict[str, tuple[float, int]] = {}
        # The leader's own longest pause.
        self.paused_s = 0.0

    def knows_other(self, host: str, mark: str) -> bool:
        """True if *host* has joined before as another process."""
        return self._marks.setdefault(host, mark) != mark

    def note_address(self, host: str, address: str, *, direct: bool) -> None:
        """Note that *host* has connected from *address*. Not *direct*: through a proxy, which may break the connection,
        and accept new ones that do not reach the leader, while both ends live."""
        self._addresses.add(address)
        self._address_of[host] = address
        (self._proxied.discard if direct else self._proxied.add)(host)

    def note_connection(self, host: str, now_s: float) -> bool:
        """Note that *host* has proved itself on a new connection. Return True for its first one."""
        first = host in self.absent
        if first:
            self.absent.discard(host)
            self._claims.pop(host, None)
        self.here.add(host)
        self._note_return(host)
        self._heard_s[host] = now_s
        return first

    def _note_return(self, host: str) -> None:
        self._away_s.pop(host, None)
        if not self._away_s:
            self._most_away = 0

    def note_message(self, host: str, now_s: float) -> None:
        self._heard_s[host] = now_s
        self._confirmed.add(host)

    def forget_unconfirmed(self, host: str, now_s: float) -> bool:
        """Count *host* as absent again, and return True, if it does not know that it has joined and is away, or silent
        for too long: on a bad network the leader's answer may be lost. It tries again, and has not vanished."""
        if host in self._confirmed or host not in self.here:
            return False
        if host not in self._away_s and now_s < self._heard_s[host] + self._heartbeat_timeout_s:
            return False
        self.here.discard(host)
        self._note_return(host)
        self._marks.pop(host, None)
        self.absent.add(host)
        return True

    def farewell_ends_s(self, settled_s: float) -> float:
        """Return until when the leader stays for hosts that have not said Bye to the verdict of *settled_s*: each as
        long as it would count as alive, so that a short outage does not lose it the verdict."""
        waits = self.here - self.gone
        if not waits:
            return settled_s
        latest_s = settled_s + self._heartbeat_timeout_s
        ends = (
            self.back_by_s(host) if host in self._away_s else self._heard_s[host] + self._heartbeat_timeout_s
            for host in waits
        )
        return min(max(settled_s + FAREWELL_S, *ends), latest_s)

    def note_bye(self, host: str) -> None:
        self.here.discard(host)

    def note_disconnection(self, host: str, now_s: float) -> bool:
        """Note that *host* has lost its connection. Return True if it may reconnect."""
        if host in self.gone:
            self.here.discard(host)
        if host not in self.here:
            return False
        self._away_s[host] = now_s
        self._most_away = max(self._most_away, len(self._away_s))
        return True

    @property
    def away(self) -> tuple[str, ...]:
        """The followers that have lost their connection and may reconnect."""
        return tuple(self._away_s)

    def note_knock(self, address: str, now_s: float) -> None:
        """Note a connection from *address*: while these come, or stand without proof, a follower there that is away may
        reconnect within the heartbeat timeout, even if each new connection is cut, too. It costs the same for any
        number of followers."""
        self._knocking[address] = self._knocking.get(address, 0) + 1
        if self._away_s and address in self._addresses:
            self._knocked_s[address] = now_s

    def note_knock_end(self, address: str, now_s: float) -> None:
        """Note that such a connection has ended, or has proved itself."""
        count = self._knocking.pop(address, 0) - 1
        if count > 0:
            self._knocking[address] = count
        if self._away_s and address in self._addresses:
            self._knocked_s[address] = now_s

    def back_by_s(self, host: str) -> float:
        """Return when *host*, which is away, must have reconnected; the leader may need a while for thousands."""
        lost_s = self._away_s[host]
        within_s = RECONNECT_S + self._most_away / RECONNECTS_PER_S
        latest_s = max(self._heard_s[host] + self._heartbeat_timeout_s, lost_s + within_s)
        address = self._address_of.get(host, "")
        if host in self._proxied or address in self._knocking:
            return latest_s
        return min(max(lost_s, self._knocked_s.get(address, 0.0)) + within_s, latest_s)

    def take_loss(self, host: str, now_s: float, now_ns: int) -> tuple[str, int, float | None] | None:
        """Return how *host* was lost, when (ns), and when its connection was lost (s; None: it is still there) if its
        time is over, and count it as gone; else None."""
        lost_s = self._away_s.get(host)
        if now_s < (self._heard_s[host] + self._heartbeat_timeout_s if lost_s is None else self.back_by_s(host)):
            return None
        self.gone.add(host)
        silent_s = now_s - self._heard_s[host]
        at_ns = now_ns - int(silent_s * 1e9)
        if lost_s is None:
            return describe_silence(silent_s), at_ns, None
        self._note_return(host)
        self.here.discard(host)
        return describe_break(), max(at_ns, now_ns - int((now_s - lost_s) * 1e9) - BREAK_NS), lost_s

    def note_claim(self, host: str, now_s: float) -> None:
        """Note that the machine with *host*'s address sent a proof made with another key."""
        if host in self.absent:
            first_s, count = self._claims.get(host, (now_s, 0))
            self._claims[host] = (first_s, count + 1)

    def find_other_key(self, now_s: float) -> str | None:
        """Return a follower whose machine has sent proofs made with another key for CLAIM_S, so that no right one will
        come; None if there is none."""
        for host, (first_s, count) in self._claims.items():
            if count >= LEAST_CLAIMS and now_s >= first_s + CLAIM_S:
                return host
        return None

    @property
    def without_key(self) -> set[str]:
        """The followers that have not joined and send no proofs made with another key."""
        return self.absent - self._claims.keys()

    def forgive_pause(self, pause_s: float, now_s: float) -> None:
        """Extend all timeouts: the leader itself was paused for *pause_s*, and could not hear any host in that time."""
        self.paused_s = max(self.paused_s, pause_s)
        self._heard_s = {host: min(heard_s + pause_s, now_s) for host, heard_s in self._heard_s.items()}
        self._away_s = {host: min(away_s + pause_s, now_s) for host, away_s in self._away_s.items()}
