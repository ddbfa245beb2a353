from collections.abc import Mapping

import pytest

from tests.diagnosis.made import find_by_rule
from tests.diagnosis.test_steps import job, steps

SAMPLES = 200


def busy(ranks: int = 1, changed: Mapping[str, float] = {}) -> dict[str, list[float]]:
    """Return columns of ranks with 33 threads each on four cores, 16 of which want to run, with what is *changed*."""
    values = {"threads": 33.0, "running_threads": 16.0, "core_wait_percent": 70.0, "cpu_percent": 390.0, **changed}
    return {f"rank/{rank}/{name}": [value] * SAMPLES for rank in range(ranks) for name, value in values.items()}


def test_more_threads_than_cores_that_all_want_to_run_are_found() -> None:
    findings = find_by_rule(job([steps(900)], busy()))

    assert findings.keys() == {"CoreContention"}
    assert findings["CoreContention"].text == (
        "16 threads want to run at a time on 4 cores: the main thread of rank 0 was ready but had no core for 70 % of"
        " the time."
    )


def test_threads_of_all_ranks_of_a_host_count() -> None:
    columns = busy(ranks=4, changed={"running_threads": 3.0})

    text = find_by_rule(job([steps(900)] * 4, columns))["CoreContention"].text

    assert text.startswith("12 threads of 4 ranks want to run at a time on 4 cores")


@pytest.mark.parametrize(
    "changed",
    [
        {"core_wait_percent": 8.0},
        {"running_threads": 4.0},  # The others sleep; cores are held by other programs.
        {"running_threads": float("nan")},
    ],
    ids=["no wait", "asleep", "few threads"],
)
def test_threads_that_do_not_contend_with_each_other_are_no_finding(changed: dict[str, float]) -> None:
    assert "CoreContention" not in find_by_rule(job([steps(900)], busy(changed=changed)))
