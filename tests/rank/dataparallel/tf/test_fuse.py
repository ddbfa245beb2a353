"""Many arrays as few, cut alike on every rank."""

from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("numpy") is None, reason="not installed: numpy")


def arrays(*sizes: int, kind: str = "f4") -> list[Any]:
    import numpy as np

    return [np.arange(size, dtype=kind) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "most_bytes", "cut"),
    [
        ((), 100, []),
        ((10, 10, 10), 80, [[0, 1], [2]]),
        ((100, 1, 1), 80, [[0], [1, 2]]),
        ((0, 1), 80, [[0, 1]]),
    ],
)
def test_a_bucket_holds_what_fits_and_one_array_at_least(
    sizes: tuple[int, ...], most_bytes: int, cut: list[list[int]]
) -> None:
    from toolkit.rank.dataparallel.tf.fuse import buckets

    assert list(buckets(arrays(*sizes), most_bytes)) == cut


def test_a_bucket_holds_one_type_and_results_keep_type_and_shape() -> None:
    import numpy as np

    from toolkit.rank.dataparallel.tf.fuse import fuse_and_move

    inputs = [
        np.ones((2, 3), "f4"),
        np.array(2.0, "f4"),
        np.ones(2, "i8"),
        np.ones((0, 4), "f2"),
        np.ones(3, "f2"),
    ]
    moved: list[tuple[str, float]] = []

    def double(flat: Any) -> None:
        moved.append((flat.dtype.str[1:], float(flat.sum())))
        flat *= 2

    outputs = fuse_and_move(inputs, 1000, double)

    assert moved == [("f4", 8), ("i8", 2), ("f4", 3)]
    assert [(array.dtype, array.shape) for array in outputs] == [(array.dtype, array.shape) for array in inputs]
    assert all((array == 2 * other).all() for array, other in zip(outputs, inputs, strict=True))
    assert (inputs[0] == 1).all()


def test_results_begin_where_tensorflow_takes_them_over_without_a_copy() -> None:
    import numpy as np

    from toolkit.rank.dataparallel.tf.fuse import ALIGN_BYTES, fuse_and_move

    outputs = fuse_and_move([np.ones(size, "f4") for size in (3, 1, 17, 100)], 10_000, lambda flat: None)

    assert [array.ctypes.data % ALIGN_BYTES for array in outputs] == [0, 0, 0, 0]
    assert len({id(array.base) for array in outputs}) == 1
