"""Makes what the Debugger's ProfilerReport leaves in rule-output: a JSON document for each of its rules. Pure.

The keys are those of smdebug's rules (RuleTriggered, Violations, Datapoints, RuleParameters, Details), as its open
example of a rule fills them (LowGPUUtilization, 2021). `Details` is by host; there, our findings have their text and
numbers.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from toolkit.diagnosis import usage
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.rule import Configuration, RuleParameters
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
        f"{configuration.rule.name}.json": _document(
            configuration, hosts, [finding for finding in findings if finding.rule == configuration.rule.name]
        )
        for configuration in configurations
        if configuration.rule.group == "profiler"
    }


def _document(configuration: Configuration, hosts: Sequence[Evidence], findings: Sequence[Finding]) -> dict[str, Any]:
    details: dict[str, Any]
    if configuration.rule.name == "OverallSystemUsage":
        details = {evidence.host: _system(evidence) for evidence in hosts}
    elif configuration.rule.name == "OverallFrameworkMetrics":
        details = {evidence.host: _framework(evidence) for evidence in hosts}
    else:
        details = {}
        for finding in findings:
            details.setdefault(finding.host, {})[finding.subject] = _finding(finding)
    return {
        "RuleTriggered": len(findings),
        "Violations": len(findings),
        "Datapoints": sum(round((evidence.end_s - evidence.start_s) / evidence.interval_s) for evidence in hosts),
        "RuleParameters": _parameters(configuration.parameters),
        "Details": details,
    }


def _parameters(parameters: RuleParameters) -> str:
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
    columns_by_resource: dict[str, Any] = {}
    for column_usage in usage.system_usage(evidence):
        for name, columns in _RESOURCES.items():
            if column_usage.name in columns:
                columns_by_resource.setdefault(name, {})[column_usage.name.split("/")[2]] = _distribution(column_usage)
        for name, metric in _OF_GPUS.items():
            if column_usage.name.startswith("gpu/") and column_usage.name.endswith(f"/{metric}"):
                columns_by_resource.setdefault(name, {})[f"gpu{column_usage.name.split('/')[1]}"] = _distribution(
                    column_usage
                )
    return columns_by_resource


def _framework(evidence: Evidence) -> dict[str, Any]:
    usages = {phase_usage.name: phase_usage for phase_usage in usage.framework_metrics(evidence)}
    total_s = usages["step"].total if "step" in usages else sum(phase_usage.total for phase_usage in usages.values())
    return {
        name: {
            **_distribution(phase_usage),
            "count": phase_usage.count,
            "total_s": phase_usage.total,
            "share": 100 * phase_usage.total / total_s,
        }
        for name, phase_usage in usages.items()
        if total_s
    }


def _distribution(distribution: usage.Usage) -> dict[str, float]:
    return {
        "max": distribution.max,
        "p99": distribution.p99,
        "p95": distribution.p95,
        "p50": distribution.p50,
        "min": distribution.min,
    }
