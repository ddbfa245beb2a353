"""Packs the numbers of a page's charts: arrays of integer differences in one deflate stream, as base64.

static/decode.js reads it. An array whose values are all decimals of at most 15 digits is kept as integers, count and
power of ten beside it; anything else as doubles. Both ways the page has the same numbers as its source, unless the
caller asks for fewer digits.
"""

import base64
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# What JavaScript counts exactly is 2^53; a zigzag difference of two such integers has two bits more.
_LIMIT = 2.0**51
_MOST_DECIMALS = 15
# [offset, count, bytes of a value (0: doubles), decimals, first integer, offset of the bits of gaps (-1: no gap)]
Entry = tuple[int, int, int, int, int, int]


class Store:
    """Takes arrays and gives each a number; equal arrays (the times of lines that belong together) are kept once."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._blob = bytearray()
        self._numbers: dict[bytes, int] = {}

    def add(self, values: Sequence[float | None] | Floats, digits: int | None = None) -> int:
        """Keep *values*, where None, NaN and infinity are gaps, and return the array's number.

        *digits*: at most so many significant digits of the greatest value; None: every value exactly.
        """
        array = np.asarray(values, dtype=np.float64)
        key = array.tobytes() + bytes((digits or 0,))
        if key not in self._numbers:
            self._numbers[key] = len(self.entries)
            self.entries.append(self._entry(array, digits))
        return self._numbers[key]

    def text(self) -> str:
        """Return all arrays as base64 of a zlib stream."""
        return base64.b64encode(zlib.compress(bytes(self._blob), 9)).decode("ascii")

    def _entry(self, array: Floats, digits: int | None) -> Entry:
        gaps = ~np.isfinite(array)
        mask = -1
        if gaps.any():
            mask = self._put(np.packbits(gaps, bitorder="little").tobytes())
            array = _fill_gaps(array, gaps)
        decimals = _choose_decimals(array, digits)
        if decimals is None:
            planes = array.view(np.uint8).reshape(-1, 8).T
            return self._put(planes.tobytes()), len(array), 0, 0, 0, mask
        integers = np.rint(_scale_by_ten(array, decimals)).astype(np.int64)
        first = int(integers[0]) if len(integers) else 0
        steps = np.diff(integers, prepend=first)
        zigzag = ((steps << 1) ^ (steps >> 63)).astype(np.uint64)
        width = max(1, -(-int(zigzag.max(initial=0)).bit_length() // 8))
        planes = zigzag.view(np.uint8).reshape(-1, 8).T[:width]
        return self._put(planes.tobytes()), len(array), width, decimals, first, mask

    def _put(self, piece: bytes) -> int:
        offset = len(self._blob)
        self._blob += piece
        return offset


def _fill_gaps(array: Floats, gaps: npt.NDArray[np.bool_]) -> Floats:
    """Return *array* with each gap replaced by the value before it, which costs nothing as a difference."""
    last_measured = np.where(gaps, -1, np.arange(len(array)))
    last_measured = np.maximum.accumulate(last_measured)
    return np.where(last_measured < 0, 0.0, np.where(gaps, 0.0, array)[last_measured])


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
