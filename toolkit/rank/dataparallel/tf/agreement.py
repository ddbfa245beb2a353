"""Collectives for which all ranks first agree that they call the same one, with tensors of the same types and shapes.

A transport moves flat memory: if a gradient is missing on one rank, it would add one rank's gradient of u to another's
of w, and report a different length as its own error on some ranks only. So the ranks compare a number for each call.
Names are not compared, because ranks may build further models and Keras then counts differently; names only appear in
the error.

Comparing is an exchange of its own, before that of the data: on a busy machine a rank waits a second time for the
others. Training repeats a few calls. So each rank remembers which all-reduce came after the last DEPTH calls; all
agreed on those, so all expect the same one. They begin with it, whatever they call. Its first bucket has one element
more, the mark, which is set if this rank calls something else; such a rank contributes zeros of the expected shapes. If
any mark is set, no rank uses the result, and all compare their calls. So an expected call costs no exchange of its own,
and an unexpected one neither waits forever nor adds unrelated tensors.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from toolkit.rank.dataparallel.exceptions import SMDDPError
from toolkit.rank.dataparallel.tf.fuse import BUCKET_MIB, MIB, MismatchMark, MismatchMarked, fuse_and_move

KNOWN_CALLS = 1_000
DEPTH = 4  # Steps look alike; the calls before them distinguish a step from the end of an epoch.
MISSES = 2  # in a row, until another call is expected: steps follow the end of an epoch
MISSING = "none"
END = "shutdown() or the end of the program"


class AgreementTransport(Protocol):
    """The functions of a transport that an agreement needs."""

    position: Any

    def is_equal(self, number: int) -> bool:
        """Return whether every rank's *number* is the same; 0 <= *number* < 2**63."""

    def allreduce(self, array: Any, op: str) -> None:
        """Put the sum, min or max over all ranks into every rank's *array*."""

    def reduce(self, arrays: list[Any], into: list[Any], average: bool) -> bool:
        """Put the sums (means) over all ranks of *arrays*, of one type, into *into*; False: only allreduce can."""

    def broadcast(self, array: Any, root: int) -> None:
        """Put rank *root*'s *array* into every rank's."""


class AllReduceCall(NamedTuple):
    """The facts that a rank needs to take part in an all-reduce. `tensors`: type and shape of each, None if missing."""

    op: str
    most_bytes: int
    tensors: tuple[tuple[Any, tuple[int, ...]] | None, ...]

    @property
    def name(self) -> str:
        """The name in errors."""
        buckets = "" if self.most_bytes == BUCKET_MIB * MIB else f", in buckets of {self.most_bytes / MIB:g} MiB"
        return f"an all-reduce ({self.op}{buckets})"

    @property
    def can_be_expected(self) -> bool:
        """True if there is a tensor, and the ranks' marks can be added in its type."""
        first = next(filter(None, self.tensors), None)
        return first is not None and (first[0].kind not in "iu" or first[0].itemsize > 2)

    def mark(self, is_unexpected: bool) -> MismatchMark:
        """Return the mark of this rank; *is_unexpected* if it calls something else."""
        clear = int(self.op == "min")
        return MismatchMark(value=1 - clear if is_unexpected else clear, clear=clear)


class CollectiveCall(NamedTuple):
    """One rank's call of a collective. `tensors`: "float32 (3, 4)" for each, "none" for a missing one. `names`: the
    names of the tensors, if they are known."""

    name: str
    tensors: tuple[str, ...]
    names: tuple[str, ...] = ()


class CollectiveAgreement:
    """The agreements of the ranks of *transport*. One thread at a time may call it."""

    def __init__(self, transport: AgreementTransport) -> None:
        self._transport = transport
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._past: tuple[int, ...] = ()  # numbers of the last calls
        # By the last calls: the call after them, and its misses in a row.
        self._next: dict[tuple[int, ...], tuple[AllReduceCall, int]] = {}
        self._departure = ""  # the error that reported that a rank had left

    @property
    def rank(self) -> int:
        return int(self._transport.position.rank)

    def allreduce(
        self, op: str, tensors: Sequence[Any], most_bytes: int = BUCKET_MIB * MIB, names: Sequence[str] = ()
    ) -> list[Any]:
        """Return the arrays *tensors* (None: missing) reduced over all ranks by *op*; a missing one stays None.

        Raises:
            SMDDPError: on every rank, if their calls differ; it names the first difference and the ranks.
        """
        kinds = tuple((tensor.dtype, tensor.shape) if tensor is not None else None for tensor in tensors)
        reduction = AllReduceCall(op, most_bytes, kinds)
        results = self._begin(reduction, tensors)
        number = self._number(reduction.name, tensors)
        if results is None:
            self._compare(number, reduction.name, tensors, names)
            results = self._reduce(reduction, tensors)
        self._remember(number, reduction)
        return results

    def broadcast(self, tensors: Sequence[Any], root: int) -> list[Any]:
        """Return the arrays *tensors* of rank *root*.

        Raises:
            SMDDPError: as `allreduce`.
        """
        name = f"a broadcast from rank {root}"
        self._begin(None, ())
        number = self._number(name, tensors)
        self._compare(number, name, tensors, ())
        self._remember(number, None)
        return fuse_and_move(list(tensors), BUCKET_MIB * MIB, lambda flat: self._transport.broadcast(flat, root))

    def end(self) -> None:
        """Return when every rank has called this.

        Raises:
            SMDDPError: on every rank, if one calls a collective instead.
        """
        if not self._departure:
            self._begin(None, ())
            self._compare(self._number(END, ()), END, (), ())

    def _begin(self, reduction: AllReduceCall | None, tensors: Sequence[Any]) -> list[Any] | None:
        """Take part in the expected all-reduce; return the results if all ranks, including this one, called it."""
        import numpy as np

        if self._departure:
            raise SMDDPError(self._departure)
        expected, _ = self._next.get(self._past, (None, 0))
        if expected is None:
            return None
        is_unexpected = expected != reduction
        if is_unexpected:
            tensors = [np.zeros(kind[1], kind[0]) if kind is not None else None for kind in expected.tensors]
        try:
            return self._reduce(expected, tensors, expected.mark(is_unexpected))
        except MismatchMarked:
            return None

    def _reduce(self, reduction: AllReduceCall, tensors: Sequence[Any], mark: MismatchMark | None = None) -> list[Any]:
        import numpy as np

        average = reduction.op == "average"
        operation = "sum" if average else reduction.op

        def reduce_flat(flat: Any) -> None:
            self._transport.allreduce(flat, operation)
            if average:
                np.true_divide(flat, self._transport.position.size, out=flat)

        def reduce_directly(bucket: list[Any], into: list[Any]) -> bool:
            return operation == "sum" and self._transport.reduce(bucket, into, average)

        present = [tensor for tensor in tensors if tensor is not None]
        results = iter(fuse_and_move(present, reduction.most_bytes, reduce_flat, reduce_directly, mark))
        return [next(results) if tensor is not None else None for tensor in tensors]

    def _remember(self, number: int, reduction: AllReduceCall | None) -> None:
        """Note that the ranks agreed on this call, an all-reduce or another. All ranks do so after the same calls."""
        expected, misses = self._next.get(self._past, (None, 0))
        if expected is not None and expected != reduction and misses + 1 < MISSES:
            self._next[self._past] = (expected, misses + 1)
        elif reduction is not None and reduction.can_be_expected and self._transport.position.size > 1:
            if len(self._next) >= KNOWN_CALLS:
                self._next.clear()
            self._next[self._past] = (reduction, 0)
        else:
            self._next.pop(self._past, None)
        self._past = (*self._past, number)[-DEPTH:]

    def _number(self, name: str, tensors: Sequence[Any]) -> int:
        key = (name, *((tensor.dtype.name, tensor.shape) if tensor is not None else None for tensor in tensors))
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= KNOWN_CALLS:
                self._numbers.clear()
            number = self._numbers[key] = _number(key)
        return number

    def _compare(self, number: int, name: str, tensors: Sequence[Any], names: Sequence[str]) -> None:
        """Return when every rank has called this with the same *number*.

        Raises:
            SMDDPError: on every rank, if they differ.
        """
        if self._transport.position.size == 1 or self._transport.is_equal(number):
            return
        call = CollectiveCall(name=name, tensors=tuple(_describe(tensor) for tensor in tensors), names=tuple(names))
        calls = self._gather_calls(call)
        text = describe_difference(calls)
        if any(call.name == END for call in calls):
            self._departure = text
        raise SMDDPError(text)

    def _gather_calls(self, call: CollectiveCall) -> list[CollectiveCall]:
        """Return every rank's call, in the order of ranks."""
        import numpy as np

        calls = []
        for root in range(self._transport.position.size):
            text = json.dumps([call.name, call.tensors, call.names]).encode()
            length = np.array([len(text)], "i8")
            self._transport.broadcast(length, root)
            content = np.frombuffer(text.ljust(int(length[0]))[: int(length[0])], "u1").copy()
            self._transport.broadcast(content, root)
            name, tensors, names = json.loads(content.tobytes())
            calls.append(CollectiveCall(name=name, tensors=tuple(tensors), names=tuple(names)))
        return calls


def describe_difference(calls: Sequence[CollectiveCall]) -> str:
    """Return the text of an error for the first difference between *calls*, one for each rank."""
    opening = "smdistributed.dataparallel: expected the same call on every rank, found "
    names = Counter(call.name for call in calls)
    if len(names) > 1:
        hint = (
            "Let each rank take as many steps."
            if END in names
            else "Call the collectives in the same order on each rank."
        )
        return f"{opening}{_group_by_rank([call.name for call in calls])}. {hint}"
    numbers = {len(call.tensors) for call in calls}
    if len(numbers) > 1:
        counts = _group_by_rank([f"{len(call.tensors)} tensors" for call in calls])
        return f"{opening}in {calls[0].name}: {counts}. Give the same tensors on each rank."
    number = next(
        number for number in range(len(calls[0].tensors)) if len({call.tensors[number] for call in calls}) > 1
    )
    name = next((call.names[number] for call in calls if number < len(call.names)), "")
    tensor = f"tensor {number}{f' ({name})' if name else ''}"
    text = f"{opening}in {calls[0].name} for {tensor}: {_group_by_rank([call.tensors[number] for call in calls])}."
    if any(call.tensors[number] == MISSING for call in calls):
        return f"{text} Use the variable in the loss of each rank, or give tf.zeros_like() of it as the gradient."
    return f"{text} Give tensors of the same type and shape on each rank."


def _group_by_rank(texts: Sequence[str]) -> str:
    """Return "float32 (3,) on ranks 0, 2; none on rank 1"."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        ranks.setdefault(text, []).append(rank)
    return "; ".join(
        f"{text} on rank{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"
        for text, members in ranks.items()
    )


def _describe(tensor: Any) -> str:
    return MISSING if tensor is None else f"{tensor.dtype.name} {tuple(tensor.shape)}"


def _number(key: tuple[Any, ...]) -> int:
    """Return a number for *key*, equal in every process (Python's hash differs)."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "little") >> 1
