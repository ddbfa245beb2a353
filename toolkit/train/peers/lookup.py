"""Looks up a host's addresses in a thread: if a name server does not answer, getaddrinfo blocks for half a minute, and
`train` must handle signals meanwhile."""

import _thread  # threading's, without its import.
import contextlib
import os
import socket

Place = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
Address = tuple[socket.AddressFamily, Place]


class Lookup:
    """One look-up of (*host*, *port*). `fd` becomes readable when `found` is set; it is empty if the name is not known
    (yet)."""

    def __init__(self, host: str, port: int) -> None:
        self.found: list[Address] | None = None
        self.fd, tells = os.pipe()
        try:
            _thread.start_new_thread(self._look, (host, port, tells))
        except RuntimeError:  # The container may have no more threads.
            self._look(host, port, tells)

    def close(self) -> None:
        """Stop waiting for it."""
        os.close(self.fd)

    def _look(self, host: str, port: int, tells: int) -> None:
        try:
            self.found = resolve_addresses(host, port)
        except (OSError, UnicodeError):  # UnicodeError: a character without UTF-8.
            self.found = []
        # Write a byte: closing the pipe is not enough, since forks of `train` hold this end open, too.
        with contextlib.suppress(OSError):
            os.write(tells, b"\0")
        os.close(tells)


def parse_address(host: str, port: int) -> list[Address]:
    """Return (*host*, *port*) if *host* is an address, nothing if it is a name. It does not block."""
    try:
        return resolve_addresses(host, port, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return []


def resolve_addresses(host: str, port: int, flags: int = 0) -> list[Address]:
    """Return the addresses of (*host*, *port*), the preferred one first.

    Raises:
        OSError: the name is not known; or AI_NUMERICHOST is in *flags* and *host* is no address.
    """
    # Bytes: for a string, getaddrinfo imports the codec "idna", which fails if two threads import it at once.
    entries = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in entries]


def format_place(place: Place) -> str:
    """Return the address in *place*, one of IPv4 as such, and without the scope, which differs between hosts."""
    return str(place[0]).removeprefix("::ffff:").partition("%")[0]


def is_own(address: Address) -> bool:
    """Return whether *address* is one of this network namespace: the kernel would send from it to itself. Nothing is
    sent."""
    family, place = address
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(place)
            return bool(sock.getsockname()[0] == place[0]) or format_place(place).startswith("127.")
    except OSError:  # No way there, or no IPv6 here.
        return False
