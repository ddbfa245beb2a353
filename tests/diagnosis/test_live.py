from collections.abc import Iterator

from tests.diagnosis.made import START_S, window
from toolkit.diagnosis import configuration
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.live import GONE_AFTER, LiveDiagnosis
from toolkit.diagnosis.rule import Configuration, DiagnosisRule, RuleParameters
from toolkit.series.finding import Finding

NAMES = ("cpu/core0/used_percent", "cpu/all/used_percent", "gpu/0/used_percent")


def job() -> tuple[LiveDiagnosis, list[float]]:
    """Return the rules over a window that `samples` fills, and the clock."""
    rules = {"CPUBottleneck": {"patience": 20, "scan_interval_us": 5_000_000, "action": "stop"}}
    evidence_window = window({name: [] for name in NAMES})
    live = LiveDiagnosis(evidence_window, configuration.read(rules, "rules.json").configurations, note=print)
    clock = [START_S]
    return live, clock


def run(live: LiveDiagnosis, clock: list[float], *, seconds: float, cpu: float, gpu: float) -> list[str]:
    """Feed *seconds* of samples and return the findings on the way."""
    findings: list[str] = []
    end_s = clock[0] + seconds
    while clock[0] < end_s:
        live.window.sample(clock[0], (cpu, cpu, gpu))
        findings += [finding.action for finding in live.run_due(clock[0]) if finding.live]
        clock[0] += 0.5
    return findings


def test_a_finding_is_reported_once_and_again_only_after_it_had_gone_away() -> None:
    live, clock = job()

    first = run(live, clock, seconds=120, cpu=99, gpu=2)
    cleared = run(live, clock, seconds=600 + 60 * GONE_AFTER, cpu=40, gpu=90)
    again = run(live, clock, seconds=700, cpu=99, gpu=2)

    assert (first, cleared, again) == (["stop"], [], ["stop"])


def test_a_rule_that_fails_is_said_once_and_looks_no_more() -> None:
    def find_beyond_the_end(evidence: Evidence, _: RuleParameters, __: frozenset[str]) -> Iterator[Finding]:
        yield [][len(evidence.times_s)]

    failing = DiagnosisRule(name="IdleSM", group="toolkit", parameters=RuleParameters, find=find_beyond_the_end)
    bottleneck = configuration.read({"CPUBottleneck": {"patience": 20, "scan_interval_us": 5_000_000}}, "rules.json")
    rules = (Configuration(rule=failing, parameters=RuleParameters()), *bottleneck.configurations)
    notes: list[str] = []
    live = LiveDiagnosis(window({name: [] for name in NAMES}), rules, notes.append)

    findings = run(live, [START_S], seconds=120, cpu=99, gpu=2)

    assert findings == ["warn"]
    assert [note.partition(" (")[0] for note in notes] == [
        "the rule IdleSM is off: it failed with IndexError: list index out of range"
    ]


def test_before_its_patience_nothing_is_found() -> None:
    live, clock = job()

    assert run(live, clock, seconds=9, cpu=99, gpu=2) == []
