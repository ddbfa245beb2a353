from collections.abc import Iterator

from tests.diagnosis.made import START_S, evidence
from tests.diagnosis.test_steps import job, steps
from toolkit import diagnosis
from toolkit.diagnosis import configuration
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.rule import Configuration, DiagnosisRule, RuleParameters
from toolkit.diagnosis.unjudged import UnjudgedRules, count_judging, list_unjudged
from toolkit.series.finding import Finding

ASKED = configuration.read(None, "rules").configurations
COLUMNS = {"cpu/all/used_percent": [50.0] * 100, "rank/0/cpu_percent": [100.0] * 100}


def find_beyond_the_end(evidence: Evidence, _: RuleParameters, __: frozenset[str]) -> Iterator[Finding]:
    """Fail as a rule with a fault does."""
    yield [][len(evidence.times_s)]


def reasons(*hosts: Evidence) -> dict[str, str]:
    """Return the reason of each rule that could not judge, by its name."""
    return {rule: group.reason for group in list_unjudged(hosts, ASKED, {}) for rule in group.rules}


def test_a_job_of_one_rank_on_cpus_is_judged_by_the_rules_on_its_steps() -> None:
    found = reasons(job([steps(100, forward_s=0.05)], COLUMNS))

    assert found["CPUBottleneck"] == "no GPU was measured"
    assert found["SlowRank"] == "there was only one rank"
    assert found["ExplodingTensor"] == "no metric is called a loss"
    assert not found.keys() & {"StepOutlier", "StepPause", "StepSlowdown", "DataWait", "MemoryLimit"}


def test_ranks_of_two_hosts_can_be_compared() -> None:
    first, second = job([steps(100)]), job([steps(100)])
    second.host, second.steps = "algo-2", {1: second.steps[0]}

    assert "SlowRank" not in reasons(first, second)


def test_a_job_without_steps_is_not_judged_by_them() -> None:
    found = reasons(evidence(COLUMNS))

    assert {found[name] for name in ("StepOutlier", "StepPause", "DataWait", "SlowRank")} == {"no steps were measured"}
    assert "MemoryLimit" not in found


def test_a_short_job_is_said_to_be_short() -> None:
    found = reasons(job([steps(20)], {"cpu/all/used_percent": [50.0] * 5}))

    assert found["MemoryLimit"].startswith("it trained for only 1.")
    assert found["StepSlowdown"] == "fewer than 40 steps were measured"
    assert found["StepPause"] == "the parts of the steps were not measured"


def test_a_rule_that_fails_is_named_with_its_error_and_the_others_go_on() -> None:
    evidence = job([steps(100, forward_s=0.05)], COLUMNS)
    failing = DiagnosisRule(name="StepOutlier", group="toolkit", parameters=RuleParameters, find=find_beyond_the_end)
    rules = (Configuration(rule=failing, parameters=RuleParameters()), *ASKED)
    failures: dict[str, str] = {}

    findings = diagnosis.run(evidence, rules, failures)

    reason = "it failed with IndexError: list index out of range (test_unjudged.py:18)"
    assert failures == {"StepOutlier": reason}
    assert findings == diagnosis.run(evidence, ASKED, {})
    assert UnjudgedRules(reason=reason, rules=("StepOutlier",)) in list_unjudged([evidence], rules[:1], failures)


def test_rules_that_could_judge_are_counted() -> None:
    nothing = job([], {"cpu/all/used_percent": [float("nan")] * 3})
    nothing.times_s = ()

    assert nothing.start_s == START_S
    assert count_judging(ASKED, list_unjudged([nothing], ASKED, {})) == 0
    assert count_judging(ASKED, list_unjudged([job([steps(100)], COLUMNS)], ASKED, {})) > 3
