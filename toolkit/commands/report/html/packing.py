"""Packs the numbers of a page's charts: JSON arrays in one deflate stream, as base64.

static/decode.js reads it. An array is its number of decimals, then its values. Where all values are decimals of at most
15 digits, each is written as the integer by which it differs from the one before, in units of the last decimal; else
the number of decimals is null, and the values are written as they are. A gap is null. Both ways the page has the same
numbers as its source, unless the caller asks for fewer digits.

Differences: values as they are would make the page of a long job a quarter larger (docs/lab/figures.md).
"""

import base64
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# What JavaScript counts exactly is 2^53.
_LIMIT = 2.0**51
_MOST_DECIMALS = 15
_LEVEL = 6  # 9 takes twice the time for 2 % less.
# The number of decimals (below 0: tens, hundreds, ...; None: the values as they are), then the values.
PackedArray = list[float | int | None]


class Store:
    """Takes arrays and gives each a number; equal arrays (the times of lines that belong together) are kept once."""

    def __init__(self) -> None:
        self.arrays: list[PackedArray] = []
        self._numbers: dict[bytes, int] = {}

    def add(self, values: Sequence[float | None] | Floats, digits: int | None = None) -> int:
        """Keep *values*, where None, NaN and infinity are gaps, and return the array's number.

        *digits*: at most so many significant digits of the greatest value; None: every value exactly.
        """
        array = np.asarray(values, dtype=np.float64)
        key = array.tobytes() + bytes((digits or 0,))
        if key not in self._numbers:
            self._numbers[key] = len(self.arrays)
            self.arrays.append(_pack(array, digits))
        return self._numbers[key]

    def text(self) -> str:
        """Return all arrays as base64 of a zlib stream."""
        return base64.b64encode(zlib.compress(msgspec.json.encode(self.arrays), _LEVEL)).decode("ascii")


def _pack(array: Floats, digits: int | None) -> PackedArray:
    is_measured = np.isfinite(array)
    measured = array[is_measured]
    decimals = _choose_decimals(measured, digits)
    values = np.full(len(array), None, dtype=object)
    if decimals is None:
        values[is_measured] = measured
    else:
        integers = np.rint(_scale_by_ten(measured, decimals)).astype(np.int64)
        values[is_measured] = np.diff(integers, prepend=0)
    return [decimals, *values.tolist()]


def _choose_decimals(array: Floats, digits: int | None) -> int | None:
    """Return with how many decimals *array* is kept (below 0: tens, hundreds, ...), None if as doubles."""
    top = float(np.abs(array).max(initial=0.0))
    most_decimals = None if digits is None or top == 0 else digits - 1 - int(np.floor(np.log10(top)))
    for decimals in range(_MOST_DECIMALS + 1):
        if most_decimals is not None and decimals >= most_decimals:
            return most_decimals
        if top * 10.0**decimals >= _LIMIT:
            return None
        if np.array_equal(np.rint(_scale_by_ten(array, decimals)) / 10.0**decimals, array):
            return decimals
    return None


def _scale_by_ten(array: Floats, decimals: int) -> Floats:
    return array * 10.0**decimals if decimals >= 0 else array / 10.0**-decimals
