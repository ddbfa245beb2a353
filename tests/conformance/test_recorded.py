"""This toolkit against what sagemaker-training 5.1.4 did with the same jobs (docs/lab/conformance.md)."""

import json

import pytest

from tests.conformance import table
from tests.conformance.cases import CASES, JOBS, RECORDED
from tests.conformance.running import Side

# These take seconds, need root or a fixed port, or look at the time: scripts/conformance runs them.
NOT_HERE = {
    "60,000 lines after an ImportError",
    "a grandchild holds the pipe",
    "a host that does not resolve",
    "a line before a sleep",
    "torchrun, three leaders",
}
QUICK = [name for name, job in JOBS.items() if not (job.caged or job.both or job.signals or name in NOT_HERE)]


@pytest.mark.parametrize("name", QUICK)
def test_a_job_is_not_worse_than_the_recording(name: str) -> None:
    recorded = json.loads(RECORDED.read_text())

    result = JOBS[name].run(Side(is_ours=True))

    for case in (case for case in CASES if case.job == name):
        theirs, toolkit_value = recorded[f"{case.point}: {case.title}"], json.loads(json.dumps(case.see(result)))
        assert table.verdict(case, theirs, toolkit_value) != table.WORSE, (
            case.point,
            case.title,
            theirs,
            toolkit_value,
        )


def test_every_point_of_the_contract_has_a_case() -> None:
    assert {case.point for case in CASES} == set(table.rows_of_the_contract()) == set(range(1, 81))


def test_the_page_and_the_recording_have_every_case() -> None:
    names = [f"{case.point}: {case.title}" for case in CASES]
    page = table.PAGE.read_text().splitlines()

    assert len(set(names)) == len(names)
    assert sorted(json.loads(RECORDED.read_text())) == sorted(names)
    for case in CASES:
        assert any(line.startswith(f"| {case.point} | {case.title} | ") for line in page), case.title


def test_a_job_that_fails_where_the_other_succeeds_is_worse() -> None:
    case = next(case for case in CASES if case.point == 7)

    assert table.verdict(case, [0, True], [1, False]) == table.WORSE
