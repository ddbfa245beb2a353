import pytest

from toolkit.diagnosis.units import format_seconds, format_value, ordinal


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.00432, "4.32 ms"),
        (0.0544, "54.4 ms"),
        (0.9997, "1 s"),
        (1.44, "1.44 s"),
        (12.64, "12.6 s"),
        (59.99, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (97200, "1 d 3 h"),
        (-0.5, "-500 ms"),
    ],
)
def test_seconds_read_as_people_say_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (5.44e11, "bytes", "507 GiB"),
        (2.0**30 - 1, "bytes", "1 GiB"),
        (7_508_151, "bytes/s", "7.51 MB/s"),
        (1.0, "", "1"),
        (12.345, "percent", "12.3 %"),
        (0.0123, "s", "12.3 ms"),
        (86_400.0, "steps", "86,400 steps"),
        (300.0, "bytes", "300 bytes"),
    ],
)
def test_values_have_the_unit_that_reads_best(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def test_ordinals() -> None:
    assert [ordinal(count) for count in (1, 2, 3, 4, 11, 22, 113)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "22nd",
        "113th",
    ]
