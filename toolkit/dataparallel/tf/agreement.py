"""Checks before each collective that all ranks call the same one, with tensors of the same types and shapes.

A transport moves flat memory: it would add one rank's gradient of u to another's of w where a gradient is missing on
one of them, and report another length as an error of its own on some ranks only. So each call first compares one number
over all ranks: 8 bytes twice, beside the gradients of a step. Names are not compared: ranks may build further models,
and Keras then counts differently; they only stand in the error.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from toolkit.dataparallel.exceptions import SMDDPError

KNOWN_CALLS = 1_000
MISSING = "none"


class Between(Protocol):
    """What is needed of a transport."""

    place: Any

    def is_equal(self, number: int) -> bool:
        """Return whether every rank's *number* is the same; 0 <= *number* < 2**63."""

    def broadcast(self, array: Any, root: int) -> None:
        """Put rank *root*'s *array* into every rank's."""


class Call(NamedTuple):
    """One rank's call of a collective. `tensors`: "float32 (3, 4)" for each, "none" for one that is missing. `names`:
    of the tensors, where they are known."""

    name: str
    tensors: tuple[str, ...]
    names: tuple[str, ...] = ()


class Agreement:
    """The ranks of *between* and what they agree on."""

    def __init__(self, between: Between) -> None:
        self._between = between
        self._numbers: dict[tuple[Any, ...], int] = {}

    def check(self, name: str, tensors: Sequence[Any], names: Sequence[str] = ()) -> None:
        """Return when every rank is here, calling *name* for arrays such as *tensors* (None: missing).

        Raises:
            SMDDPError: on every rank, if they differ; it names the first difference and the ranks.
        """
        if self._between.place.size == 1:
            return
        key = (name, *((tensor.dtype.str, tensor.shape) if tensor is not None else None for tensor in tensors))
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= KNOWN_CALLS:
                self._numbers.clear()
            number = self._numbers[key] = _number(key)
        if self._between.is_equal(number):
            return
        mine = Call(name=name, tensors=tuple(_described(tensor) for tensor in tensors), names=tuple(names))
        raise SMDDPError(difference(self._calls(mine)))

    def _calls(self, mine: Call) -> list[Call]:
        """Return every rank's call, in the order of ranks."""
        import numpy as np

        calls = []
        for root in range(self._between.place.size):
            text = json.dumps([mine.name, mine.tensors, mine.names]).encode()
            length = np.array([len(text)], "i8")
            self._between.broadcast(length, root)
            content = np.frombuffer(text.ljust(int(length[0]))[: int(length[0])], "u1").copy()
            self._between.broadcast(content, root)
            name, tensors, names = json.loads(content.tobytes())
            calls.append(Call(name=name, tensors=tuple(tensors), names=tuple(names)))
        return calls


def difference(calls: Sequence[Call]) -> str:
    """Return the first difference between *calls*, one for each rank, as an error says it."""
    opening = "smdistributed.dataparallel: expected the same call on every rank, found "
    names = Counter(call.name for call in calls)
    if len(names) > 1:
        return (
            f"{opening}{_by_rank([call.name for call in calls])}. Call the collectives in the same order on each rank."
        )
    numbers = {len(call.tensors) for call in calls}
    if len(numbers) > 1:
        counts = _by_rank([f"{len(call.tensors)} tensors" for call in calls])
        return f"{opening}in {calls[0].name}: {counts}. Give the same tensors on each rank."
    place = next(at for at in range(len(calls[0].tensors)) if len({call.tensors[at] for call in calls}) > 1)
    name = next((call.names[place] for call in calls if place < len(call.names)), "")
    tensor = f"tensor {place}{f' ({name})' if name else ''}"
    text = f"{opening}in {calls[0].name} for {tensor}: {_by_rank([call.tensors[place] for call in calls])}."
    if any(call.tensors[place] == MISSING for call in calls):
        return f"{text} Use the variable in the loss of each rank, or give tf.zeros_like() of it as the gradient."
    return f"{text} Give tensors of the same type and shape on each rank."


def _by_rank(words: Sequence[str]) -> str:
    """Return "float32 (3,) on ranks 0, 2; none on rank 1"."""
    ranks: dict[str, list[int]] = {}
    for rank, word in enumerate(words):
        ranks.setdefault(word, []).append(rank)
    return "; ".join(
        f"{word} on rank{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"
        for word, members in ranks.items()
    )


def _described(tensor: Any) -> str:
    return MISSING if tensor is None else f"{tensor.dtype.name} {tuple(tensor.shape)}"


def _number(key: tuple[Any, ...]) -> int:
    """Return a number for *key*, equal in every process (Python's hash differs)."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "little") >> 1
