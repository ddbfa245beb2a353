"""Looks whether hosts that have not joined lead this job, too: where each lists itself first, none joins another."""

import _thread  # threading's, without its import.
import contextlib
import os
import socket
from collections.abc import Mapping

from toolkit.train.peers.frames import HEAD_BYTES, NONCE_BYTES
from toolkit.train.peers.lookup import resolve_addresses

# The first look, or at half of the time in which all have to join; then the time from one to the next.
LOOK_S = 5.0
EVERY_S = 10.0
# How many hosts, of these how many addresses, and how long each may take to accept and to greet.
MOST = 3
MOST_ADDRESSES = 4
WITHIN_S = 1.0


class Rivals:
    """Reads what answers at *port* of each of *places* (address or name, by host), one host after the other, in a
    thread. `fd` becomes readable when `greetings` is complete: by host, the nonce and the tag of a leader there."""

    def __init__(self, places: Mapping[str, str], port: int) -> None:
        self.greetings: dict[str, tuple[bytes, bytes]] = {}
        self.fd, tells = os.pipe()
        try:
            _thread.start_new_thread(self._look, (dict(places), port, tells))
        except RuntimeError:  # The container may have no more threads.
            os.close(tells)

    def close(self) -> None:
        """Stop waiting for it."""
        os.close(self.fd)

    def _look(self, places: dict[str, str], port: int, tells: int) -> None:
        for host, place in places.items():
            with contextlib.suppress(OSError, UnicodeError):
                greeting = _greeting(place, port)[HEAD_BYTES:]
                self.greetings[host] = greeting[:NONCE_BYTES], greeting[NONCE_BYTES:]
        with contextlib.suppress(OSError):
            os.write(tells, b"\0")
        os.close(tells)


def _greeting(place: str, port: int) -> bytes:
    for family, address in resolve_addresses(place, port)[:MOST_ADDRESSES]:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(WITHIN_S)
            sock.connect(address)
            return sock.recv(1 << 10)
    return b""
