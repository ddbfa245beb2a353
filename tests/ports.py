"""Ports for the hosts that tests play."""

import contextlib
import random
import socket

# Below those that the kernel gives to outgoing connections (ip_local_port_range, from 32768 on), which come and go.
PORTS = range(10_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listened on a moment ago."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(PORTS, len(PORTS)):
            holder = held.enter_context(socket.socket())
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError(f"expected {count} free ports of {PORTS}, found {len(found)}")


def free_port() -> int:
    """Return one such port."""
    return free_ports(1)[0]
