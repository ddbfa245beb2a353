"""All rules, one row each. A rule is a function in one file and its row here."""

from toolkit.diagnosis import bottleneck
from toolkit.diagnosis.rule import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        name="CPUBottleneck",
        group="profiler",
        parameters=bottleneck.CPUBottleneck,
        look=bottleneck.cpu_bottleneck,
    ),
    Rule(name="IOBottleneck", group="profiler", parameters=bottleneck.IOBottleneck, look=bottleneck.io_bottleneck),
    Rule(name="BusyCore", group="toolkit", parameters=bottleneck.BusyCore, look=bottleneck.busy_core),
)
BY_NAME = {rule.name: rule for rule in RULES}
