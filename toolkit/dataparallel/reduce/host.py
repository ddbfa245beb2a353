"""The word that tells which ranks share a machine, and with it memory; and the addresses of this one for others."""

import ipaddress
import socket
import struct
from collections.abc import Callable, Mapping
from fcntl import ioctl
from pathlib import Path
from typing import Any, NamedTuple

BOOT = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/self/ns/net")
# What tells hosts apart that are played on one machine: the platform's name for them, torchrun's number of the node.
PLAYED = ("SM_CURRENT_HOST", "GROUP_RANK")
SIOCGIFADDR = 0x8915  # linux/sockios.h
IF_INET6 = Path("/proc/net/if_inet6")
GLOBAL = "00"  # scope, as IF_INET6 has it
ANY_PORT = 9  # Nothing is sent to it.


class Host(NamedTuple):
    """This host: the `word` that only ranks on it have, and what finds its `addresses` for other hosts."""

    word: str
    addresses: Callable[[], tuple[str, ...]]


def this_host(environ: Mapping[str, str]) -> Host:
    """Return the host that *environ* and the machine tell of."""
    return Host(host_identity(environ), lambda: own_addresses(environ))


def host_identity(environ: Mapping[str, str]) -> str:
    """Return a word that two ranks share if, and only if, they may share memory; "" where the machine does not say.

    The machine since its boot, its network namespace (the ranks meet over unix sockets of that namespace), and the
    job's own name for the host: two hosts played on one machine stay two.
    """
    try:
        words = [BOOT.read_text(encoding="ascii").strip(), str(NETWORK.readlink())]
    except (OSError, ValueError):
        return ""
    return "/".join([*words, *(environ.get(name, "") for name in PLAYED)])


def own_addresses(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return this host's addresses for its peers, the likeliest first, each once.

    That of the network device in GLOO_SOCKET_IFNAME (a list, the first counts, as for gloo), the one from which it
    reaches MASTER_ADDR, and that of its own name.
    """
    device = environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0].strip()
    found = [*_of_device(device), *_towards(environ.get("MASTER_ADDR", "")), *_of_name(socket.gethostname())]
    return tuple(dict.fromkeys(found))


def _of_device(name: str) -> list[str]:
    found = []
    if name:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            try:
                answer = ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
            except OSError:  # No such device, or one without an IPv4 address.
                pass
        try:
            rows = [line.split() for line in IF_INET6.read_text(encoding="ascii").splitlines()]
        except OSError:
            rows = []
        found += [str(ipaddress.ip_address(bytes.fromhex(row[0]))) for row in rows if row[3:6:2] == [GLOBAL, name]]
    return found


def _towards(name: str) -> list[str]:
    try:
        family, kind, _, _, address = _found(name)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return [str(probe.getsockname()[0])]
    except (OSError, IndexError):
        return []


def _of_name(name: str) -> list[str]:
    try:
        return [str(address[0]) for *_, address in _found(name)]
    except OSError:
        return []


def _found(name: str) -> list[Any]:
    return list(socket.getaddrinfo(name, ANY_PORT, type=socket.SOCK_DGRAM)) if name else []
