"""A host's addresses, looked up in a thread: a name server that does not answer holds getaddrinfo for half a minute,
and `train` has signals to hear meanwhile."""

import _thread  # threading's, without its import.
import contextlib
import os
import socket

Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class Lookup:
    """One look-up of (*host*, *port*). `fd` is ready to be read once `found` is there: no address where the name is
    not known (yet)."""

    def __init__(self, host: str, port: int) -> None:
        self.found: list[Address] | None = None
        self.fd, tells = os.pipe()
        try:
            _thread.start_new_thread(self._look, (host, port, tells))
        except RuntimeError:  # The container may have no more threads.
            self._look(host, port, tells)

    def close(self) -> None:
        """Wait for it no more."""
        os.close(self.fd)

    def _look(self, host: str, port: int, tells: int) -> None:
        try:
            self.found = addresses(host, port)
        except (OSError, UnicodeError):  # The latter: a character that has no UTF-8.
            self.found = []
        # A byte, not only the pipe's end: forks of `train` hold this end open, too.
        with contextlib.suppress(OSError):
            os.write(tells, b"\0")
        os.close(tells)


def numeric(host: str, port: int) -> list[Address]:
    """Return (*host*, *port*) where *host* is an address and no name, else nothing; at once."""
    try:
        return addresses(host, port, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return []


def addresses(host: str, port: int, flags: int = 0) -> list[Address]:
    """Return where (*host*, *port*) is, the best first.

    Raises:
        OSError: the name is not known; with AI_NUMERICHOST in *flags*, it is no address.
    """
    # Bytes: for a string, getaddrinfo imports the codec "idna", which fails where two threads import it at once.
    found = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]
