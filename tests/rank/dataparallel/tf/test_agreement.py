"""Ranks that call different collectives get an error; in real ranks: test_training.py."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest

from toolkit.rank.dataparallel.exceptions import SMDDPError
from toolkit.rank.dataparallel.tf.agreement import (
    DEPTH,
    KNOWN_CALLS,
    AllReduceCall,
    CollectiveAgreement,
    CollectiveCall,
    describe_difference,
)
from toolkit.rank.mesh.position import RankPosition

pytestmark = pytest.mark.skipif(find_spec("numpy") is None, reason="not installed: numpy")

PLAIN = CollectiveCall("an all-reduce (sum)", ("float32 (3,)", "float32 (4,)"), ("w", "b"))


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
def test_the_first_difference_is_named_with_its_ranks(other: CollectiveCall, text: str) -> None:
    assert text in describe_difference([PLAIN, other, PLAIN])


def test_a_tensor_without_a_known_name_has_its_number() -> None:
    nameless = PLAIN._replace(names=())

    assert "for tensor 1: float32 (4,) on rank 0; none on rank 1" in describe_difference(
        [nameless, nameless._replace(tensors=("float32 (3,)", "none"))]
    )


class Meeting:
    """The meeting of a test's ranks, one thread each; as strict as MPI: they must call the same with equal sizes."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.calls: list[Any] = [None] * size
        self.exchanges: list[str] = []

    def exchange(self, rank: int, call: str, array: Any, combine: Callable[[list[Any]], Any]) -> Any:
        self.calls[rank] = (call, array.dtype, array.shape, array.copy())
        self.barrier.wait()
        assert len({other[:3] for other in self.calls}) == 1, self.calls
        result = combine([other[3] for other in self.calls])
        if rank == 0:
            self.exchanges.append(call)
        self.barrier.wait()
        return result


class ThreadRank:
    """A transport between the threads of a meeting."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting = meeting
        self.position = RankPosition(rank, len(meeting.calls), rank, len(meeting.calls), "mpirun")

    def allreduce(self, array: Any, op: str) -> None:
        import numpy as np

        combine: Any = {"sum": np.sum, "min": np.min, "max": np.max}[op]
        array[...] = self.meeting.exchange(self.position.rank, op, array, lambda every: combine(every, axis=0))

    def reduce(self, arrays: list[Any], into: list[Any], average: bool) -> bool:
        return False

    def broadcast(self, array: Any, root: int) -> None:
        array[...] = self.meeting.exchange(self.position.rank, f"from {root}", array, lambda every: every[root])

    def is_equal(self, number: int) -> bool:
        import numpy as np

        numbers = np.array([number])
        return bool(
            self.meeting.exchange(self.position.rank, "compare", numbers, lambda every: len({int(n[0]) for n in every}))
            == 1
        )


def on_ranks(program: Callable[[CollectiveAgreement, int], Any], size: int = 2) -> tuple[list[Any], list[str]]:
    """Return what *program* returned on each rank, and the exchanges."""
    meeting = Meeting(size)

    def run(rank: int) -> Any:
        try:
            return program(CollectiveAgreement(ThreadRank(meeting, rank)), rank)
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        results = [pool.submit(run, rank) for rank in range(size)]
    failures = [failure for result in results if (failure := result.exception()) is not None]
    for failure in sorted(failures, key=lambda failure: isinstance(failure, threading.BrokenBarrierError)):
        raise failure
    return [result.result() for result in results], meeting.exchanges


def arrays(*sizes: int, kind: str = "f8", value: float = 1) -> list[Any]:
    import numpy as np

    return [np.full(size, value, kind) for size in sizes]


def test_a_call_that_repeats_takes_one_exchange() -> None:
    def program(agreement: CollectiveAgreement, rank: int) -> list[float]:
        return [
            float(agreement.allreduce(op, arrays(3, 4, kind=kind, value=rank + 1))[1][0].real)
            for op, kind in (("average", "f8"), ("sum", "f4"), ("min", "u4"), ("max", "i8"), ("sum", "c8"))
            for _ in range(20)
        ]

    results, exchanges = on_ranks(program, 3)

    assert results == [[2.0] * 20 + [6.0] * 20 + [1.0] * 20 + [3.0] * 20 + [6.0] * 20] * 3
    assert exchanges.count("compare") == 5 * (DEPTH + 1)


def test_steps_and_the_end_of_each_epoch_are_expected() -> None:
    def program(agreement: CollectiveAgreement, rank: int) -> int:
        wrong = 0
        for epoch in range(10):
            for step in range(3):
                gradients = agreement.allreduce("average", [*arrays(5, value=rank), None, *arrays(2, value=step)])
                wrong += [float(gradients[0][0]), gradients[1], float(gradients[2][0])] != [0.5, None, step]
            metric = agreement.allreduce("average", arrays(1, value=epoch + rank))
            wrong += float(metric[0][0]) != epoch + 0.5
        return wrong

    results, exchanges = on_ranks(program)

    assert results == [0, 0]
    assert exchanges.count("compare") < 12  # Of 40 calls: in the first two epochs.


CALLS: dict[str, Callable[[CollectiveAgreement, int], list[Any]]] = {
    "sum": lambda agreement, rank: agreement.allreduce("sum", arrays(3, 4)),
    "average": lambda agreement, rank: agreement.allreduce("average", arrays(3, 4)),
    "min": lambda agreement, rank: agreement.allreduce("min", arrays(3, 4)),
    "unsigned": lambda agreement, rank: agreement.allreduce("min", arrays(3, 4, kind="u4")),
    "bytes": lambda agreement, rank: agreement.allreduce("sum", arrays(3, kind="i1")),
    "two types": lambda agreement, rank: agreement.allreduce("sum", [*arrays(3), *arrays(3, kind="i4")]),
    "one missing": lambda agreement, rank: agreement.allreduce("sum", [None, *arrays(4)]),
    "other missing": lambda agreement, rank: agreement.allreduce("sum", [*arrays(3), None]),
    "all missing": lambda agreement, rank: agreement.allreduce("sum", [None, None]),
    "nothing": lambda agreement, rank: agreement.allreduce("sum", []),
    "empty": lambda agreement, rank: agreement.allreduce("sum", arrays(0)),
    "long": lambda agreement, rank: agreement.allreduce("sum", arrays(300)),
    "small buckets": lambda agreement, rank: agreement.allreduce("sum", arrays(300), 1024),
    "broadcast": lambda agreement, rank: agreement.broadcast(arrays(3), 0),
    "from 1": lambda agreement, rank: agreement.broadcast(arrays(3), 1),
    "many": lambda agreement, rank: agreement.allreduce("sum", arrays(*range(20)), 64),
}


@pytest.mark.parametrize("usual", CALLS)
def test_a_rank_with_another_call_than_usual_is_named_and_all_go_on(usual: str) -> None:
    def program(agreement: CollectiveAgreement, rank: int) -> list[int]:
        for other in CALLS:
            for _ in range(DEPTH + 2):
                CALLS[usual](agreement, rank)
            if other == usual:
                continue
            with pytest.raises(SMDDPError, match=r"expected the same call on every rank, found .* on rank 1[.]"):
                CALLS[other if rank == 1 else usual](agreement, rank)
            with pytest.raises(SMDDPError, match="expected the same call on every rank"):
                CALLS[usual if rank == 1 else other](agreement, rank)
            together = CALLS[other](agreement, rank)
            assert all((array is None or float(array.sum()) >= 0) for array in together)
        return [int(array.sum()) for array in agreement.allreduce("sum", arrays(3, 4))]

    results, _ = on_ranks(program, 2)

    assert results == [[6, 8]] * 2


@pytest.mark.parametrize("usual", CALLS)
def test_ranks_with_other_numbers_of_steps_are_named(usual: str) -> None:
    def program(agreement: CollectiveAgreement, rank: int) -> str:
        try:
            for _ in range(DEPTH + 3 + rank % 2):
                CALLS[usual](agreement, rank)
        except SMDDPError as error:
            with pytest.raises(SMDDPError, match="Let each rank take as many steps"):  # Rank 0 is gone.
                CALLS[usual](agreement, rank)
            agreement.end()
            return str(error)
        with pytest.raises(SMDDPError) as raised:
            agreement.end()
        return str(raised.value)

    (text,) = {*on_ranks(program, 3)[0]}

    assert "found shutdown() or the end of the program on ranks 0, 2; a" in text
    assert text.endswith(" on rank 1. Let each rank take as many steps.")


def test_ranks_that_end_together_end_without_an_error() -> None:
    def program(agreement: CollectiveAgreement, rank: int) -> None:
        for _ in range(DEPTH + 3):
            agreement.allreduce("sum", arrays(3))
        agreement.end()

    assert on_ranks(program, 3)[0] == [None] * 3


def test_many_ranks_with_another_call_are_noticed_though_their_marks_wrap_around() -> None:
    """256 marks are 0 in a byte."""
    import numpy as np

    for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "f2", "f4", "f8", "c8"):
        reduction = AllReduceCall("sum", 1, ((np.dtype(kind), (1,)),))
        assert reduction.can_be_expected == (kind[1] not in "12" or kind[0] == "f")


def test_random_programs_give_each_call_its_result() -> None:
    """Programs in which all ranks make the same calls, in an order that no history predicts."""

    def program(agreement: CollectiveAgreement, rank: int) -> int:
        order = random.Random(5)
        wrong = 0
        for _ in range(600):
            value, sizes = order.randrange(100), [order.randrange(3) for _ in range(order.randrange(3))]
            op = order.choice(("sum", "average", "min", "max", "broadcast"))
            own_arrays = arrays(*sizes, value=value + rank)
            results = agreement.broadcast(own_arrays, 1) if op == "broadcast" else agreement.allreduce(op, own_arrays)
            right = {"sum": 2 * value + 1, "average": value + 0.5, "min": value, "max": value + 1}.get(op, value + 1)
            wrong += [array.tolist() for array in results] != [[right] * size for size in sizes]
        return wrong

    assert on_ranks(program)[0] == [0, 0]


def test_the_number_of_a_call_tells_its_name_types_and_shapes() -> None:
    import numpy as np

    w, b = np.zeros((3, 4), "f4"), np.zeros(4, "f4")
    calls: list[tuple[str, list[Any]]] = [
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
    agreement = CollectiveAgreement(ThreadRank(Meeting(2), 0))

    numbers = [agreement._number(name, tensors) for name, tensors in calls]
    for size in range(KNOWN_CALLS):  # More than are kept.
        agreement._number("sum", [np.zeros(size + 5, "f4")])

    assert numbers == [agreement._number(name, tensors) for name, tensors in calls]
    assert len(set(numbers)) == len(calls)
