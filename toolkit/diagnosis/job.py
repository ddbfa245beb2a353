"""The diagnosis of a whole job, after the fact: each host by itself, and the ranks of all hosts beside each other."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from toolkit import diagnosis
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.rule import Configuration
from toolkit.diagnosis.shared_machine import is_crowded, qualify
from toolkit.diagnosis.units import format_seconds
from toolkit.series.finding import Finding

# Rules that compare ranks, which may be on different hosts.
ACROSS_HOSTS = ("SlowRank",)
# A finding that was true for a while stays if that cost so long, and this share of the job.
LEAST_LOST_S, LEAST_LOST_SHARE = 30.0, 0.001


def diagnose(
    hosts: Sequence[Evidence], configurations: Sequence[Configuration], failures: dict[str, str]
) -> list[Finding]:
    """Return what *configurations* find on *hosts*; *failures* gets the error of each rule that raised one."""
    if len(hosts) < 2:
        return [finding for evidence in hosts for finding in diagnosis.run(evidence, configurations, failures)]
    alone = [configuration for configuration in configurations if configuration.rule.name not in ACROSS_HOSTS]
    across = [configuration for configuration in configurations if configuration.rule.name in ACROSS_HOSTS]
    findings = [finding for evidence in hosts for finding in diagnosis.run(evidence, alone, failures)]
    host_of = {rank: evidence.host for evidence in hosts for rank in evidence.steps}
    together = [
        msgspec.structs.replace(
            finding, host=host_of.get(finding.rank, finding.host) if finding.rank is not None else ""
        )
        for finding in diagnosis.run(_joined(hosts), across, failures)
    ]
    return findings + [
        qualified
        for finding in together
        for evidence in hosts
        if evidence.host == finding.host
        for qualified in qualify(evidence, [finding])
    ]


def merge(
    findings: Sequence[Finding],
    live: Sequence[Finding],
    judged: Mapping[int, float] | None = None,
    unjudged: Collection[str] = (),
) -> list[Finding]:
    """Return *findings*, after the fact, with those of *live* that were only true for a while, each once.

    What both have is taken from *findings*, which knows the whole job, and marked as live. *judged*: the seconds of
    each attempt that was judged as a whole, but by the rules *unjudged*. Of its live findings that the whole refutes
    only those stay that cost a noticeable time, with their span and its share, and those that ended the job.
    """
    seen_live = {_key(finding) for finding in live}
    kept = (
        finding if finding.rule in unjudged else _keep(finding, (judged or {}).get(finding.attempt)) for finding in live
    )
    confirmed = {_key(finding) for finding in findings}
    by_key = {_key(finding): finding for finding in kept if finding is not None and _key(finding) not in confirmed}
    for finding in findings:
        by_key[_key(finding)] = msgspec.structs.replace(finding, live=_key(finding) in seen_live)
    return sorted(by_key.values(), key=lambda finding: finding.start_s)


def _keep(finding: Finding, whole_s: float | None) -> Finding | None:
    """Return a live *finding* that the whole job, of *whole_s*, does not confirm, as it is to be shown; None: not."""
    if whole_s is None or finding.action == "stop":
        return finding
    if finding.lost_s is None or finding.lost_s < max(LEAST_LOST_S, LEAST_LOST_SHARE * whole_s):
        return None
    span_s = finding.end_s - finding.start_s
    share = 100 * span_s / max(whole_s, span_s)
    of_job = f"{share:.0f} %" if share >= 1 else "less than 1 %"
    words = f"This held for {format_seconds(span_s)}, {of_job} of the job, and not for all of it."
    return msgspec.structs.replace(finding, text=f"{finding.text} {words}")


def _joined(hosts: Sequence[Evidence]) -> Evidence:
    """Return evidence with the steps of all hosts."""
    every = max(evidence.course_steps for evidence in hosts)
    return Evidence(
        host=hosts[0].host,
        start_s=min(evidence.start_s for evidence in hosts),
        end_s=max(evidence.end_s for evidence in hosts),
        is_over=all(evidence.is_over for evidence in hosts),
        interval_s=hosts[0].interval_s,
        machine=hosts[0].machine,
        steps={rank: steps for evidence in hosts for rank, steps in evidence.steps.items()},
        compared={slow: healthy for evidence in hosts for slow, healthy in evidence.compared.items()},
        courses={
            rank: steps
            for evidence in hosts
            if evidence.course_steps == every
            for rank, steps in evidence.courses.items()
        },
        course_steps=every,
        is_crowded=any(map(is_crowded, hosts)),
    )


def _key(finding: Finding) -> tuple[str, str, str, int | None, int]:
    return finding.rule, finding.subject, finding.host, finding.rank, finding.attempt
