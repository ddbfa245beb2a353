"""Ports for the hosts that tests play."""

import contextlib
import os
import random
import socket

# Below those that the kernel gives to outgoing connections (ip_local_port_range, from 32768 on), which come and go.
PORTS = range(10_000, 32_000)
# Each of pytest-xdist's workers has a part of its own: two that found the same port free at once would both take it.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PART = len(PORTS) // _WORKERS
OWN = PORTS[_WORKER * _PART : (_WORKER + 1) * _PART]


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listened on a moment ago."""
    free: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(OWN, len(OWN)):
            holder = held.enter_context(socket.socket())
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                continue
            free.append(port)
            if len(free) == count:
                return free
    raise RuntimeError(f"expected {count} free ports of {OWN}, found {len(free)}")


def free_port() -> int:
    """Return one such port."""
    return free_ports(1)[0]
