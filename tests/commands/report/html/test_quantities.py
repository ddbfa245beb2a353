"""Numbers and units are written as people read them."""

import pytest

from toolkit.commands.report.html import blocks, quantities


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0, "0"),
        (1200, "1,200"),
        (-3, "−3"),
        (1234.56, "1,235"),
        (123.456, "123.5"),
        (3.25, "3.25"),
        (0.25, "0.25"),
        (0.01234567, "0.01235"),
        (1.5e-7, "1.5e-07"),
        (2.5e12, "2,500,000,000,000"),
    ],
)
def test_a_number_reads_with_about_four_digits(value: float | None, text: str) -> None:
    assert quantities.number(value) == text


@pytest.mark.parametrize(
    ("unit", "top", "label", "divisor"),
    [
        ("percent", 100, "%", 1),
        ("bytes", 100, "bytes", 1),
        ("bytes", 8e10, "GiB", 2**30),
        ("bytes/s", 2.5e6, "MB/s", 1e6),
        ("bytes_per_s", 2.5e9, "GB/s", 1e9),
        ("s", 1e6, "s", 1),
        ("s", 0.0331, "ms", 1e-3),
        ("s", 0.0, "s", 1),
        ("", 5, "", 1),
    ],
)
def test_a_unit_is_shown_in_the_size_that_reads_best(unit: str, top: float, label: str, divisor: float) -> None:
    assert quantities.scale(unit, top) == quantities.Scale(label=label, divisor=divisor)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (3725.2, "1:02:05"), (90000, "25:00:00"), (-61, "−0:01:01")]
)
def test_a_duration_reads_as_hours_minutes_and_seconds(seconds: float, text: str) -> None:
    assert quantities.clock(seconds) == text


def test_a_time_beyond_the_calendar_is_no_error() -> None:
    assert quantities.moment(1e300) == quantities.moment(float("nan")) == "an unknown time"
    assert quantities.moment(1_763_862_485) == "2025-11-23 01:48:05 UTC"


@pytest.mark.parametrize(
    ("value", "total", "text"), [(1.31e-05, 36.62, "0"), (13.2, 36.62, "13.20"), (0.004, 0.02, "0.004"), (5, 0, "5")]
)
def test_a_part_has_no_more_digits_than_its_total(value: float, total: float, text: str) -> None:
    assert blocks.part_value(value, total) == text
