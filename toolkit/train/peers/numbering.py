"""Numbers the hosts of a job that know only where they meet, as torchrun's c10d rendezvous has it (docs/torchrun.md).

The host at that address waits there for the others, and gives each its number; its own is 0. The others are numbered by
the number that they ask for, then by their names. Each side proves that it knows the job's key, so a host of another
rendezvous is refused, and told so. Nothing but the numbers is exchanged: the link between the hosts comes after.
"""

import contextlib
import hashlib
import hmac
import math
import os
import select
import socket
import time
from collections.abc import Iterator

import msgspec

from toolkit.errors import ContractError, PlatformError
from toolkit.log import Log
from toolkit.records import Record, encode
from toolkit.train.peers.leader_link import listen
from toolkit.train.peers.lookup import Address, Lookup, is_own, parse_address

NONCE_BYTES = 16
LONGEST_BYTES = 4096
PROVE_WITHIN_S = 5.0
RETRY_S = 0.25
PAUSE_S = 0.5
MOST_NAMED = 64
UNKNOWN = "its address is not known"
NO_NUMBERS = "what listens there is no toolkit torchrun that numbers hosts"
# Reasons for another try that are told.
MOST_REASONS = 8
# Connections that may wait to prove themselves; the oldest is dropped for a new one.
MOST_UNPROVED = 256


class Question(Record, frozen=True, kw_only=True):
    """The first line of the host that numbers."""

    nonce: str


class Request(Record, frozen=True, kw_only=True):
    """A host asks for its number."""

    name: str
    wish: int
    """The number that its line gives, 0 without one."""
    hosts: int
    """The number of hosts that it expects."""
    job: str
    """The name of its job."""
    nonce: str
    proof: str


class Answer(Record, frozen=True, kw_only=True):
    """The number of a host, or why it gets none."""

    number: int = 0
    refusal: str = ""
    proof: str = ""


class MeetingPlace(Record, frozen=True, kw_only=True):
    """The place at which the hosts meet, and this host's part."""

    host: str
    port: int
    key: bytes
    hosts: int
    job: str
    """The job's name, which its hosts must share (their link has it, too)."""
    name: str
    """This host's."""
    wish: int
    is_host: bool | None
    """This host is at the address; None: found by the address."""
    within_s: float
    """The seconds to wait for the others."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def proof(self, role: str, *parts: str) -> str:
        """Return what only a host with the job's key can send."""
        return hmac.new(self.key, "\n".join((role, *parts)).encode(), "sha256").hexdigest()


def meeting_key(run_id: str, port: int, secret: str) -> bytes:
    """Return the key of the hosts that meet with *run_id* at *port*; *secret*: the user's own, if there is one."""
    return hashlib.sha256("\0".join(("toolkit torchrun 1", run_id, str(port), secret)).encode()).digest()


def find_number(place: MeetingPlace, log: Log) -> int:
    """Return this host's number among those that meet at *place*.

    Raises:
        PlatformError: they did not meet in time, or the port is in use.
        ContractError: this host does not belong to the others.
    """
    ends_s = time.monotonic() + place.within_s
    if place.is_host or (place.is_host is None and _is_here(place, ends_s)):
        try:
            listener = listen(place.host, place.port)
        except OSError as error:
            if place.is_host:
                message = f"expected a free port for the hosts to meet at, found: {error.strerror}"
                raise PlatformError(message, where=str(place), hint="Give another --rdzv-endpoint.") from None
            # Another host of the job, on this machine, may be the first.
            log.info(f"{place}, this host's, is in use: asking who listens there")
        else:
            with listener:
                return _number_all(listener, place, ends_s, log)
    return _ask(place, ends_s, log)


def _is_here(place: MeetingPlace, ends_s: float) -> bool:
    if place.host.lower() in ("localhost", os.uname().nodename.lower()):
        return True
    return any(is_own(address) for address in _addresses(place, min(ends_s, time.monotonic() + PROVE_WITHIN_S)))


def _addresses(place: MeetingPlace, ends_s: float) -> list[Address]:
    """Return the addresses of the meeting place, [] if they are not known by *ends_s*."""
    found = parse_address(place.host, place.port)
    if found:
        return found
    lookup = Lookup(place.host, place.port)
    poll = select.poll()
    poll.register(lookup.fd, select.POLLIN)
    try:
        poll.poll(max(ends_s - time.monotonic(), 0) * 1000)
        return lookup.found or []
    finally:
        lookup.close()


class _Guest:
    """A connection of another host, at the host that numbers."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.since_s = time.monotonic()
        self.nonce = os.urandom(NONCE_BYTES).hex()
        self.held = b""
        self.request: Request | None = None


def _number_all(listener: socket.socket, place: MeetingPlace, ends_s: float, log: Log) -> int:
    """Wait for the other hosts, and tell each its number; return that of this host, 0."""
    log.info(f"waiting at {place} for {place.hosts - 1} more host{'s' * (place.hosts > 2)}")
    listener.setblocking(False)
    guests: dict[int, _Guest] = {}
    refused_reasons: set[str] = set()
    poll = select.poll()
    accepts_s = 0.0  # When the listener is polled again; inf while it is.

    def drop(guest: _Guest) -> None:
        poll.unregister(guest.sock.fileno())
        del guests[guest.sock.fileno()]
        guest.sock.close()

    try:
        while sum(guest.request is not None for guest in guests.values()) < place.hosts - 1:
            now_s = time.monotonic()
            if now_s > ends_s:
                came = sorted(guest.request.name[:80] for guest in guests.values() if guest.request is not None)
                names = ", ".join(map(ascii, (place.name, *came[:MOST_NAMED]))) + ", ..." * (len(came) > MOST_NAMED)
                raise PlatformError(
                    f"expected {place.hosts} hosts, found {1 + len(came)} within {place.within_s:g} s: {names}",
                    where=f"rendezvous at {place}",
                    hint="Start the same line on every host; see that they reach this address and port.",
                )
            if now_s >= accepts_s:
                poll.register(listener.fileno(), select.POLLIN)
                accepts_s = math.inf
            for fd, _ in poll.poll(min(1.0, ends_s - now_s + 0.01) * 1000):
                if fd == listener.fileno():
                    guest = _accept(listener)
                    if guest is not None:
                        guests[guest.sock.fileno()] = guest
                        poll.register(guest.sock.fileno(), select.POLLIN)
                    else:  # As without a free descriptor: who waits would end each poll at once.
                        poll.unregister(listener.fileno())
                        accepts_s = now_s + PAUSE_S
                elif fd in guests and not _read(guests[fd], place, refused_reasons, log):
                    drop(guests[fd])
            unproved = [guest for guest in guests.values() if guest.request is None]
            late = [guest for guest in unproved if time.monotonic() > guest.since_s + PROVE_WITHIN_S]
            for guest in late or unproved[: max(len(unproved) - MOST_UNPROVED, 0)]:
                drop(guest)
        _answer_all([guest for guest in guests.values() if guest.request is not None], place)
        return 0
    finally:
        for guest in guests.values():
            guest.sock.close()


def _accept(listener: socket.socket) -> _Guest | None:
    try:
        sock, _ = listener.accept()
    except OSError:
        return None
    guest = _Guest(sock)
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        sock.send(_line(Question(nonce=guest.nonce)))
    return guest


def _read(guest: _Guest, place: MeetingPlace, refused_reasons: set[str], log: Log) -> bool:
    """Read what came from *guest*; return False if its connection is to be closed."""
    try:
        piece = guest.sock.recv(LONGEST_BYTES)
    except BlockingIOError:
        return True
    except OSError:
        return False
    guest.held += piece
    if not piece or len(guest.held) > LONGEST_BYTES or guest.request is not None:
        return False
    if b"\n" not in guest.held:
        return True
    try:
        request = msgspec.json.decode(guest.held.partition(b"\n")[0], type=Request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    refusal = _refusal(request, guest.nonce, place)
    if refusal:
        if refusal not in refused_reasons:
            refused_reasons.add(refusal)
            log.warning(f"rendezvous at {place}: refused host {request.name[:80]!r}: {refusal}")
        with contextlib.suppress(OSError):
            guest.sock.send(_line(Answer(refusal=refusal, proof=place.proof("refusal", request.nonce))))
        return False
    guest.request = request
    return True


def _refusal(request: Request, nonce: str, place: MeetingPlace) -> str:
    fields = (nonce, request.nonce, request.name, str(request.wish), str(request.hosts), request.job)
    if not hmac.compare_digest(request.proof.encode(), place.proof("request", *fields).encode()):
        return "its rendezvous has another id, port or secret"
    if request.hosts != place.hosts:
        return f"its line has --nnodes {request.hosts}, that of the host at the rendezvous {place.hosts}"
    if request.job != place.job:
        return f"without --rdzv-id jobs are told apart by script: its is {request.job[:80]!r}, here {place.job!r}"
    return ""


def _answer_all(guests: list[_Guest], place: MeetingPlace) -> None:
    """Tell each of *guests* its number, and wait until they have closed: the ports in TIME_WAIT are then theirs."""

    def order(guest: _Guest) -> tuple[int, str]:
        assert guest.request is not None
        return guest.request.wish, guest.request.name

    for number, guest in enumerate(sorted(guests, key=order), 1):
        assert guest.request is not None
        answer = Answer(number=number, proof=place.proof("answer", guest.request.nonce, str(number)))
        with contextlib.suppress(OSError):
            guest.sock.send(_line(answer))
    ends_s = time.monotonic() + PROVE_WITHIN_S
    for guest in guests:
        poll = select.poll()
        poll.register(guest.sock.fileno(), select.POLLIN)
        poll.poll(max(ends_s - time.monotonic(), 0) * 1000)


def _ask(place: MeetingPlace, ends_s: float, log: Log) -> int:
    """Return the number that the host at *place* gives this one."""
    log.info(f"asking {place} for this host's number among {place.hosts}")
    said: set[str] = set()
    reason = UNKNOWN
    while True:
        addresses = _addresses(place, ends_s)
        if not addresses and time.monotonic() < ends_s:
            reason = UNKNOWN
        for address in addresses:
            number, reason = _ask_at(address, place, ends_s)
            if number is not None:
                return number
        if reason not in said and len(said) < MOST_REASONS:
            said.add(reason)
            log.info(f"rendezvous at {place}: {reason}; trying for {max(ends_s - time.monotonic(), 0):.0f} s")
        if time.monotonic() > ends_s:
            raise PlatformError(
                f"expected the host at the rendezvous to number this one, found: {reason} ({place.within_s:g} s)",
                where=f"rendezvous at {place}",
                hint="Start the same line on every host, also there; see that this one reaches that address and port.",
            )
        select.select((), (), (), RETRY_S)


def _ask_at(address: Address, place: MeetingPlace, ends_s: float) -> tuple[int | None, str]:
    """Return (this host's number, ""), or (None, why it got none).

    Raises:
        ContractError: this host does not belong to the others.
    """
    family, where = address
    is_open = asked = False
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            sock.settimeout(PROVE_WITHIN_S)
            sock.connect(where)
            is_open = True
            lines = _lines(sock)
            question = msgspec.json.decode(next(lines), type=Question)
            nonce = os.urandom(NONCE_BYTES).hex()
            fields = (question.nonce, nonce, place.name, str(place.wish), str(place.hosts), place.job)
            proof = place.proof("request", *fields)
            request = Request(
                name=place.name, wish=place.wish, hosts=place.hosts, job=place.job, nonce=nonce, proof=proof
            )
            sock.sendall(_line(request))
            asked = True
            sock.settimeout(max(ends_s - time.monotonic(), 0.1))  # Until the others are there.
            answer = msgspec.json.decode(next(lines), type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, StopIteration):
            return None, "the host there has ended" if asked else NO_NUMBERS
        except TimeoutError:
            if asked:
                return None, "the other hosts have not come"
            return None, NO_NUMBERS if is_open else "nothing answers there"
        except OSError as error:
            return None, error.strerror or str(error)
    if answer.refusal:
        raise ContractError(
            f"expected to belong to the hosts that meet here, found: {_printable(answer.refusal[:200])}",
            where=f"rendezvous at {place}",
            hint="Start the same line on every host; give jobs that share a machine different ports.",
        )
    if not hmac.compare_digest(answer.proof, place.proof("answer", nonce, str(answer.number))):
        return None, "the host there does not know this rendezvous' id"
    return answer.number, ""


def _printable(text: str) -> str:
    """Return *text*, which anybody may have sent, without what would move a terminal's cursor or begin a line."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _lines(sock: socket.socket) -> Iterator[bytes]:
    """Yield the lines that come from *sock*, until it ends."""
    held = b""
    while len(held) <= LONGEST_BYTES:
        piece = sock.recv(LONGEST_BYTES)
        if not piece:
            return
        held += piece
        while b"\n" in held:
            line, _, held = held.partition(b"\n")
            yield line


def _line(message: Question | Request | Answer) -> bytes:
    return encode(message) + b"\n"
