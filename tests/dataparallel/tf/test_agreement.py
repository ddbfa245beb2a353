"""What is said where ranks call different collectives; in real ranks: test_training.py."""

import pytest

from toolkit.dataparallel.tf.agreement import KNOWN_CALLS, Agreement, Call, difference
from toolkit.ranks.position import RankPosition

PLAIN = Call("an all-reduce (sum)", ("float32 (3,)", "float32 (4,)"), ("w", "b"))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (PLAIN._replace(name="a broadcast from rank 0"), "an all-reduce (sum) on ranks 0, 2; a broadcast from rank 0"),
        (
            PLAIN._replace(tensors=PLAIN.tensors[:1]),
            "in an all-reduce (sum): 2 tensors on ranks 0, 2; 1 tensors on rank 1",
        ),
        (
            PLAIN._replace(tensors=("float32 (3,)", "none")),
            "for tensor 1 (b): float32 (4,) on ranks 0, 2; none on rank 1",
        ),
        (
            PLAIN._replace(tensors=("int8 (3,)", "none")),
            "for tensor 0 (w): float32 (3,) on ranks 0, 2; int8 (3,) on rank 1",
        ),
    ],
)
def test_the_first_difference_is_named_with_its_ranks(other: Call, text: str) -> None:
    assert text in difference([PLAIN, other, PLAIN])


def test_a_tensor_without_a_known_name_has_its_number() -> None:
    nameless = PLAIN._replace(names=())

    assert "for tensor 1: float32 (4,) on rank 0; none on rank 1" in difference(
        [nameless, nameless._replace(tensors=("float32 (3,)", "none"))]
    )


def test_a_call_that_changed_in_anything_has_another_number_and_the_same_call_the_same() -> None:
    """The numbers are kept from call to call: a script may have other gradients, types or shapes in its next step."""
    import numpy as np

    class Ranks:
        place = RankPosition(0, 2, 0, 2, "mpirun")

        def __init__(self) -> None:
            self.numbers: list[int] = []

        def is_equal(self, number: int) -> bool:
            self.numbers.append(number)
            return True

        def broadcast(self, array: object, root: int) -> None:
            raise AssertionError("the ranks agree")

    w, b = np.zeros((3, 4), "f4"), np.zeros(4, "f4")
    calls: list[tuple[str, list[object]]] = [
        ("sum", [w, b]),
        ("average", [w, b]),
        ("sum", [b, w]),
        ("sum", [w]),
        ("sum", [w, None]),
        ("sum", [None, b]),
        ("sum", [w.astype("f8"), b]),
        ("sum", [w.astype("i4"), b]),
        ("sum", [w.T, b]),
        ("sum", [w.ravel(), b]),
        ("sum", [w[:0], b]),
        ("sum", []),
    ]
    ranks = Ranks()
    agreement = Agreement(ranks)

    for _ in range(2):
        for name, tensors in calls:
            agreement.check(name, tensors)
        for size in range(KNOWN_CALLS):  # More than are kept.
            agreement.check("sum", [np.zeros(size + 5, "f4")])

    first, second = ranks.numbers[: len(calls)], ranks.numbers[len(calls) + KNOWN_CALLS :][: len(calls)]
    assert first == second and len(set(first)) == len(calls)
