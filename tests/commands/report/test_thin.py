"""A thinned line shows every extreme, and no value that was not measured."""

import math

from hypothesis import given
from hypothesis import strategies as st

from toolkit.commands.report.sections.thin import thin_line

VALUES = st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf]), min_size=1, max_size=300)


@given(VALUES, st.integers(1, 50))
def test_the_least_and_the_greatest_value_stay_and_each_mean_lies_between(values: list[float], points: int) -> None:
    thinned = thin_line("loss", range(len(values)), values, points=points)
    finite = [value for value in values if math.isfinite(value)]
    low, high = thinned.low or thinned.mean, thinned.high or thinned.mean

    assert len(thinned.x) == len(thinned.mean) <= max(points, 1) or len(values) <= points
    assert list(thinned.x) == sorted(thinned.x) and thinned.x[0] == 0.0
    if finite:
        assert min(value for value in low if value == value) == min(finite)
        assert max(value for value in high if value == value) == max(finite)
    for least, mean, greatest in zip(low, thinned.mean, high, strict=True):
        assert mean != mean or least - 1e-6 <= mean <= greatest + 1e-6


def test_a_short_line_is_kept_as_it_is() -> None:
    thinned = thin_line("loss", [1, 2, 3], [0.5, math.inf, 0.25], points=3)

    assert (thinned.x, thinned.low, thinned.high) == ((1.0, 2.0, 3.0), (), ())
    assert thinned.mean[0] == 0.5 and math.isnan(thinned.mean[1])
