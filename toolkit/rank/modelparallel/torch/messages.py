"""The messages between the ranks of a pipeline in a step of the module server."""

import contextlib
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.attributes import AttributeChange
from toolkit.rank.modelparallel.torch.remote_tensor import TensorBundle, TensorRef

CALL, RESULT, BACKWARD, GRADIENTS = "smp.call", "smp.result", "smp.backward", "smp.gradients"
FETCH, VALUE, FORGET, CANCEL = "smp.fetch", "smp.value", "smp.forget", "smp.cancel"
Key = tuple[int, ...]
_TEXT = "_smp_remote"  # The attribute of an exception that another rank raised: that rank's description of it.


class RemoteStepError(SMPError):
    """The step failed on another rank; the text is that rank's."""


def to_remote_error(error: BaseException) -> BaseException:
    """Return *error*, or a RemoteStepError if *error* came from another rank and no code here has caught it."""
    if (text := vars(error).get(_TEXT)) is None:
        return error
    return RemoteStepError(text).with_traceback(error.__traceback__)


class AutogradModes(NamedTuple):
    """The modes of autograd in which a module is called. `autocast`: (device type, dtype, cache) of those enabled."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype, bool], ...]

    @classmethod
    def current(cls) -> "AutogradModes":
        """Return the calling thread's modes."""
        autocast = tuple(
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
            for kind in ("cpu", "cuda")
            if torch.is_autocast_enabled(kind)
        )
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    @contextlib.contextmanager
    def apply(self) -> Iterator[None]:
        """Set these modes for the block."""
        with contextlib.ExitStack() as stack:
            if self.inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind, dtype, cache in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=cache))
            yield


class SpeculativeCall(NamedTuple):
    """A call that a rank starts as soon as the call before it has ended, without a request of the caller."""

    rank: int
    """The rank that has the module."""
    key: Key
    """The key of the call."""
    inputs: tuple[int, ...]
    """The indices of the outputs of the call before, which are its tensors."""
    expected_skeleton: bytes
    """The skeleton of the result after which it follows; after another result it does not run."""
    path: str
    """As in a CallRequest, and so are the fields below."""
    skeleton: bytes
    modes: AutogradModes
    is_training: bool
    eager_outputs: frozenset[int]
    released: list[Key]


class CallRequest(NamedTuple):
    """A call of a module."""

    path: str
    """The module's path in the model."""
    skeleton: bytes
    """The arguments without their tensors (wire.pack)."""
    inputs: TensorBundle
    """The tensors of the arguments. With `caller`, the data of all of them comes along."""
    modes: AutogradModes
    """The caller's modes of autograd."""
    is_training: bool
    """The module's mode on the caller's rank."""
    state: bytes
    """The state of the random number generator."""
    eager_outputs: frozenset[int]
    """The indices of the outputs whose data the caller will need."""
    released: list[Key]
    """The tensors that the caller does not need any more."""
    next_calls: tuple[SpeculativeCall, ...] = ()
    """The calls after it, one after the other (speculation.py)."""
    checks_side_effects: bool = False
    """The result must say whether the call had side effects."""
    caller: int | None = None
    """The rank that gets the result, None: the rank that sent this message."""


class _BareError(NamedTuple):
    """The parts of an exception that pickle cannot rebuild, often because its __init__ takes other arguments."""

    kind: type
    args: tuple[Any, ...]
    attributes: dict[str, Any]

    def rebuild(self) -> Any:
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        vars(error).update(self.attributes)
        return error


def _pickle_value(value: Any) -> bytes:
    """Return *value* pickled, empty if unpickling does not give a value of the same class."""
    try:
        pickled = pickle.dumps(value, 5)
        return pickled if type(pickle.loads(pickled)) is type(value) else b""
    except Exception:  # noqa: BLE001 - whatever its class does
        return b""


class CallResult(NamedTuple):
    """The answer to a CallRequest."""

    skeleton: bytes
    """The module's result without its tensors (wire.pack)."""
    outputs: TensorBundle
    """The tensors of the result."""
    state: bytes
    """The state of the random number generator after the call."""
    changed: list[tuple[int, int]]
    """For each tensor that the module changed in place: the index of the input, and that of its new value's output."""
    failure: "RemoteFailure | None" = None
    """Set if the module raised an exception after it had changed arguments."""
    attributes: Sequence[AttributeChange] = ()
    """The attributes that the module set."""
    has_side_effects: bool = True
    """The call changed more than its arguments (speculation.SideEffects), or nobody checked."""


class GradientHop(NamedTuple):
    """The next call of a backward pass."""

    rank: int
    """The rank that ran the call."""
    call: Key
    """The key of the call."""
    key: Key
    """The key of the request for the backward pass."""
    output_count: int
    """The number of outputs of the call."""
    index_pairs: list[tuple[int, int]]
    """For each gradient: the index of the present call's input, and that of this call's output."""
    released: list[Key]
    """The tensors of that rank that the caller does not need any more."""


class GradientsMessage(NamedTuple):
    """The gradients of a call: of its outputs in a request, of its inputs in the answer."""

    call: Key
    """The key of the call."""
    present: list[bool]
    """For each output or input: True if it has a gradient."""
    gradients: TensorBundle
    """The gradients that are present."""
    released: list[Key]
    """As in a CallRequest."""
    hops: tuple[GradientHop, ...] = ()
    """The calls to which the gradients go from there, one after the other."""
    caller: tuple[int, Key] | None = None
    """The rank and the key of the answer, None: those of this message."""


class RemoteFailure(NamedTuple):
    """Says why a rank did not answer a request.

    `text`: describes the exception. `error`: the exception, pickled, if it can be. `state`: of the random number
    generator when it was raised, empty: as before.
    """

    text: str
    error: bytes = b""
    state: bytes = b""

    @classmethod
    def of(cls, error: BaseException, text: str, state: bytes) -> "RemoteFailure":
        """Return the failure of a module that raised *error*, which *text* describes."""
        pickled = b""
        if isinstance(error, Exception):
            attributes = {name: value for name, value in vars(error).items() if _pickle_value(value)}
            pickled = _pickle_value(error) or _pickle_value(_BareError(type(error), error.args, attributes))
        return cls(text, pickled, state)

    def exception(self) -> Exception:
        """Return the exception to raise in the caller: the module's own, if possible, for the model's `except`."""
        try:
            error = pickle.loads(self.error) if self.error else None
        except Exception:  # noqa: BLE001 - a class that this rank has not
            error = None
        if isinstance(error, _BareError):
            error = error.rebuild()
        if not isinstance(error, Exception):
            return RemoteStepError(self.text)
        vars(error)[_TEXT] = self.text
        return error


def pack_gradients(
    call: Key,
    gradients: Sequence[Tensor | None],
    refs: Sequence[TensorRef | None],
    released: list[Key],
    hops: tuple[GradientHop, ...] = (),
    caller: tuple[int, Key] | None = None,
) -> tuple[GradientsMessage, list[memoryview]]:
    """Return a message about *call*, and its buffers: those of the *gradients* without a reference."""
    pairs = [(gradient, ref) for gradient, ref in zip(gradients, refs, strict=True) if gradient is not None]
    bundle, buffers = TensorBundle.of([gradient for gradient, _ in pairs], [ref for _, ref in pairs])
    present = [gradient is not None for gradient in gradients]
    return GradientsMessage(call, present, bundle, released, hops, caller), buffers
