"""Rules over a job's measurements: what is wrong with it, or wasteful, and how to check that.

evidence = files.read(output / "monitor", metrics=output / "metrics.jsonl")     # after the fact
findings = diagnosis.run(evidence, configuration.read(None, ""))
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.diagnosis.evidence import Evidence
    from toolkit.diagnosis.rule import Configuration
    from toolkit.series.finding import Finding


def run(evidence: "Evidence", configurations: "Sequence[Configuration]") -> "list[Finding]":
    """Return what the rules of *configurations* find in *evidence*, each rule and subject once."""
    from msgspec import structs

    findings: dict[tuple[str, str, int | None], Finding] = {}
    for configuration in configurations:
        for finding in configuration.rule.find(evidence, configuration.parameters, configuration.user_set):
            action = finding.action if finding.action == "stop" else configuration.action
            key = (finding.rule, finding.subject, finding.rank)
            if key not in findings or action == "stop":
                findings[key] = structs.replace(finding, action=action)
    return list(findings.values())
