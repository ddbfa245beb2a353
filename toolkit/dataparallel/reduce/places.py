"""Pure: which ranks share a host, and who meets whom."""

from collections.abc import Sequence
from typing import NamedTuple


class Party(NamedTuple):
    """A rank's company: `mates`, the group's ranks on its host, and `rail`, those of the same place on every host."""

    mates: tuple[int, ...]
    rail: tuple[int, ...]


def party(words: Sequence[int], rank: int, most: int) -> Party | str:
    """Return the company of *rank*, or why there is none for anybody; words[r] is 0 or the word of r's host.

    The same answer, in kind, on every rank. *most*: ranks that a host may have.
    """
    hosts: dict[int, list[int]] = {}
    for number, word in enumerate(words):
        hosts.setdefault(word, []).append(number)
    counts = sorted({len(ranks) for ranks in hosts.values()})
    if 0 in hosts:
        return "a machine does not say which it is"
    if counts == [1]:
        return "each rank is alone on its host"
    if len(counts) > 1:
        return f"hosts have different numbers of ranks ({', '.join(map(str, counts))})"
    if counts[0] > most:
        return f"more than {most} ranks on a host"
    mates = hosts[words[rank]]
    place = mates.index(rank)
    return Party(tuple(mates), tuple(ranks[place] for ranks in hosts.values()))
