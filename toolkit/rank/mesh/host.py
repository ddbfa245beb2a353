"""This host: the ID by which ranks find out that they can share memory, and its addresses for other hosts."""

import ipaddress
import socket
import struct
from collections.abc import Callable, Mapping
from fcntl import ioctl
from pathlib import Path
from typing import Any, NamedTuple

BOOT = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/self/ns/net")
# They distinguish hosts that `toolkit run` simulates on one machine: the platform's host name, torchrun's node rank.
SIMULATED_HOST_VARIABLES = ("SM_CURRENT_HOST", "GROUP_RANK")
SIOCGIFADDR = 0x8915  # linux/sockios.h
IF_INET6 = Path("/proc/net/if_inet6")
GLOBAL = "00"  # scope, as IF_INET6 has it
ANY_PORT = 9  # Nothing is sent to it.


class HostIdentity(NamedTuple):
    """This host: the `host_id` that only its ranks have, and the function that finds its `addresses` for other
    hosts."""

    host_id: str
    addresses: Callable[[], tuple[str, ...]]


def identify_host(environ: Mapping[str, str]) -> HostIdentity:
    """Return the host described by *environ* and the machine."""
    return HostIdentity(read_host_id(environ), lambda: find_addresses(environ))


def read_host_id(environ: Mapping[str, str]) -> str:
    """Return text that is equal on two ranks if and only if they may share memory; "" where the machine hides it.

    It joins the boot's ID, the network namespace (the ranks connect over its unix sockets) and the job's name for the
    host, which tells two simulated hosts on one machine apart.
    """
    try:
        parts = [BOOT.read_text(encoding="ascii").strip(), str(NETWORK.readlink())]
    except (OSError, ValueError):
        return ""
    return "/".join([*parts, *(environ.get(name, "") for name in SIMULATED_HOST_VARIABLES)])


def find_addresses(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return this host's addresses for its peers, the most likely first, each once.

    They are the address of the network device in GLOO_SOCKET_IFNAME (the first of a list, as gloo reads it), the local
    address of a route to MASTER_ADDR, and the address of the host's own name.
    """
    device = environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0].strip()
    addresses = [
        *_device_addresses(device),
        *_route_address(environ.get("MASTER_ADDR", "")),
        *_addresses_of_name(socket.gethostname()),
    ]
    return tuple(dict.fromkeys(addresses))


def _device_addresses(name: str) -> list[str]:
    addresses = []
    if name:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                answer = ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                addresses.append(socket.inet_ntoa(answer[20:24]))
            except OSError:  # No such device, or one without an IPv4 address.
                pass
        try:
            rows = [line.split() for line in IF_INET6.read_text(encoding="ascii").splitlines()]
        except OSError:
            rows = []
        addresses += [str(ipaddress.ip_address(bytes.fromhex(row[0]))) for row in rows if row[3:6:2] == [GLOBAL, name]]
    return addresses


def _route_address(name: str) -> list[str]:
    try:
        family, kind, _, _, address = _resolve(name)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return [str(probe.getsockname()[0])]
    except (OSError, IndexError):
        return []


def _addresses_of_name(name: str) -> list[str]:
    try:
        return [str(address[0]) for *_, address in _resolve(name)]
    except OSError:
        return []


def _resolve(name: str) -> list[Any]:
    return list(socket.getaddrinfo(name, ANY_PORT, type=socket.SOCK_DGRAM)) if name else []
