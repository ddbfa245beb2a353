"""Pure: what must be equal on all hosts of a job, and which job a host belongs to.

The job's key proves only what it is made of: with TOOLKIT_JOB_SECRET that is the secret alone. So every host states
what it has read, as short texts, and the leader names the first that differs.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

TAG_BYTES = 8
DIGITS = 16
SHOWN = 24
VERSION, HOSTS, DISTRIBUTION = "the version of the toolkit", "the list of hosts", "the distribution"
NAME = "the job's name"
# Settings in which hosts may differ, and what that means, for the log.
MAY_DIFFER = {
    "TOOLKIT_RESTARTS": "the leader's counts",
    "TOOLKIT_STALL_S": "a hang is noticed only while every host looks for one, after the longest time",
}


def make_tag(name: str, hosts: tuple[str, ...]) -> bytes:
    """Return what tells two jobs apart that share hosts and ports: made of the job's *name*, or of its *hosts* where it
    has none; anybody may see it.

    Documents that differ by mistake do not change it: their host belongs to the job, and is told what differs.
    """
    return hashlib.sha256(json.dumps(name or sorted(hosts)).encode()).digest()[:TAG_BYTES]


def make_fact(value: Any) -> str:
    """Return *value* as it is if it is a short text or a number, else a digest of it."""
    if isinstance(value, str | int | float) and len(str(value)) <= SHOWN:
        return str(value)
    text = json.dumps(value, sort_keys=True, default=str)
    return f"#{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"


def find_difference(leader: Mapping[str, str], host: Mapping[str, str]) -> str:
    """Return which of the facts of *leader* is another one on *host*, "" if none is: "the list of hosts differs".

    A host outside the distribution's instance groups states no distribution: it runs its script alone.
    """
    for name, value in leader.items():
        if name == DISTRIBUTION and name not in host:
            continue
        if name not in MAY_DIFFER and host.get(name, "") != value:
            return f"{name} differs{_values(value, host.get(name, ''))}"
    return ""


def list_unequal_settings(leader: Mapping[str, str], host: Mapping[str, str]) -> tuple[str, ...]:
    """Return the settings that differ on *host*, each with what that means."""
    return tuple(
        f"{name} differs{_values(leader[name], host.get(name, ''))}; {meaning}"
        for name, meaning in MAY_DIFFER.items()
        if name in leader and host.get(name, "") != leader[name]
    )


def _values(leader: str, host: str) -> str:
    if leader.startswith("#") or host.startswith("#"):
        return ""
    return f" (the leader has {leader or 'none'}, this host {host or 'none'})"
