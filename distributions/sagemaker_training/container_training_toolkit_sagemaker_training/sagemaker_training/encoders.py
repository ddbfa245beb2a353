"""Arrays as JSON, CSV and NumPy's format. Needs NumPy, which the functions import."""

import csv
import io
import json
from collections.abc import Callable, Iterable
from typing import Any

from sagemaker_training import content_types, errors


def array_to_npy(array_like: Any) -> bytes:
    """Return *array_like* in NumPy's format."""
    import numpy

    buffer = io.BytesIO()
    numpy.save(buffer, array_like)
    return buffer.getvalue()


def npy_to_numpy(npy_array: bytes) -> Any:
    """Return the array that *npy_array*, in NumPy's format, holds. Objects that need pickle are refused."""
    import numpy

    return numpy.load(io.BytesIO(npy_array), allow_pickle=False)


def array_to_json(array_like: Any) -> str:
    """Return *array_like* as JSON; arrays become lists."""

    def as_list(value: Any) -> Any:
        if hasattr(value, "tolist"):
            return value.tolist()
        return json.JSONEncoder().default(value)

    return json.dumps(array_like, default=as_list)


def json_to_numpy(string_like: str | bytes, dtype: Any = None) -> Any:
    """Return the array that *string_like*, JSON, holds."""
    import numpy

    return numpy.array(json.loads(string_like), dtype=dtype)


def csv_to_numpy(string_like: str | bytes, dtype: Any = None) -> Any:
    """Return the array that *string_like*, CSV, holds: a single row or column has one dimension, a single cell none.

    Without *dtype*, numbers if all cells are numbers, else text.

    Raises:
        ClientError: a cell is not of *dtype*.
    """
    import numpy

    text = string_like.decode() if isinstance(string_like, bytes) else string_like
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    cells = numpy.array(rows).squeeze()
    if dtype is not None:
        try:
            return cells.astype(dtype)
        except ValueError as error:
            raise errors.ClientError(f"CSV: expected values of type {dtype}: {error}") from error
    try:
        return cells.astype(float)
    except ValueError:
        return cells


def array_to_csv(array_like: Any) -> str:
    """Return *array_like* as CSV, a line for each row; an array of one dimension is a column, as in 5.1.4."""
    import numpy

    array = numpy.array(array_like)
    if array.ndim < 2:
        array = array.reshape(-1, 1)
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(array.tolist())
    return buffer.getvalue()


encoders_map: dict[str, Callable[[Any], str | bytes]] = {
    content_types.NPY: array_to_npy,
    content_types.CSV: array_to_csv,
    content_types.JSON: array_to_json,
}
decoders_map: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: npy_to_numpy,
    content_types.CSV: csv_to_numpy,
    content_types.JSON: json_to_numpy,
}


def decode(obj: str | bytes | Iterable[int], content_type: str) -> Any:
    """Return the array that *obj* of this content type holds.

    Raises:
        UnsupportedFormatError: there is no decoder for it.
    """
    if content_type not in decoders_map:
        raise errors.UnsupportedFormatError(content_type)
    return decoders_map[content_type](obj)


def encode(array_like: Any, content_type: str) -> str | bytes:
    """Return *array_like* as this content type.

    Raises:
        UnsupportedFormatError: there is no encoder for it.
    """
    if content_type not in encoders_map:
        raise errors.UnsupportedFormatError(content_type)
    return encoders_map[content_type](array_like)
