"""Pure: which ranks share a host, and who meets whom."""

from collections.abc import Sequence
from typing import NamedTuple


class Topology(NamedTuple):
    """A rank's peers: `local_peers` are the group's ranks on its host, `cross_host_peers` the ranks with its local rank
    on each host; both with the rank itself."""

    local_peers: tuple[int, ...]
    cross_host_peers: tuple[int, ...]


def find_topology(hosts_of: Sequence[int], rank: int, most: int) -> Topology | str:
    """Return the company of *rank*, or why there is none for anybody; hosts_of[r] is 0 or the number of r's host.

    The same answer, in kind, on every rank. *most*: ranks that a host may have.
    """
    hosts: dict[int, list[int]] = {}
    for number, host in enumerate(hosts_of):
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
    local_peers = hosts[hosts_of[rank]]
    local_rank = local_peers.index(rank)
    return Topology(tuple(local_peers), tuple(ranks[local_rank] for ranks in hosts.values()))
