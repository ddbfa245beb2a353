"""Pure: equal findings of several hosts as one, which names the hosts."""

from collections.abc import Iterable

from toolkit.records import Record
from toolkit.series.finding import Finding, Number

# More hosts than these are counted, not named.
NAMED = 8


class Folded(Record, frozen=True, kw_only=True):
    """A finding, and the same one of `others`: other hosts, whose numbers differ."""

    finding: Finding
    others: tuple[Finding, ...] = ()

    @property
    def all(self) -> tuple[Finding, ...]:
        return (self.finding, *self.others)

    @property
    def hosts(self) -> str:
        """Return "host algo-1", "hosts algo-1, algo-2", "" of no host."""
        names = sorted({each.host for each in self.all if each.host}, key=lambda name: (len(name), name))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"host{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{more}" if names else ""

    def of_all(self, number: Number) -> list[float]:
        """Return the values of *number* of `finding` and of those `others` that have it."""
        return [mine.value for each in self.all for mine in each.numbers if mine.name == number.name]


def folded(findings: Iterable[Finding]) -> list[Folded]:
    """Return *findings* in their order, those of other hosts behind the first that has rule, subject, rank, action,
    advice and attempt in common."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        groups.setdefault((each.rule, each.subject, each.rank, each.action, each.change, each.attempt), []).append(each)
    return [Folded(finding=first, others=tuple(others)) for first, *others in groups.values()]
