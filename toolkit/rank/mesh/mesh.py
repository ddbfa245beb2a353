"""Connections between all ranks of a group, each made once and checked by tokens.

Each rank opens a `Door`: it listens on every address by which others may know it, and draws a random token. The ranks
exchange their doors' cards (token and addresses) over whatever they share: a store, MPI, torch. Of two ranks the
higher one connects. It sends the other's token and expects its own back. An address that leads elsewhere (127.0.1.1 in
/etc/hosts) fails this check and the next is tried; other processes' connections are closed.
"""

import contextlib
import hmac
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

TOKEN_BYTES = 16
HELLO = struct.Struct(f"<{TOKEN_BYTES}sq")
CONNECT_WITHIN_S = 5.0  # for one address: behind a firewall that drops packets, none answers
# Connections that a peer has accepted and not yet checked, at most; more than the ranks that may call at once.
BACKLOG = 1024

# An address as `socket` has it: (host, port), or the name of a unix socket.
Address = tuple[str, int] | bytes


class Card(NamedTuple):
    """What other ranks need to reach a door: picklable."""

    token: bytes
    addresses: tuple[Address, ...]


class Door:
    """This rank's listening sockets, as number *me*, open within its `with` block.

    *addresses* are this host's, the most likely first. With *host* (the word that only ranks of this host have,
    rank/mesh/host.py) ranks of one host connect over a unix socket of the machine's abstract name space, the first of
    `Card.addresses`: it takes less time than TCP.
    """

    def __init__(self, me: int, addresses: Sequence[str], host: str = "") -> None:
        self.me = me
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._host = host.encode()
        self._listeners = _listen(addresses)
        if host:
            self._listeners.insert(0, _listen_here(b"\0toolkit/" + secrets.token_hex(TOKEN_BYTES).encode()))
        self.card = Card(self._token, tuple(_address(listener) for listener in self._listeners))

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()

    def connect(
        self, cards: Sequence[Card], names: Sequence[str], within_s: float, hosts: Sequence[str] = ()
    ) -> dict[int, socket.socket]:
        """Return a blocking socket to each other rank. All ranks call this together, once, with all ranks' *cards*.

        *names* are the ranks' names for messages, *hosts* their hosts' words: equal ones connect over unix sockets.
        Raises:
            OSError: no address of a rank can be listened on, or a peer did not connect within *within_s*.
        """
        if shut := [name for name, card in zip(names, cards, strict=True) if not card.addresses]:
            raise ConnectionRefusedError(f"{shut[0]} has no address that it could listen on")
        deadline_s = time.monotonic() + within_s
        peers: dict[int, socket.socket] = {}
        try:
            for peer in range(self.me):
                near = bool(hosts) and hosts[peer] == hosts[self.me] != ""
                peers[peer] = self._connect_to(cards[peer], names[peer], near, deadline_s)
            while len(peers) < len(cards) - 1:
                self._accept(cards, names, peers, deadline_s)
        except OSError:
            for its in peers.values():
                its.close()
            raise
        for its in peers.values():
            if its.family != socket.AF_UNIX:
                its.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            its.settimeout(None)
        return peers

    def _connect_to(self, card: Card, name: str, near: bool, deadline_s: float) -> socket.socket:
        tried = []
        for address in card.addresses:
            if isinstance(address, bytes) and not near:
                continue
            shown = "a unix socket" if isinstance(address, bytes) else f"{address[0]} port {address[1]}"
            rest_s = min(CONNECT_WITHIN_S, max(0.01, deadline_s - time.monotonic()))
            try:
                its = _connected(address, rest_s)
            except OSError as error:
                tried.append(f"{shown}: {error}")
                continue
            try:
                its.sendall(HELLO.pack(card.token, self.me))
                if hmac.compare_digest(its.recv(TOKEN_BYTES, socket.MSG_WAITALL), self._token):
                    return its
                tried.append(f"{shown}: another process answered")
            except OSError as error:
                tried.append(f"{shown}: {error}")
            its.close()
        raise ConnectionRefusedError(f"{name} could not be reached ({'; '.join(tried) or 'it has no address'})")

    def _accept(
        self, cards: Sequence[Card], names: Sequence[str], peers: dict[int, socket.socket], deadline_s: float
    ) -> None:
        poll = select.poll()
        by_descriptor = {listener.fileno(): listener for listener in self._listeners}
        for listener in self._listeners:
            poll.register(listener, select.POLLIN)
        ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
        if not ready:
            absent = [names[peer] for peer in range(self.me + 1, len(cards)) if peer not in peers]
            raise TimeoutError(f"{', '.join(absent)} did not connect")
        its, _ = by_descriptor[ready[0][0]].accept()
        its.settimeout(CONNECT_WITHIN_S)
        with contextlib.suppress(OSError, struct.error):
            said, peer = HELLO.unpack(its.recv(HELLO.size, socket.MSG_WAITALL))
            if hmac.compare_digest(said, self._token) and self.me < peer < len(cards) and peer not in peers:
                its.sendall(cards[peer].token)
                peers[peer] = its
                return
        its.close()  # Another process's.


def _connected(address: Address, within_s: float) -> socket.socket:
    if not isinstance(address, bytes):
        return socket.create_connection(address, timeout=within_s)
    its = socket.socket(socket.AF_UNIX)
    try:
        its.settimeout(within_s)
        its.connect(address)
    except OSError:
        its.close()
        raise
    return its


def _address(listener: socket.socket) -> Address:
    if listener.family == socket.AF_UNIX:
        return bytes(listener.getsockname())
    host, port = listener.getsockname()[:2]
    return str(host), int(port)


def _listen_here(name: bytes) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(BACKLOG)
    return listener


def _listen(addresses: Sequence[str]) -> list[socket.socket]:
    """Return a listening socket for each of *addresses* that can be listened on."""
    found = []
    for address in addresses:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            listener.bind((address, 0))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            continue
        found.append(listener)
    return found
