"""Connections between all ranks of a group, each made once and checked by tokens.

Each rank opens a `MeshListener`: it listens on every address by which other ranks may reach it, and draws a random
token. The ranks exchange the `ContactInfo` (token and addresses) of their listeners over a channel they share: a store,
MPI, torch. Of two ranks the higher one connects. It sends the other's token and expects its own back. An address that
leads elsewhere (127.0.1.1 in /etc/hosts) fails this check and the next is tried; other processes' connections are
closed.
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


class ContactInfo(NamedTuple):
    """The token and addresses that other ranks need to reach a listener: picklable."""

    token: bytes
    addresses: tuple[Address, ...]


class MeshListener:
    """This rank's listening sockets, as number *me*, open within its `with` block.

    *addresses* are this host's, the most likely first. With *host_id* (text that only ranks of this host have,
    rank/mesh/host.py) ranks of one host connect over a unix socket of the machine's abstract name space, the first of
    `ContactInfo.addresses`: it takes less time than TCP.
    """

    def __init__(self, me: int, addresses: Sequence[str], host_id: str = "") -> None:
        self.me = me
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._sockets = _listen_on_addresses(addresses)
        if host_id:
            self._sockets.insert(0, _listen_on_unix_socket(b"\0toolkit/" + secrets.token_hex(TOKEN_BYTES).encode()))
        self.contact = ContactInfo(self._token, tuple(_address(listener) for listener in self._sockets))

    def __enter__(self) -> "MeshListener":
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._sockets:
            listener.close()

    def connect(
        self, contacts: Sequence[ContactInfo], names: Sequence[str], within_s: float, host_ids: Sequence[str] = ()
    ) -> dict[int, socket.socket]:
        """Return a blocking socket to each other rank. All ranks call this together, once, with all ranks' *contacts*.

        *names* are the ranks' names for messages, *host_ids* their hosts' IDs: ranks with equal IDs connect over unix
        sockets.

        Raises:
            OSError: no address of a rank can be listened on, or a peer did not connect within *within_s*.
        """
        if unreachable := [name for name, contact in zip(names, contacts, strict=True) if not contact.addresses]:
            raise ConnectionRefusedError(f"{unreachable[0]} has no address that it could listen on")
        deadline_s = time.monotonic() + within_s
        peers: dict[int, socket.socket] = {}
        try:
            for peer in range(self.me):
                is_same_host = bool(host_ids) and host_ids[peer] == host_ids[self.me] != ""
                peers[peer] = self._connect_to(contacts[peer], names[peer], is_same_host, deadline_s)
            while len(peers) < len(contacts) - 1:
                self._accept(contacts, names, peers, deadline_s)
        except OSError:
            for connection in peers.values():
                connection.close()
            raise
        for connection in peers.values():
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(None)
        return peers

    def _connect_to(self, contact: ContactInfo, name: str, is_same_host: bool, deadline_s: float) -> socket.socket:
        failures = []
        for address in contact.addresses:
            if isinstance(address, bytes) and not is_same_host:
                continue
            destination = "a unix socket" if isinstance(address, bytes) else f"{address[0]} port {address[1]}"
            timeout_s = min(CONNECT_WITHIN_S, max(0.01, deadline_s - time.monotonic()))
            try:
                connection = _connect(address, timeout_s)
            except OSError as error:
                failures.append(f"{destination}: {error}")
                continue
            try:
                connection.sendall(HELLO.pack(contact.token, self.me))
                if hmac.compare_digest(connection.recv(TOKEN_BYTES, socket.MSG_WAITALL), self._token):
                    return connection
                failures.append(f"{destination}: another process answered")
            except OSError as error:
                failures.append(f"{destination}: {error}")
            connection.close()
        raise ConnectionRefusedError(f"{name} could not be reached ({'; '.join(failures) or 'it has no address'})")

    def _accept(
        self, contacts: Sequence[ContactInfo], names: Sequence[str], peers: dict[int, socket.socket], deadline_s: float
    ) -> None:
        poll = select.poll()
        by_descriptor = {listener.fileno(): listener for listener in self._sockets}
        for listener in self._sockets:
            poll.register(listener, select.POLLIN)
        ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
        if not ready:
            absent = [names[peer] for peer in range(self.me + 1, len(contacts)) if peer not in peers]
            raise TimeoutError(f"{', '.join(absent)} did not connect")
        connection, _ = by_descriptor[ready[0][0]].accept()
        connection.settimeout(CONNECT_WITHIN_S)
        with contextlib.suppress(OSError, struct.error):
            token, peer = HELLO.unpack(connection.recv(HELLO.size, socket.MSG_WAITALL))
            if hmac.compare_digest(token, self._token) and self.me < peer < len(contacts) and peer not in peers:
                connection.sendall(contacts[peer].token)
                peers[peer] = connection
                return
        connection.close()  # Another process's.


def _connect(address: Address, within_s: float) -> socket.socket:
    if not isinstance(address, bytes):
        return socket.create_connection(address, timeout=within_s)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(within_s)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _address(listener: socket.socket) -> Address:
    if listener.family == socket.AF_UNIX:
        return bytes(listener.getsockname())
    host, port = listener.getsockname()[:2]
    return str(host), int(port)


def _listen_on_unix_socket(name: bytes) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(BACKLOG)
    return listener


def _listen_on_addresses(addresses: Sequence[str]) -> list[socket.socket]:
    """Return a listening socket for each of *addresses* on which this process can listen."""
    listeners = []
    for address in addresses:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            listener.bind((address, 0))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            continue
        listeners.append(listener)
    return listeners
