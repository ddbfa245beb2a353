import math

import pytest

from toolkit.metrics.sample import number, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        (" 4.5e-05 ", 4.5e-05),
        ("-3", -3),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
        (".5", 0.5),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        ("1e-3", 0.001),
        ("+2.", 2),
    ],
)
def test_numbers_are_read_as_python_reads_them(text: str, value: float) -> None:
    assert number(text) == value


def test_nan_is_a_number() -> None:
    assert math.isnan(number("NaN") or 0)


@pytest.mark.parametrize(
    "text", [None, "", " ", ".", "_1", "1__0", "1,5", "1,000", "3.4k", "12 %", "0x10", "5%", "one"]
)
def test_all_else_is_none(text: str | None) -> None:
    assert number(text) is None


@pytest.mark.parametrize(
    ("value", "step"),
    [(0.0, 0), (120.0, 120), (-1.0, -1), (1.5, None), (math.nan, None), (math.inf, None), (1e300, None), (None, None)],
)
def test_only_whole_numbers_are_steps(value: float | None, step: int | None) -> None:
    assert whole(value) == step
