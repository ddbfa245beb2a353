"""What is said where ranks call different collectives; in real ranks: test_training.py."""

import pytest

from toolkit.dataparallel.tf.agreement import Call, difference

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
