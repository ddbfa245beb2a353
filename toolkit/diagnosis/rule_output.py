"""What the Debugger's ProfilerReport leaves in rule-output: a JSON document for each of its rules. Pure.

The keys are those of smdebug's rules (RuleTriggered, Violations, Datapoints, RuleParameters, Details), as its open
example of a rule fills them (LowGPUUtilization, 2021). `Details` is by host; there, our findings have their text and
numbers.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from toolkit.diagnosis import usage
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.rule import Configuration, Parameters
from toolkit.series.finding import Finding

# The resources of OverallSystemUsage by the names that the Debugger's report shows, and the columns of each.
_RESOURCES = {
    "CPU": ("cpu/all/used_percent",),
    "CPU memory": ("memory/container/used_percent",),
    "I/O": ("cpu/all/iowait_percent",),
    "Network": ("network/all/received_bytes_per_s", "network/all/sent_bytes_per_s"),
}
_OF_GPUS = {"GPU": "used_percent", "GPU memory": "memory_used_percent"}


def documents(
    hosts: Sequence[Evidence], configurations: Sequence[Configuration], findings: Sequence[Finding]
) -> dict[str, dict[str, Any]]:
    """Return the document of each of the Debugger's rules among *configurations*, by file name (CPUBottleneck.json)."""
    return {
        f"{each.rule.name}.json": _document(each, hosts, [found for found in findings if found.rule == each.rule.name])
        for each in configurations
        if each.rule.group == "profiler"
    }


def _document(asked: Configuration, hosts: Sequence[Evidence], findings: Sequence[Finding]) -> dict[str, Any]:
    details: dict[str, Any]
    if asked.rule.name == "OverallSystemUsage":
        details = {evidence.host: _system(evidence) for evidence in hosts}
    elif asked.rule.name == "OverallFrameworkMetrics":
        details = {evidence.host: _framework(evidence) for evidence in hosts}
    else:
        details = {}
        for finding in findings:
            details.setdefault(finding.host, {})[finding.subject] = _finding(finding)
    return {
        "RuleTriggered": len(findings),
        "Violations": len(findings),
        "Datapoints": sum(round((evidence.end_s - evidence.start_s) / evidence.interval_s) for evidence in hosts),
        "RuleParameters": _parameters(asked.parameters),
        "Details": details,
    }


def _parameters(parameters: Parameters) -> str:
    """Return "threshold:50\\ngpu_threshold:10": a parameter a line."""
    values = msgspec.structs.asdict(parameters)
    return "\n".join(f"{name}:{value}" for name, value in values.items() if name != "scan_interval_us")


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "text": finding.text,
        "start": finding.start_s,
        "end": finding.end_s,
        "change": finding.change,
        "refuted_by": finding.refuted_by,
        **{number.name.replace(" ", "_"): number.value for number in finding.numbers},
    }


def _system(evidence: Evidence) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in usage.system_usage(evidence):
        for name, columns in _RESOURCES.items():
            if each.name in columns:
                found.setdefault(name, {})[each.name.split("/")[2]] = _distribution(each)
        for name, metric in _OF_GPUS.items():
            if each.name.startswith("gpu/") and each.name.endswith(f"/{metric}"):
                found.setdefault(name, {})[f"gpu{each.name.split('/')[1]}"] = _distribution(each)
    return found


def _framework(evidence: Evidence) -> dict[str, Any]:
    found = {each.name: each for each in usage.framework_metrics(evidence)}
    whole = found["step"].total if "step" in found else sum(each.total for each in found.values())
    return {
        name: {**_distribution(each), "count": each.count, "total_s": each.total, "share": 100 * each.total / whole}
        for name, each in found.items()
        if whole
    }


def _distribution(each: usage.Usage) -> dict[str, float]:
    return {"max": each.max, "p99": each.p99, "p95": each.p95, "p50": each.p50, "min": each.min}
