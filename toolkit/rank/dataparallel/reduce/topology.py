"""Finds the ranks that share a host, and those that exchange sums between hosts. Pure."""

from collections.abc import Sequence
from typing import NamedTuple


class Topology(NamedTuple):
    """A rank's peers: `local_peers` are the group's ranks on its host, `cross_host_peers` the ranks with its local rank
    on each host; both with the rank itself."""

    local_peers: tuple[int, ...]
    cross_host_peers: tuple[int, ...]


def find_topology(host_numbers: Sequence[int], rank: int, most: int) -> Topology | str:
    """Return the topology of *rank*, or the reason why there is none.

    host_numbers[r] is the number of rank r's host, 0 if unknown. Either all ranks get a topology, or all get the same
    reason. *most* is the largest allowed number of ranks on a host.
    """
    hosts: dict[int, list[int]] = {}
    for number, host in enumerate(host_numbers):
        hosts.setdefault(host, []).append(number)
    counts = sorted({len(ranks) for ranks in hosts.values()})
    if 0 in hosts:
        return "a machine does not say which it is"
    if counts == [1]:
        return "each rank is alone on its host"
    if len(counts) > 1:
        return f"hosts have different numbers of ranks ({', '.join(map(str, counts))})"
    if counts[0] > most:
        return f"more than {most} ranks on a host"
    local_peers = hosts[host_numbers[rank]]
    local_rank = local_peers.index(rank)
    return Topology(tuple(local_peers), tuple(ranks[local_rank] for ranks in hosts.values()))
