"""Lists the rules that could not judge a job: what they look at was not measured, or there was too little of it."""

from collections.abc import Callable, Mapping, Sequence

from toolkit.diagnosis import slowdown, step_parts
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.loss import LOSS, VALIDATION
from toolkit.diagnosis.phases import phases
from toolkit.diagnosis.rule import Configuration
from toolkit.diagnosis.span import FEWEST, training
from toolkit.diagnosis.units import format_seconds
from toolkit.records import Record

ACROSS = "SlowRank"  # It compares the ranks of all hosts.
Lack = Callable[[Evidence], str]


class UnjudgedRules(Record, frozen=True, kw_only=True):
    """Rules that could not judge a job for one reason."""

    reason: str
    """The measurements that were missing: "no GPU was measured"."""
    rules: tuple[str, ...]
    """Their names."""


def list_unjudged(
    hosts: Sequence[Evidence], configurations: Sequence[Configuration], failures: Mapping[str, str]
) -> list[UnjudgedRules]:
    """Return which rules of *configurations* could judge none of *hosts*, by the reason on the first of them.

    *failures*: the error that a rule raised, by its name; the rule has not judged, whatever was measured.
    """
    rules_by_reason: dict[str, list[str]] = {}
    for name in (configuration.rule.name for configuration in configurations):
        if name == ACROSS:
            reasons = [_lack_of_ranks(hosts)]
        else:
            reasons = [_LACKS[name](evidence) for evidence in hosts] if name in _LACKS else []
        if name in failures:
            reasons = [failures[name]]
        if reasons and all(reasons):
            rules_by_reason.setdefault(reasons[0], []).append(name)
    return [UnjudgedRules(reason=reason, rules=tuple(rules)) for reason, rules in rules_by_reason.items()]


def count_judging(configurations: Sequence[Configuration], unjudged: Sequence[UnjudgedRules]) -> int:
    """Return how many rules of *configurations* could judge: those that only fill tables do not."""
    names = {configuration.rule.name for configuration in configurations} & {ACROSS, *_LACKS}
    return len(names - {rule for group in unjudged for rule in group.rules})


def _lack_of_gpus(evidence: Evidence) -> str:
    return "" if evidence.columns("gpu", "used_percent") else "no GPU was measured"


def _lack_of_start(evidence: Evidence) -> str:
    return "" if evidence.start.ranks else "the start of its ranks was not measured"


def _lack_of_samples(evidence: Evidence) -> str:
    if not evidence.times_s:
        return "the machine was not measured"
    if training(evidence, 1, is_user_set=True) is not None:
        return ""
    trained_s = (evidence.last_step_s() or evidence.end_s) - (evidence.first_step_s() or evidence.start_s)
    return f"it trained for only {format_seconds(max(trained_s, 0.0))}, less than {FEWEST} samples"


def _lack_of_quota(evidence: Evidence) -> str:
    if not evidence.column("cpu/all/throttled_percent"):
        return "the container has no CPU quota"
    return _lack_of_samples(evidence)


def _lack_of_steps(fewest: int) -> Lack:
    def lack(evidence: Evidence) -> str:
        longest = max((len(phase.seconds) for phase in phases(evidence, ("step",))), default=0)
        if longest == 0:
            return "no steps were measured"
        return "" if longest >= fewest else f"fewer than {fewest} steps were measured"

    return lack


def _lack_of_parts(evidence: Evidence) -> str:
    missing = _lack_of_steps(step_parts.FEWEST_STEPS)(evidence)
    parts = phases(evidence, ("dataloader", "forward", "backward"))
    return missing or ("" if parts else "the parts of the steps were not measured")


def _lack_of_losses(evidence: Evidence) -> str:
    return "" if any(name in evidence.metrics for name in (*LOSS, *VALIDATION)) else "no metric is called a loss"


def _lack_of_ranks(hosts: Sequence[Evidence]) -> str:
    ranks = {rank for evidence in hosts for rank, steps in evidence.steps.items() if steps.end_s}
    return "no steps were measured" if not ranks else "there was only one rank" if len(ranks) == 1 else ""


_LACKS: dict[str, Lack] = {
    "NetworkImports": _lack_of_start,
    "RequirementsTime": _lack_of_start,
    **dict.fromkeys(
        (
            "BatchSize",
            "BusyCore",
            "CPUBottleneck",
            "DriverSilence",
            "GPUMemoryIncrease",
            "IdleSM",
            "IOBottleneck",
            "LoadBalancing",
            "LowGPUUtilization",
        ),
        _lack_of_gpus,
    ),
    **dict.fromkeys(("CoreContention", "Dataloader", "MemoryLimit"), _lack_of_samples),
    **dict.fromkeys(("StepAlternation", "StepOutlier", "FirstStep"), _lack_of_steps(step_parts.FEWEST_STEPS + 1)),
    "CPUThrottling": _lack_of_quota,
    "MaxInitializationTime": _lack_of_steps(1),
    "StepSlowdown": _lack_of_steps(slowdown.StepSlowdown().patience),
    **dict.fromkeys(("CheckpointTime", "DataWait", "EvaluationTime", "GarbageCollection", "StepPause"), _lack_of_parts),
    **dict.fromkeys(("ExplodingTensor", "LossNotDecreasing", "Overfit", "Overtraining"), _lack_of_losses),
}
