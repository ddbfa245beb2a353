"""What ranks ask of each other in a step of the module server."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from toolkit.modelparallel.errors import SMPError
from toolkit.modelparallel.torch.far import Parcel, Place

CALL, RESULT, BACKWARD, GRADIENTS = "smp.call", "smp.result", "smp.backward", "smp.gradients"
FETCH, VALUE, FORGET = "smp.fetch", "smp.value", "smp.forget"
Key = tuple[int, ...]


class RemoteStepError(SMPError):
    """The step failed on another rank, which says why."""


class Setting(NamedTuple):
    """The modes of autograd in which a module is called. `autocast`: (device type, dtype, cache) of what is on."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype, bool], ...]

    @classmethod
    def here(cls) -> "Setting":
        """Return the calling thread's."""
        on = tuple(
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
            for kind in ("cpu", "cuda")
            if torch.is_autocast_enabled(kind)
        )
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), on)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Set them for the block."""
        with contextlib.ExitStack() as stack:
            if self.inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind, dtype, cache in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=cache))
            yield


class Request(NamedTuple):
    """A call of the module at `path`. `is_training`: the module's mode on the caller's rank. `wanted`: the outputs
    whose data the caller will need. `released`: what it does not need any more."""

    path: str
    skeleton: bytes
    inputs: Parcel
    setting: Setting
    is_training: bool
    state: bytes
    wanted: frozenset[int]
    released: list[Key]


class Result(NamedTuple):
    """What a call gave. `state`: of the random number generator afterwards."""

    skeleton: bytes
    outputs: Parcel
    state: bytes


class Hop(NamedTuple):
    """The next call of a backward pass, on `rank`: its request has the key `key`. `outputs`: how many the call has.
    `places`: (number of the present call's input, number of this call's output) of each gradient. `released`: what the
    caller does not need any more of that rank."""

    rank: int
    call: Key
    key: Key
    outputs: int
    places: list[tuple[int, int]]
    released: list[Key]


class Gradients(NamedTuple):
    """What a backward gets (the outputs' gradients) or gives (the inputs'). `present`: for which there is one.

    `onward`: the calls to which the gradients go from there, one after the other. `caller`: the rank and the key of
    the answer, None: those of this message.
    """

    call: Key
    present: list[bool]
    given: Parcel
    released: list[Key]
    onward: tuple[Hop, ...] = ()
    caller: tuple[int, Key] | None = None


class Failure(NamedTuple):
    """Why a request was not answered."""

    text: str


def gradients_message(
    call: Key,
    gradients: Sequence[Tensor | None],
    places: Sequence[Place | None],
    released: list[Key],
    onward: tuple[Hop, ...] = (),
    caller: tuple[int, Key] | None = None,
) -> tuple[Gradients, list[memoryview]]:
    """Return a message about *call*, and its buffers: those of the *gradients* without a place."""
    given = [(gradient, place) for gradient, place in zip(gradients, places, strict=True) if gradient is not None]
    parcel, buffers = Parcel.of([gradient for gradient, _ in given], [place for _, place in given])
    present = [gradient is not None for gradient in gradients]
    return Gradients(call, present, parcel, released, onward, caller), buffers
