"""Pure: equal findings of several hosts as one, which names the hosts."""

from collections.abc import Iterable

from toolkit.records import Record
from toolkit.series.finding import Finding, Number

# More hosts than these are counted, not named.
NAMED = 8


class FoldedFinding(Record, frozen=True, kw_only=True):
    """A finding, and the same one of `others`: other hosts, whose numbers differ."""

    finding: Finding
    others: tuple[Finding, ...] = ()

    @property
    def all(self) -> tuple[Finding, ...]:
        return (self.finding, *self.others)

    @property
    def hosts(self) -> str:
        """Return "host algo-1", "hosts algo-1, algo-2", "" of no host."""
        names = sorted({finding.host for finding in self.all if finding.host}, key=lambda name: (len(name), name))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"host{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{more}" if names else ""

    def of_all(self, number: Number) -> list[float]:
        """Return the values of *number* of `finding` and of those `others` that have it."""
        return [
            own_number.value for finding in self.all for own_number in finding.numbers if own_number.name == number.name
        ]


def fold(findings: Iterable[Finding]) -> list[FoldedFinding]:
    """Return *findings* in their order, those of other hosts behind the first that has rule, subject, rank, action,
    advice and attempt in common."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(
            (finding.rule, finding.subject, finding.rank, finding.action, finding.change, finding.attempt), []
        ).append(finding)
    return [FoldedFinding(finding=first, others=tuple(others)) for first, *others in groups.values()]
