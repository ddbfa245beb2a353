"""The diagnosis of a whole job, after the fact: each host by itself, and the ranks of all hosts beside each other."""

from collections.abc import Sequence

import msgspec

from toolkit import diagnosis
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.rule import Configuration
from toolkit.series.finding import Finding

# Rules that compare ranks, which may be on different hosts.
ACROSS_HOSTS = ("SlowRank",)


def diagnose(hosts: Sequence[Evidence], configurations: Sequence[Configuration]) -> list[Finding]:
    """Return what *configurations* find on *hosts*."""
    if len(hosts) < 2:
        return [finding for evidence in hosts for finding in diagnosis.run(evidence, configurations)]
    alone = [configuration for configuration in configurations if configuration.rule.name not in ACROSS_HOSTS]
    across = [configuration for configuration in configurations if configuration.rule.name in ACROSS_HOSTS]
    findings = [finding for evidence in hosts for finding in diagnosis.run(evidence, alone)]
    host_of = {rank: evidence.host for evidence in hosts for rank in evidence.steps}
    together = [
        msgspec.structs.replace(
            finding, host=host_of.get(finding.rank, finding.host) if finding.rank is not None else ""
        )
        for finding in diagnosis.run(_joined(hosts), across)
    ]
    return findings + together


def merge(findings: Sequence[Finding], live: Sequence[Finding]) -> list[Finding]:
    """Return *findings*, after the fact, with those of *live* that were only true for a while, each once.

    What both have is taken from *findings*, which knows the whole job, and marked as live.
    """
    seen_live = {_key(finding) for finding in live}
    by_key = {_key(finding): finding for finding in live}
    for finding in findings:
        by_key[_key(finding)] = msgspec.structs.replace(finding, live=_key(finding) in seen_live)
    return sorted(by_key.values(), key=lambda finding: finding.start_s)


def _joined(hosts: Sequence[Evidence]) -> Evidence:
    """Return evidence with the steps of all hosts."""
    return Evidence(
        host=hosts[0].host,
        start_s=min(evidence.start_s for evidence in hosts),
        end_s=max(evidence.end_s for evidence in hosts),
        is_over=all(evidence.is_over for evidence in hosts),
        interval_s=hosts[0].interval_s,
        machine=hosts[0].machine,
        steps={rank: steps for evidence in hosts for rank, steps in evidence.steps.items()},
        compared={slow: healthy for evidence in hosts for slow, healthy in evidence.compared.items()},
    )


def _key(finding: Finding) -> tuple[str, str, str, int | None, int]:
    return finding.rule, finding.subject, finding.host, finding.rank, finding.attempt
