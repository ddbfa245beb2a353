"""Calls that run ahead: modules of other partitions that the script calls in a row, with nothing between them.

A rank that serves a call does not wait for the caller's next one where it was the same every time so far: a call with
nothing but the results of the one before. It starts that call itself, on whatever rank has the module, and all results
go to the caller. The caller's script still gets each result and makes each call. Its request is then compared, whole
(module, other arguments, every tensor, modes, random numbers), with the call that ran: if they are equal, the result is
taken, else the call that ran is given up, and the script's is made. So nothing depends on whether the guess was right,
except that a module ran once for nothing; a path on which that happened runs ahead no more.

Modules that the toolkit sees change attributes or buffers, that have hooks of the script, or that call modules of other
ranks do not run ahead. What was seen holds for the model's modes and hooks as they were; a module that begins to leave
such traces later runs ahead until it does.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from toolkit.rank.modelparallel.torch import remote_tensor
from toolkit.rank.modelparallel.torch.messages import Following, Request, Result, Setting
from toolkit.rank.modelparallel.torch.remote_tensor import Parcel

FROM_TIMES = 4  # As often a call must have followed another one.
MOST_TRIES = 16  # So many calls may be watched until that is so.
# Scripts whose calls never repeat (an argument that counts steps) must not fill the memory.
MOST_PATHS = 4096
MOST_SKELETON_BYTES = 4096
Place = tuple[Hashable, int, "Called"]


class Called(NamedTuple):
    """A call of the module at `path` on `rank`, without its tensors."""

    rank: int
    path: str
    skeleton: bytes
    setting: Setting
    is_training: bool

    @classmethod
    def of(cls, rank: int, request: Request) -> "Called":
        """Return the call that *request* asks *rank* for."""
        return cls(rank, request.path, request.skeleton, request.setting, request.is_training)


class Next(NamedTuple):
    """The call after another one. `inputs`: the numbers of the other one's outputs, which are its tensors. `after`: the
    skeleton of the other one's result."""

    call: Called
    inputs: tuple[int, ...]
    after: bytes


class Made:
    """A call whose result is here. *place*: the call's among the calls of its task. *buffers*: the result's. *keeps*:
    the next call's tensors will be compared with it, however large they are."""

    def __init__(self, place: Place, result: Result, buffers: Sequence[memoryview], *, keeps: bool) -> None:
        self.place = place
        self._result = result
        self._keeps = keeps
        # Copies: the script may change the tensors.
        here = (number for number, place in enumerate(result.outputs.places) if place is None)
        self._data = {
            number: bytes(buffer)
            for number, buffer in zip(here, buffers, strict=True)
            if keeps or len(buffer) < remote_tensor.FROM_BYTES
        }

    def looked(self, place: remote_tensor.Place, buffer: memoryview) -> None:
        """The script has got the data of the tensor at *place*, *buffer*, and may change it past autograd."""
        if self._keeps and place in self._result.outputs.places:
            self._data[self._result.outputs.places.index(place)] = bytes(buffer)

    def before(
        self, call: Called, request: Request, buffers: Sequence[memoryview], hoped: Sequence[int]
    ) -> Next | None:
        """Return *call*, which *request* makes with *buffers*, as the call after this one; None: it has other tensors,
        or random numbers have been drawn in between. *hoped*: its inputs where several outputs are equal."""
        result = self._result
        if result.failure is not None or result.changed or result.attributes or result.state != request.state:
            return None
        inputs: list[int] = []
        data = iter(buffers)
        for form, place in zip(request.inputs.forms, request.inputs.places, strict=True):
            buffer = next(data) if place is None else None
            equal = [
                number
                for number, output in enumerate(result.outputs.forms)
                if output == form
                and (result.outputs.places[number] == place if buffer is None else self._is_equal(number, buffer))
            ]
            if not equal:
                return None
            first = hoped[len(inputs)] if len(inputs) < len(hoped) else equal[0]
            inputs.append(first if first in equal else equal[0])
        return Next(call, tuple(inputs), result.skeleton) if inputs else None

    def _is_equal(self, number: int, buffer: memoryview) -> bool:
        data = self._data.get(number)
        # memoryviews are compared one byte after the other: 28 ms for 4 MiB, where this takes 0.6 ms.
        return data is not None and len(data) == len(buffer) and data.startswith(buffer)


class Ahead:
    """The calls of one task of *kind*. `last`: that whose result came last. `expected`: those that follow it, and run
    ahead."""

    def __init__(self, kind: Hashable) -> None:
        self.kind = kind
        self.count = 0
        self.last: Made | None = None
        self.expected: list[Following] = []


class _Seen:
    def __init__(self, following: Next | None) -> None:
        self.following = following  # None: not the same every time.
        self.times = 0
        self.tries = 0


class Paths:
    """Which call has followed which, in all tasks of this rank so far."""

    def __init__(self) -> None:
        self._seen: dict[Place, _Seen] = {}

    def after(self, place: Place) -> Next | None:
        """Return the call that runs after that at *place*, None: it is not sure enough."""
        seen = self._seen.get(place)
        return seen.following if seen is not None and seen.times >= FROM_TIMES else None

    def is_open(self, place: Place) -> bool:
        """Whether nobody knows yet what comes after the call at *place*."""
        seen = self._seen.get(place)
        if seen is None:
            return len(self._seen) < MOST_PATHS
        return seen.following is not None and seen.times < FROM_TIMES and seen.tries < MOST_TRIES

    def learns(self, place: Place, following: Next | None) -> bool:
        """Whether to note that *following* comes after the call at *place*, and what it changes."""
        if following is None or len(following.call.skeleton) > MOST_SKELETON_BYTES:
            self.refuse(place)
            return False
        seen = self._seen.get(place)
        if seen is None:
            if len(self._seen) >= MOST_PATHS or len(place[-1].skeleton) > MOST_SKELETON_BYTES:
                return False
            seen = self._seen[place] = _Seen(following)
        if seen.following != following:
            seen.following = None
        return self.is_open(place)

    def note(self, place: Place, *, leaves_traces: bool) -> None:
        """The call after that at *place* changed nothing but its result, or *leaves_traces*."""
        seen = self._seen[place]
        if leaves_traces and seen.times >= FROM_TIMES:
            seen.following = None
        seen.tries += 1
        seen.times += not leaves_traces

    def refuse(self, place: Place) -> None:
        """Let nothing run ahead after the call at *place*."""
        if place in self._seen or len(self._seen) < MOST_PATHS:
            self._seen[place] = _Seen(None)


def goes_on(result: Result, following: Following) -> bool:
    """Whether a call that gave *result* is followed by *following*: its rank and its caller decide alike."""
    is_all = result.failure is None and not (result.changed or result.attributes)
    return is_all and result.skeleton == following.after


def request_of(following: Following, rest: tuple[Following, ...], result: Result, caller: int) -> Request:
    """Return *caller*'s request for *following*, after the call that gave *result*, and for the *rest* after it."""
    outputs = result.outputs
    inputs = Parcel(
        [outputs.forms[number] for number in following.inputs], [outputs.places[number] for number in following.inputs]
    )
    return Request(
        *(following.path, following.skeleton, inputs, following.setting, following.is_training, result.state),
        wanted=following.wanted,
        released=following.released,
        following=rest,
        looks=True,
        caller=caller,
    )


def inputs_of(following: Following, result: Result, outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs of *following*, which runs on the rank of the call that gave *result* with *outputs*.

    They are copies, since the module may change them before the caller has looked at them, and laid out as the caller's
    request would bring them: what goes as data arrives contiguous.
    """
    return [
        outputs[number]
        .detach()
        .clone(
            memory_format=torch.contiguous_format if result.outputs.places[number] is None else torch.preserve_format
        )
        for number in following.inputs
    ]


class Traces:
    """The parameters and buffers of *module* before a call, to see what that leaves behind beside its attributes."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = _state(module)

    def are_left(self) -> bool:
        """Whether the call has changed one of them, or has called hooks."""
        if torch.nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]
            return True
        if any(each._forward_hooks or each._forward_pre_hooks for each in self._module.modules()):
            return True
        now = _state(self._module)
        return len(now) != len(self._before) or any(
            value is not old or version != old_version
            for (value, version), (old, old_version) in zip(now, self._before, strict=True)
        )


def modes(model: nn.Module) -> Hashable:
    """Return what decides which traces the modules of *model* leave: their classes, modes and hooks."""
    return tuple(
        (type(each), each.training, bool(each._forward_hooks or each._forward_pre_hooks)) for each in model.modules()
    )


def _state(module: nn.Module) -> list[tuple[Tensor | None, int]]:
    return [
        (value, 0 if value is None or value.is_inference() else value._version)
        for each in module.modules()
        for held in (each._parameters, each._buffers)
        for value in held.values()
    ]
