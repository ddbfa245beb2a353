import math
from collections.abc import Sequence

import pytest

from tests.diagnosis.made import START_S, find_by_rule, window
from toolkit.series.finding import Finding


def find_in(values: Sequence[float], name: str = "loss") -> dict[str, Finding]:
    evidence_window = window({"cpu/all/used_percent": [50.0] * 10})
    for step, value in enumerate(values, 1):
        evidence_window.metric(name, value, START_S + step, 0, 10 * step)
    return find_by_rule(evidence_window.evidence(START_S + len(values), is_over=True))


def test_a_loss_that_grows_a_million_times_is_found_with_the_step_from_which_on() -> None:
    finding = find_in([2.3] * 10 + [2.3 * 10 ** (index / 2) for index in range(1, 13)] + [2.3e6] * 3)["ExplodingTensor"]

    assert finding.text == "The metric loss rose 1,000,000 times on rank 0 from step 90 on, from 2.3 to 2.3e+06."


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([2.3 / step for step in range(1, 30)], "loss"),
        ([2.3] * 20 + [5e4] + [2.3] * 9, "loss"),  # A spike that went away.
        ([1.0 * step for step in range(3000)], "samples_seen"),
        ([1e-9, 2.0, 2.1, 2.0] * 5, "loss"),
        ([2.3 * 0.5**step for step in range(30)] + [1e-3] * 5, "loss"),
    ],
    ids=["falls", "spike", "no loss", "starts at nothing", "was very low"],
)
def test_other_courses_are_no_finding(values: Sequence[float], name: str) -> None:
    assert find_in(values, name) == {}


def test_nan_is_told_with_the_number_of_values_before() -> None:
    assert "The metric loss is NaN at step 40" in find_in([2.3, 2.2, 2.1, math.nan])["ExplodingTensor"].text
