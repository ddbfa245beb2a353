"""What ranks ask of each other in a step of the module server."""

import contextlib
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.attributes import Set
from toolkit.rank.modelparallel.torch.remote_tensor import Parcel, Place

CALL, RESULT, BACKWARD, GRADIENTS = "smp.call", "smp.result", "smp.backward", "smp.gradients"
FETCH, VALUE, FORGET, GIVE_UP = "smp.fetch", "smp.value", "smp.forget", "smp.give_up"
Key = tuple[int, ...]
_TEXT = "_smp_remote"  # The attribute of an exception that another rank raised: what it says of it.


class RemoteStepError(SMPError):
    """The step failed on another rank, which says why."""


def as_remote(error: BaseException) -> BaseException:
    """Return *error*; a RemoteStepError in its stead if another rank raised it, and nobody here has caught it."""
    if (text := vars(error).get(_TEXT)) is None:
        return error
    return RemoteStepError(text).with_traceback(error.__traceback__)


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


class Following(NamedTuple):
    """The call that follows another one, on `rank` with `key`. `inputs`: the numbers of the other one's outputs, which
    are its tensors. `after`: the skeleton of the other one's result; after another one it does not follow. The rest is
    as in a Request."""

    rank: int
    key: Key
    inputs: tuple[int, ...]
    after: bytes
    path: str
    skeleton: bytes
    setting: Setting
    is_training: bool
    wanted: frozenset[int]
    released: list[Key]


class Request(NamedTuple):
    """A call of the module at `path`. `is_training`: the module's mode on the caller's rank. `wanted`: the outputs
    whose data the caller will need. `released`: what it does not need any more. `following`: the calls after it, one
    after the other (ahead.py). `looks`: the result says whether it leaves traces. `caller`: the rank that gets the
    result and did not send this message, None: which sent it. If it did not, the data of all inputs comes along."""

    path: str
    skeleton: bytes
    inputs: Parcel
    setting: Setting
    is_training: bool
    state: bytes
    wanted: frozenset[int]
    released: list[Key]
    following: tuple[Following, ...] = ()
    looks: bool = False
    caller: int | None = None


class _Bare(NamedTuple):
    """An exception that pickle cannot make again, often since its __init__ takes other arguments than it keeps."""

    kind: type
    args: tuple[Any, ...]
    attributes: dict[str, Any]

    def error(self) -> Any:
        made = self.kind.__new__(self.kind, *self.args)
        made.args = self.args
        vars(made).update(self.attributes)
        return made


def _pickled(value: Any) -> bytes:
    """Return *value* pickled, empty: it does not come back as what it is."""
    try:
        pickled = pickle.dumps(value, 5)
        return pickled if type(pickle.loads(pickled)) is type(value) else b""
    except Exception:  # noqa: BLE001 - whatever its class does
        return b""


class Result(NamedTuple):
    """What a call gave. `state`: of the random number generator afterwards. `changed`: (number of the input, number of
    the output that is its new value) of each tensor that the module has changed in place. `failure`: the
    module has then raised. `attributes`: what the module has set of its own. `leaves_traces`: the call has changed more
    than its arguments (ahead.Traces), or nobody looked."""

    skeleton: bytes
    outputs: Parcel
    state: bytes
    changed: list[tuple[int, int]]
    failure: "Failure | None" = None
    attributes: Sequence[Set] = ()
    leaves_traces: bool = True


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
    """Why a request was not answered. `error`: the exception, pickled, where it can be. `state`: of the random number
    generator when it was raised, empty: as before."""

    text: str
    error: bytes = b""
    state: bytes = b""

    @classmethod
    def of(cls, error: BaseException, text: str, state: bytes) -> "Failure":
        """Return that a module raised *error*, which *text* describes."""
        pickled = b""
        if isinstance(error, Exception):
            attributes = {name: value for name, value in vars(error).items() if _pickled(value)}
            pickled = _pickled(error) or _pickled(_Bare(type(error), error.args, attributes))
        return cls(text, pickled, state)

    def exception(self) -> Exception:
        """Return what the caller of the module gets: the exception itself, which the model's own `except` catches."""
        try:
            found = pickle.loads(self.error) if self.error else None
        except Exception:  # noqa: BLE001 - a class that this rank has not
            found = None
        error = found.error() if isinstance(found, _Bare) else found
        if not isinstance(error, Exception):
            return RemoteStepError(self.text)
        vars(error)[_TEXT] = self.text
        return error


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
