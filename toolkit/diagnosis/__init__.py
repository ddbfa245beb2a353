"""Rules over a job's measurements: what is wrong with it, or wasteful, and how to check that.

evidence = files.read(output / "monitor", metrics=output / "metrics.jsonl")     # after the fact
findings = diagnosis.run(evidence, configuration.read(None, "").configurations, failures := {})
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.diagnosis.evidence import Evidence
    from toolkit.diagnosis.rule import Configuration
    from toolkit.series.finding import Finding


def run(evidence: "Evidence", configurations: "Sequence[Configuration]", failures: "dict[str, str]") -> "list[Finding]":
    """Return what the rules of *configurations* find in *evidence*, each rule and subject once.

    A rule that raises an error finds nothing: its name and the error go into *failures*, and the others go on.
    """
    from msgspec import structs

    from toolkit.diagnosis.shared_machine import qualify

    findings: dict[tuple[str, str, int | None], Finding] = {}
    for configuration in configurations:
        rule = configuration.rule
        try:
            rule_findings = list(rule.find(evidence, configuration.parameters, configuration.user_set))
        except Exception as error:  # noqa: BLE001 - a fault in one rule must not cost what the others find
            failures.setdefault(rule.name, describe_failure(error))
            continue
        for finding in rule_findings:
            action = finding.action if finding.action == "stop" else configuration.action
            key = (finding.rule, finding.subject, finding.rank)
            if key not in findings or action == "stop":
                findings[key] = structs.replace(finding, action=action)
    return qualify(evidence, list(findings.values()))


def describe_failure(error: Exception) -> str:
    """Return "it failed with IndexError: list index out of range (loss.py:88)"."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})" if frame is not None else ""
    return f"it failed with {type(error).__name__}: {error}{place}"
