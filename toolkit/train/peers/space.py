"""The network namespace of this process, and the addresses of the job's hosts as the leader resolves them."""

import _thread  # threading's, without its import.
import contextlib
import functools
import os

from toolkit.train.peers.lookup import format_place, is_own, resolve_addresses


@functools.cache
def own_space() -> str:
    """Return a text that is unique to this process's network namespace, on all machines."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""  # Unknown: it equals no other host's.


class Survey:
    """Looks up every host's addresses, one host after the other, in a thread. *places*: address or name by host.

    `fd` becomes readable when `found` is complete; before, `found` has the addresses found so far. `own`: those of them
    that are this host's.
    """

    def __init__(self, places: dict[str, str]) -> None:
        self.found: dict[str, frozenset[str]] = {}
        self.own: set[str] = set()
        self.fd, tells = os.pipe()
        try:
            _thread.start_new_thread(self._look, (places, tells))
        except RuntimeError:  # The container may have no more threads.
            os.close(tells)

    def close(self) -> None:
        """Stop waiting for it."""
        os.close(self.fd)

    def _look(self, places: dict[str, str], tells: int) -> None:
        for host, place in places.items():
            with contextlib.suppress(OSError, UnicodeError):
                host_addresses = resolve_addresses(place, 1)
                self.own.update(format_place(address[1]) for address in host_addresses if is_own(address))
                self.found[host] = frozenset(format_place(address) for _, address in host_addresses)
        with contextlib.suppress(OSError):
            os.write(tells, b"\0")
        os.close(tells)
