"""Evidence made up for edge cases: columns of NVML's and the kernel's names with the values that a test gives."""

from collections.abc import Mapping, Sequence

from toolkit import diagnosis
from toolkit.diagnosis import configuration
from toolkit.diagnosis.evidence import Evidence, MachineFacts
from toolkit.diagnosis.window import EvidenceWindow
from toolkit.series.finding import Finding

START_S = 1_760_000_000.0


def window(
    columns: Mapping[str, Sequence[float]], *, interval_s: float = 0.5, machine: MachineFacts | None = None
) -> EvidenceWindow:
    """Return a window that holds *columns*, sampled each *interval_s*."""
    evidence_window = EvidenceWindow(
        list(columns), host="algo-1", start_s=START_S, interval_s=interval_s, machine=machine or MachineFacts(cores=4)
    )
    for index, row in enumerate(zip(*columns.values(), strict=True)):
        evidence_window.sample(START_S + index * interval_s, row)
    return evidence_window


def evidence(columns: Mapping[str, Sequence[float]], *, is_over: bool = True, interval_s: float = 0.5) -> Evidence:
    """Return the evidence of a job whose samples are *columns*."""
    count = len(next(iter(columns.values())))
    return window(columns, interval_s=interval_s).evidence(START_S + (count - 1) * interval_s, is_over=is_over)


def find_by_rule(of: Evidence, rules: object = None) -> dict[str, Finding]:
    """Return what *rules*, as a job says them, find, by rule."""
    configurations = configuration.read(rules, "rules.json").configurations
    failures: dict[str, str] = {}
    findings = diagnosis.run(of, configurations, failures)
    assert not failures
    return {finding.rule: finding for finding in findings}
