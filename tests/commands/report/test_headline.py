"""The headline: the line by which every form of a report begins."""

import pytest

from toolkit.commands.report.sections.headline import (
    JobFigures,
    choose_metrics,
    describe_headline,
    shorten_sentence,
    sort_findings,
)
from toolkit.commands.report.speed import STEPS, estimate_epochs_left_s, find_count, format_speed
from toolkit.diagnosis.folding import fold
from toolkit.metrics.sample import Sample
from toolkit.series.finding import Finding


def finding(rule: str, text: str, lost_s: float | None = None, **more: str) -> Finding:
    return Finding(rule=rule, text=text, start_s=0.0, end_s=10.0, host="algo-1", lost_s=lost_s, **more)  # type: ignore[arg-type]


def figures(*findings: Finding, status: str = "succeeded", event: str = "It ended.", **more: object) -> JobFigures:
    return JobFigures(status=status, event=event, findings=tuple(sort_findings(fold(findings))), **more)  # type: ignore[arg-type]


def text(job: JobFigures) -> str:
    return "".join(phrase.text for phrase in describe_headline(job))


@pytest.mark.parametrize(
    ("left_s", "limit_s", "said"),
    [
        (200.0, None, "2 s a step; about 3 min 20 s left. It ended."),
        (200.0, 300.0, "2 s a step; about 3 min 20 s left. It ended."),
        (200.0, 60.0, "2 s a step; about 3 min 20 s left to do, but max-run ends it in 1 min 00 s. It ended."),
        (None, 60.0, "2 s a step; max-run ends it in 1 min 00 s at the latest. It ended."),
        (None, None, "2 s a step. It ended."),
    ],
)
def test_a_running_job_says_when_it_ends(left_s: float | None, limit_s: float | None, said: str) -> None:
    assert text(figures(status="running", steps_per_s=0.5, left_s=left_s, limit_left_s=limit_s)) == said


def test_a_success_says_speed_worst_finding_with_its_share_and_metrics() -> None:
    job = figures(
        finding("StepOutlier", "3 steps are long. More.", 1.0),
        finding("DataWait", "The steps of rank 1 wait for data (0.19 s a step). More.", 72.0),
        duration_s=100.0,
        steps_per_s=41.04,
        metrics={"loss": 0.1234, "lr": 0.1, "val/accuracy": 0.983},
    )

    assert text(job) == (
        "41 steps/s; 72 % of the time: the steps of rank 1 wait for data (0.19 s a step); val/accuracy 0.983; "
        "loss 0.1234. It ended."
    )


def test_a_success_without_findings_says_so_only_if_rules_could_look() -> None:
    assert text(figures(is_judged=True)) == "No finding. It ended."
    assert text(figures()) == "It ended."
    assert text(figures(is_measured=True)) == "No step was measured and no metric captured. It ended."


def test_damaged_records_are_said_beside_what_is_known() -> None:
    assert text(figures(is_judged=True, damaged_records=1)) == (
        "No finding. It ended. A record is damaged: the notes say what is missing."
    )
    assert text(figures(status="failed", damaged_records=3)).startswith("It ended. 3 records are damaged:")


def test_no_finding_is_qualified_where_much_of_the_time_is_unexplained() -> None:
    def said(share: float) -> str:
        return text(figures(is_judged=True, steps_per_s=2.0, unexplained_share=share))

    assert said(0.454) == "2 steps/s; no finding; 45 % of the time is unexplained. It ended."
    assert said(0.1) == "2 steps/s; no finding. It ended."


@pytest.mark.parametrize(
    ("clause", "said"),
    [
        ("Evaluation holds up the steps.", "evaluation holds up the steps"),
        ("8 loader workers run on 2 cores (busy: core0 92 %).", "8 loader workers run on 2 cores"),
        ("A thread waits.", "a thread waits"),
        ("GPU 3 is idle.", "GPU 3 is idle"),
        ("Python's garbage collection takes long.", "Python's garbage collection takes long"),
        ("DataLoader workers start anew.", "DataLoader workers start anew"),
        ("8 workers run.", "8 workers run"),
    ],
)
def test_a_finding_goes_on_in_the_sentence_of_the_headline(clause: str, said: str) -> None:
    assert text(figures(finding("Rule", clause, 50.0), duration_s=100.0)) == f"50 % of the time: {said}. It ended."


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("Rank 13: out of memory.", "Rank 13: out of memory: memory of rank 13 rises by 430 MiB a minute."),
        (
            "Rank 13: out of memory; it last said: step=5.",
            "Rank 13: out of memory: memory of rank 13 rises by 430 MiB a minute.",
        ),
        ("Rank 13: KeyError: 'x'.", "Rank 13: KeyError: 'x'."),
    ],
)
def test_a_failure_is_joined_with_the_finding_that_explains_it_and_no_other(event: str, said: str) -> None:
    rises = finding("MemoryLimit", "memory of rank 13 rises by 430 MiB a minute. More.")
    waits = finding("DataWait", "Steps wait for data.", 50.0)

    assert text(figures(waits, rises, status="failed", event=event)) == said


def test_a_phrase_leads_to_the_chart_that_shows_it_if_the_page_has_it() -> None:
    job = figures(finding("MemoryLimit", "Memory rises."), steps_per_s=2.0, metrics={"loss": 1.0})

    with_charts = {phrase.text: phrase.link for phrase in describe_headline(job, ("algo-1-memory", "step-time"))}
    without = [phrase.link for phrase in describe_headline(job)]

    assert with_charts["memory rises"] == "algo-1-memory"
    assert with_charts["2 steps/s"] == "step-time"
    assert with_charts["loss 1"] == ""
    assert set(without) <= {"", "findings"}


def test_findings_are_sorted_by_what_they_cost_and_those_of_unknown_cost_come_last() -> None:
    groups = fold((finding("A", "a"), finding("B", "b", 1.0), finding("C", "c", 2.0), finding("D", "d")))

    assert [group.finding.rule for group in sort_findings(groups)] == ["C", "B", "A", "D"]


def test_of_two_findings_about_the_same_time_the_one_that_names_the_cause_comes_first() -> None:
    groups = fold((finding("SlowRank", "slow", 10.0), finding("DataWait", "waits", 9.5)))
    others = fold((finding("SlowRank", "slow", 10.0), finding("DataWait", "waits", 2.0)))

    assert [group.finding.rule for group in sort_findings(groups)] == ["DataWait", "SlowRank"]
    assert [group.finding.rule for group in sort_findings(others)] == ["SlowRank", "DataWait"]


def test_metrics_that_count_or_schedule_are_not_the_result() -> None:
    names = dict.fromkeys(("step", "lr", "train_loss", "epoch", "eval_accuracy", "slope", "learning_rate"), 1.0)

    assert choose_metrics(names) == ["eval_accuracy", "train_loss"]


@pytest.mark.parametrize(
    ("speed", "words"), [(0.05, "20 s a step"), (4.766, "4.77 steps/s"), (2500.0, "2,500 steps/s")]
)
def test_a_speed_reads_as_steps_a_second_or_seconds_a_step(speed: float, words: str) -> None:
    assert format_speed(speed) == words


def test_a_number_in_a_sentence_does_not_end_it() -> None:
    assert (
        shorten_sentence("Rank 1 needs 0.2 s a step: its peers wait. Most of it is data.")
        == "Rank 1 needs 0.2 s a step"
    )


def test_the_time_left_is_that_of_the_epochs_that_are_left() -> None:
    def samples(*values: float) -> list[Sample]:
        return [
            Sample(name="epoch", value=value, time_s=60.0 * number, host="h") for number, value in enumerate(values, 1)
        ]

    assert estimate_epochs_left_s(10, samples(0, 1, 2), now_s=190.0) == pytest.approx(7 * 60 - 10)
    assert estimate_epochs_left_s(10, samples(1, 2, 3), now_s=190.0) == pytest.approx(7 * 60 - 10)
    assert estimate_epochs_left_s(3, samples(1, 2, 3), now_s=190.0) is None
    assert estimate_epochs_left_s(3, samples(1), now_s=190.0) is None


def test_what_ends_a_job_stands_before_what_it_lost_time_with() -> None:
    groups = fold([finding("StepPause", "It pauses.", 90.0), finding("MemoryLimit", "Memory rises.")])

    assert [group.finding.rule for group in sort_findings(groups)] == ["MemoryLimit", "StepPause"]


@pytest.mark.parametrize(
    ("hyperparameters", "count"),
    [({"max-steps": "600"}, 600), ({"steps": 3.0, "max_steps": -1}, 3), ({"Steps": "many"}, None), ({}, None)],
)
def test_the_steps_that_a_job_is_asked_for_are_found(hyperparameters: dict[str, object], count: int | None) -> None:
    assert find_count(hyperparameters, STEPS) == count
