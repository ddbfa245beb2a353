"""Speculative calls: modules of other partitions that the script calls in a row, with nothing between them.

A rank that serves a call does not wait for the caller's next one if that was the same every time so far: a call with
nothing but the results of the one before. It starts that call itself, on whatever rank has the module, and all results
go to the caller. The caller's script still gets each result and makes each call. Its request is then compared, whole
(module, other arguments, every tensor, modes, random numbers), with the call that ran: if they are equal, the result is
taken, else the speculative call is cancelled, and the script's is made. So nothing depends on whether the prediction
was right, except that a module ran once for nothing; after a wrong prediction nothing is predicted there any more.

Modules that the toolkit sees change attributes or buffers, that have hooks of the script, or that call modules of other
ranks are not called speculatively. Observations hold for the model's modes and hooks as they were; a module that begins
to have such side effects later runs speculatively until it has one.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from toolkit.rank.frameworks.torch.modules import (
    get_own_buffers,
    get_own_parameters,
    has_forward_hooks,
    has_global_hooks,
)
from toolkit.rank.frameworks.torch.tensors import get_version
from toolkit.rank.modelparallel.torch import remote_tensor
from toolkit.rank.modelparallel.torch.messages import AutogradModes, CallRequest, CallResult, SpeculativeCall
from toolkit.rank.modelparallel.torch.remote_tensor import TensorBundle, TensorRef

MIN_REPETITIONS = 4  # A call must have followed another one so often.
MAX_OBSERVATIONS = 16  # So many calls may be observed until that is so.
# Scripts whose calls never repeat (an argument that counts steps) must not fill the memory.
MAX_CALL_SITES = 4096
MAX_SKELETON_BYTES = 4096
CallSite = tuple[Hashable, int, "CallSignature"]  # The kind of the task, the call's number in it, and the call.


class CallSignature(NamedTuple):
    """A call of a module, without its tensors."""

    rank: int
    """The rank that has the module."""
    path: str
    """The module's path in the model."""
    skeleton: bytes
    """The arguments without their tensors (wire.pack)."""
    modes: AutogradModes
    """The caller's modes of autograd."""
    is_training: bool
    """The module's mode."""

    @classmethod
    def of(cls, rank: int, request: CallRequest) -> "CallSignature":
        """Return the signature of the call that *request* asks *rank* for."""
        return cls(rank, request.path, request.skeleton, request.modes, request.is_training)


class PredictedCall(NamedTuple):
    """The call that follows another one.

    `inputs`: the indices of the other one's outputs, which are its tensors. `expected_skeleton`: of the other one's
    result.
    """

    call: CallSignature
    inputs: tuple[int, ...]
    expected_skeleton: bytes


class CompletedCall:
    """A call whose result has arrived, with *buffers*.

    *site*: the call's among the calls of its task. *keeps_data*: the next call's tensors will be compared with its
    data, whatever its size.
    """

    def __init__(self, site: CallSite, result: CallResult, buffers: Sequence[memoryview], *, keeps_data: bool) -> None:
        self.site = site
        self._result = result
        self._keeps_data = keeps_data
        # Copies: the script may change the tensors.
        sent = (index for index, ref in enumerate(result.outputs.refs) if ref is None)
        self._data = {
            index: bytes(buffer)
            for index, buffer in zip(sent, buffers, strict=True)
            if keeps_data or len(buffer) < remote_tensor.MIN_REMOTE_BYTES
        }

    def note_fetched(self, ref: TensorRef, buffer: memoryview) -> None:
        """Note that the script got the data of the tensor *ref*, *buffer*, and may change it past autograd."""
        if self._keeps_data and ref in self._result.outputs.refs:
            self._data[self._result.outputs.refs.index(ref)] = bytes(buffer)

    def predict_from(
        self, call: CallSignature, request: CallRequest, buffers: Sequence[memoryview], preferred: Sequence[int]
    ) -> PredictedCall | None:
        """Return *call*, which *request* makes with *buffers*, as the one that follows this call.

        None: it has other tensors, or random numbers have been drawn in between. If several outputs are equal, the
        indices in *preferred* decide.
        """
        result = self._result
        if result.failure is not None or result.changed or result.attributes or result.state != request.state:
            return None
        inputs: list[int] = []
        remaining = iter(buffers)
        for meta, ref in zip(request.inputs.metas, request.inputs.refs, strict=True):
            buffer = next(remaining) if ref is None else None
            equal = [
                index
                for index, output in enumerate(result.outputs.metas)
                if output == meta
                and (result.outputs.refs[index] == ref if buffer is None else self._is_equal(index, buffer))
            ]
            if not equal:
                return None
            first = preferred[len(inputs)] if len(inputs) < len(preferred) else equal[0]
            inputs.append(first if first in equal else equal[0])
        return PredictedCall(call, tuple(inputs), result.skeleton) if inputs else None

    def _is_equal(self, index: int, buffer: memoryview) -> bool:
        data = self._data.get(index)
        # memoryviews are compared one byte after the other: 28 ms for 4 MiB, where this takes 0.6 ms.
        return data is not None and len(data) == len(buffer) and data.startswith(buffer)


class Speculation:
    """The calls of one task of *kind*.

    `count`: of the calls so far. `last`: the call whose result arrived last. `expected`: the speculative calls after
    it.
    """

    def __init__(self, kind: Hashable) -> None:
        self.kind = kind
        self.count = 0
        self.last: CompletedCall | None = None
        self.expected: list[SpeculativeCall] = []


class _Observation:
    def __init__(self, prediction: PredictedCall | None) -> None:
        self.prediction = prediction  # None: not the same every time.
        self.repetitions = 0
        self.observations = 0


class CallHistory:
    """Records which call has followed which, in all tasks of this rank so far."""

    def __init__(self) -> None:
        self._sites: dict[CallSite, _Observation] = {}

    def predict(self, site: CallSite) -> PredictedCall | None:
        """Return the call that follows the one at *site*, None: it has not repeated often enough."""
        observation = self._sites.get(site)
        if observation is None or observation.repetitions < MIN_REPETITIONS:
            return None
        return observation.prediction

    def is_open(self, site: CallSite) -> bool:
        """Return whether the call at *site* should be observed."""
        observation = self._sites.get(site)
        if observation is None:
            return len(self._sites) < MAX_CALL_SITES
        return (
            observation.prediction is not None
            and observation.repetitions < MIN_REPETITIONS
            and observation.observations < MAX_OBSERVATIONS
        )

    def observe(self, site: CallSite, following: PredictedCall | None) -> bool:
        """Note that *following* came after the call at *site*; True: the side effects of *following* count, too."""
        if following is None or len(following.call.skeleton) > MAX_SKELETON_BYTES:
            self.refuse(site)
            return False
        observation = self._sites.get(site)
        if observation is None:
            if len(self._sites) >= MAX_CALL_SITES or len(site[-1].skeleton) > MAX_SKELETON_BYTES:
                return False
            observation = self._sites[site] = _Observation(following)
        if observation.prediction != following:
            observation.prediction = None
        return self.is_open(site)

    def count_repetition(self, site: CallSite, *, has_side_effects: bool) -> None:
        """Count one more repetition of the call after *site*, unless it *has_side_effects*."""
        observation = self._sites[site]
        if has_side_effects and observation.repetitions >= MIN_REPETITIONS:
            observation.prediction = None
        observation.observations += 1
        observation.repetitions += not has_side_effects

    def refuse(self, site: CallSite) -> None:
        """Predict nothing after the call at *site* any more."""
        if site in self._sites or len(self._sites) < MAX_CALL_SITES:
            self._sites[site] = _Observation(None)


def is_followed(result: CallResult, call: SpeculativeCall) -> bool:
    """Return whether *call* runs after a call with *result*; the rank of that call and its caller decide alike."""
    changes_nothing = result.failure is None and not (result.changed or result.attributes)
    return changes_nothing and result.skeleton == call.expected_skeleton


def make_request(
    call: SpeculativeCall, next_calls: tuple[SpeculativeCall, ...], result: CallResult, caller: int
) -> CallRequest:
    """Return *caller*'s request for *call*, after the call that gave *result*, and for the *next_calls* after it."""
    outputs = result.outputs
    inputs = TensorBundle(
        [outputs.metas[index] for index in call.inputs], [outputs.refs[index] for index in call.inputs]
    )
    return CallRequest(
        path=call.path,
        skeleton=call.skeleton,
        inputs=inputs,
        modes=call.modes,
        is_training=call.is_training,
        state=result.state,
        eager_outputs=call.eager_outputs,
        released=call.released,
        next_calls=next_calls,
        checks_side_effects=True,
        caller=caller,
    )


def copy_inputs(call: SpeculativeCall, result: CallResult, outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs of *call*, which runs on the rank of the call that gave *result* with *outputs*.

    They are copies, since the module may change them before the caller has used them, and laid out as the caller's
    request would bring them: tensors that are sent arrive contiguous.
    """
    return [
        outputs[index]
        .detach()
        .clone(memory_format=torch.contiguous_format if result.outputs.refs[index] is None else torch.preserve_format)
        for index in call.inputs
    ]


class SideEffects:
    """The parameters and buffers of *module* before a call, to find side effects beside changed attributes."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._state = _versions(module)

    def exist(self) -> bool:
        """Return whether the call has changed a parameter or buffer, or has called hooks."""
        if has_global_hooks() or any(map(has_forward_hooks, self._module.modules())):
            return True
        state = _versions(self._module)
        return len(state) != len(self._state) or any(
            tensor is not old_tensor or (name, version) != (old_name, old_version)
            for (name, tensor, version), (old_name, old_tensor, old_version) in zip(state, self._state, strict=True)
        )


def module_modes(model: nn.Module) -> Hashable:
    """Return a value that decides which side effects the modules of *model* have: classes, modes and hooks."""
    return tuple((type(module), module.training, has_forward_hooks(module)) for module in model.modules())


def _versions(module: nn.Module) -> list[tuple[str, Tensor, int]]:
    return [
        (name, tensor, get_version(tensor))
        for submodule in module.modules()
        for tensors in (get_own_parameters(submodule), get_own_buffers(submodule))
        for name, tensor in tensors.items()
    ]
