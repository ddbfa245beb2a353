import math

import msgspec
import pytest

from tests.diagnosis.made import START_S, evidence, window
from tests.diagnosis.test_steps import job
from toolkit.diagnosis import configuration, rule_output
from toolkit.diagnosis.evidence import MachineFacts
from toolkit.diagnosis.folding import fold
from toolkit.diagnosis.job import diagnose, merge
from toolkit.diagnosis.shared_machine import others_percent
from toolkit.series.finding import Finding

ASKED = configuration.read(None, "rules").configurations
HEALTHY = [{"step_s": 0.3, "data_s": 0.01, "forward_s": 0.05, "backward_s": 0.24} for _ in range(60)]
SLOW = [{"step_s": 0.3, "data_s": 0.15, "forward_s": 0.05, "backward_s": 0.10} for _ in range(60)]


def test_ranks_of_different_hosts_are_compared() -> None:
    first_host, two = job([HEALTHY]), job([SLOW])
    two.host, two.steps = "algo-2", {1: two.steps[0]}

    findings = diagnose([first_host, two], ASKED, {})

    assert [(finding.rule, finding.host, finding.rank) for finding in findings] == [
        ("DataWait", "algo-2", None),
        ("SlowRank", "algo-2", 1),
    ]


def test_what_another_host_of_the_job_uses_of_the_same_machine_is_no_other_programs() -> None:
    full = {"cpu/all/used_percent": [96.0] * 100, "rank/0/cpu_percent": [190.0] * 100}  # Of four cores.
    first_host, two = job([HEALTHY], full), job([HEALTHY], full)
    start_s, end_s = first_host.start_s, first_host.end_s

    assert others_percent(first_host, start_s, end_s) == pytest.approx(48.5)
    first_host.neighbours = [two]
    assert others_percent(first_host, start_s, end_s) == pytest.approx(1.0)


def test_while_the_use_of_another_host_on_the_machine_is_not_known_nobody_else_is_named() -> None:
    full = {"cpu/all/used_percent": [96.0] * 100, "rank/0/cpu_percent": [190.0] * 100}
    running = window(full, machine=MachineFacts(cores=4, has_neighbours=True)).evidence(START_S + 49.5, is_over=False)

    assert math.isnan(others_percent(running, START_S, START_S + 49.5))


def test_a_host_that_others_crowd_qualifies_the_comparison_of_ranks() -> None:
    crowd = {"cpu/all/used_percent": [98.0] * 100, "rank/0/cpu_percent": [100.0] * 100}
    first_host, two = job([HEALTHY], crowd), job([SLOW], crowd)
    two.host, two.steps = "algo-2", {1: two.steps[0]}
    slightly = [{**step, "data_s": 0.02, "backward_s": 0.23} for step in HEALTHY]
    three = job([slightly], crowd)
    three.host, three.steps = "algo-2", {1: three.steps[0]}

    slow = next(finding for finding in diagnose([first_host, two], ASKED, {}) if finding.rule == "SlowRank")

    assert slow.text.endswith("of the cores meanwhile: part of any time on this host may be theirs.")
    assert diagnose([first_host, three], ASKED, {}) == []


def test_findings_of_both_times_are_merged() -> None:
    first = Finding(rule="CPUBottleneck", subject="cpu", text="live", start_s=5, end_s=6, live=True)
    gone = msgspec.structs.replace(first, rule="IOBottleneck", start_s=1)
    after = msgspec.structs.replace(first, text="after", live=False, start_s=2)

    assert [(finding.rule, finding.text, finding.live) for finding in merge([after], [first, gone])] == [
        ("IOBottleneck", "live", True),
        ("CPUBottleneck", "after", True),
    ]


def test_a_live_finding_that_the_whole_job_refutes_goes_unless_it_cost_a_noticeable_time() -> None:
    cheap = Finding(rule="StepOutlier", subject="step", text="11 steps.", start_s=5, end_s=6, lost_s=0.4, live=True)
    dear = msgspec.structs.replace(cheap, rule="DataWait", text="It waits.", end_s=125, lost_s=60.0)
    unknown = msgspec.structs.replace(cheap, rule="MemoryLimit", lost_s=None)
    stopping = msgspec.structs.replace(unknown, rule="LossNotDecreasing", action="stop")
    earlier = msgspec.structs.replace(cheap, attempt=1)

    merged = merge([], [cheap, dear, unknown, stopping, earlier], judged={0: 4000.0})

    assert [(finding.rule, finding.attempt) for finding in merged] == [
        ("DataWait", 0),
        ("LossNotDecreasing", 0),
        ("StepOutlier", 1),
    ]
    assert merged[0].text == "It waits. This held for 2 min, 3 % of the job, and not for all of it."


def test_findings_of_two_attempts_are_two() -> None:
    first = Finding(rule="DataWait", subject="loader", text="first", start_s=5, end_s=6)
    second = msgspec.structs.replace(first, text="second", attempt=1, start_s=20)

    assert [finding.text for finding in merge([second], [first])] == ["first", "second"]
    assert [folded.finding.text for folded in fold([first, second])] == ["first", "second"]


def test_the_debuggers_documents_have_its_keys() -> None:
    columns = {"gpu/0/used_percent": [30.0] * 200, "cpu/all/used_percent": [20.0] * 200}
    findings = evidence(columns)

    evidence_window = rule_output.documents([findings], ASKED, diagnose([findings], ASKED, {}))

    low = evidence_window["LowGPUUtilization.json"]
    assert (low["RuleTriggered"], low["Violations"], low["Datapoints"]) == (1, 1, 199)
    assert low["RuleParameters"] == "threshold_p95:70\nthreshold_p5:10\nwindow:500\npatience:1000"
    assert low["Details"]["algo-1"]["gpu"]["gpu0_p95"] == 30
    usage = evidence_window["OverallSystemUsage.json"]["Details"]["algo-1"]
    assert usage["GPU"]["gpu0"] == {"max": 30, "p99": 30, "p95": 30, "p50": 30, "min": 30}
    assert evidence_window["BatchSize.json"]["RuleTriggered"] == 0
    assert "BusyCore.json" not in evidence_window
    assert findings.start_s == START_S
