import msgspec

from tests.diagnosis.made import START_S, evidence
from tests.diagnosis.test_steps import job
from toolkit.diagnosis import configuration, rule_output
from toolkit.diagnosis.folding import fold
from toolkit.diagnosis.job import diagnose, merge
from toolkit.series.finding import Finding

ASKED = configuration.read(None, "rules").configurations
HEALTHY = [{"step_s": 0.3, "data_s": 0.01, "forward_s": 0.05, "backward_s": 0.24} for _ in range(60)]
SLOW = [{"step_s": 0.3, "data_s": 0.15, "forward_s": 0.05, "backward_s": 0.10} for _ in range(60)]


def test_ranks_of_different_hosts_are_compared() -> None:
    one, two = job([HEALTHY]), job([SLOW])
    two.host, two.steps = "algo-2", {1: two.steps[0]}

    found = diagnose([one, two], ASKED)

    assert [(each.rule, each.host, each.rank) for each in found] == [
        ("DataWait", "algo-2", None),
        ("SlowRank", "algo-2", 1),
    ]


def test_findings_of_both_times_are_merged() -> None:
    first = Finding(rule="CPUBottleneck", subject="cpu", text="live", start_s=5, end_s=6, live=True)
    gone = msgspec.structs.replace(first, rule="IOBottleneck", start_s=1)
    after = msgspec.structs.replace(first, text="after", live=False, start_s=2)

    assert [(each.rule, each.text, each.live) for each in merge([after], [first, gone])] == [
        ("IOBottleneck", "live", True),
        ("CPUBottleneck", "after", True),
    ]


def test_findings_of_two_attempts_are_two() -> None:
    first = Finding(rule="DataWait", subject="loader", text="first", start_s=5, end_s=6)
    second = msgspec.structs.replace(first, text="second", attempt=1, start_s=20)

    assert [each.text for each in merge([second], [first])] == ["first", "second"]
    assert [each.finding.text for each in fold([first, second])] == ["first", "second"]


def test_the_debuggers_documents_have_its_keys() -> None:
    columns = {"gpu/0/used_percent": [30.0] * 200, "cpu/all/used_percent": [20.0] * 200}
    seen = evidence(columns)

    made = rule_output.documents([seen], ASKED, diagnose([seen], ASKED))

    low = made["LowGPUUtilization.json"]
    assert (low["RuleTriggered"], low["Violations"], low["Datapoints"]) == (1, 1, 199)
    assert low["RuleParameters"] == "threshold_p95:70\nthreshold_p5:10\nwindow:500\npatience:1000"
    assert low["Details"]["algo-1"]["gpu"]["gpu0_p95"] == 30
    usage = made["OverallSystemUsage.json"]["Details"]["algo-1"]
    assert usage["GPU"]["gpu0"] == {"max": 30, "p99": 30, "p95": 30, "p50": 30, "min": 30}
    assert made["BatchSize.json"]["RuleTriggered"] == 0
    assert "BusyCore.json" not in made
    assert seen.start_s == START_S
