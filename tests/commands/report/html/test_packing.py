"""The numbers of a page are those of its source: what JavaScript computes, computed here in the same way."""

import base64
import json
import math
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.commands.report.html.packing import Store

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def unpacked(store: Store, number: int) -> list[float | None]:
    """As static/decode.js does it, without NumPy; the browser's test holds that file to the same numbers."""
    packed = json.loads(zlib.decompress(base64.b64decode(store.text())))
    decimals, *kept = packed[number]
    if decimals is None:
        return list(kept)
    values: list[float | None] = []
    integer = 0
    for step in kept:
        integer += step or 0
        value = integer / 10.0**decimals if decimals >= 0 else integer * 10.0**-decimals
        values.append(None if step is None else value)
    return values


@given(st.lists(st.one_of(FINITE, st.none(), st.floats(0, 100).map(lambda value: round(value, 2)))))
def test_every_value_comes_back_exactly_and_a_gap_as_a_gap(values: list[float | None]) -> None:
    store = Store()

    assert unpacked(store, store.add(values)) == values


@given(st.lists(FINITE.filter(lambda value: value == 0 or 1e-200 < abs(value) < 1e200), min_size=1), st.integers(3, 7))
def test_rounding_errs_by_half_of_the_last_digit_at_most(values: list[float], digits: int) -> None:
    store = Store()
    top = max(abs(value) for value in values)
    step = 10.0 ** (math.floor(math.log10(top)) + 1 - digits) if top else 0.0

    back = unpacked(store, store.add(values, digits))

    for value, decoded in zip(values, back, strict=True):
        assert decoded is not None and abs(decoded - value) <= step * 0.500001


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf, None])
def test_what_is_no_number_is_a_gap(gap: float | None) -> None:
    store = Store()

    assert unpacked(store, store.add([1.5, gap, 2.5])) == [1.5, None, 2.5]


def test_equal_arrays_are_kept_once() -> None:
    store = Store()

    assert store.add([1.0, 2.0]) == store.add((1.0, 2.0)) != store.add([1.0, 3.0])
    assert len(store.arrays) == 2


def test_a_steady_clock_costs_next_to_nothing() -> None:
    store = Store()

    store.add([1_763_862_485.5 + index for index in range(86_400)])

    assert len(store.text()) < 600
