"""Runs the steps of a chain: this rank's device of it, and on the last device the user's function."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from toolkit.rank.frameworks.torch.tensors import pytree
from toolkit.rank.modelparallel.errors import PeerLost
from toolkit.rank.modelparallel.messenger import Messenger
from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.torch import wire
from toolkit.rank.modelparallel.torch.chain.calls import DeviationError, StepCall
from toolkit.rank.modelparallel.torch.chain.layout import Layout
from toolkit.rank.modelparallel.torch.chain.observation import ChainPlan
from toolkit.rank.modelparallel.torch.chain.stage import get_stage_class
from toolkit.rank.modelparallel.torch.chain.stage_messages import ARGUMENTS, INPUT, RESULTS, StageMessages
from toolkit.rank.modelparallel.torch.messages import AutogradModes, RemoteStepError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Split = Callable[[tuple[Any, ...], dict[str, Any]], Sequence[Arguments]]
# Arguments of a step function that are not sent: each rank uses its own.
RANK_LOCAL = (torch.nn.Module, torch.optim.Optimizer, torch.device, torch.dtype, type)
PLAIN = (bool, int, float, complex, str, bytes, type(None))


class ChainSteps:
    """The steps of *plan* on this rank.

    *model* is the DistributedModel; *layout* of its module; *ranks* are the pipeline's by device, *device* this one's;
    *group* is their process group.
    """

    def __init__(
        self,
        plan: ChainPlan,
        model: Any,
        layout: Layout,
        *,
        pipeline: str,
        messenger: Messenger,
        ranks: Sequence[int],
        device: int,
        group: Any,
        torch_device: Any,
        recorder: Recorder,
    ) -> None:
        self.plan = plan
        self._model = model
        self._device = device
        self._last = len(ranks) - 1
        self._torch_device = torch_device
        self._messages = StageMessages(messenger, ranks, torch_device)
        self._stage = get_stage_class()(
            layout.stages[device], device, plan, self._messages, group, torch_device, recorder
        )
        self._pipeline = pipeline
        self._recorder = recorder
        self._schedule = self._stage.schedule(pipeline)
        # A thread for each microbatch: all may wait for their backward pass.
        self._pool = ThreadPoolExecutor(plan.microbatches, "smp-chain") if device == self._last else None

    def run(
        self,
        step: int,
        function: Callable[..., Any],
        arguments: Arguments,
        split: Split,
        scale: float,
        states: Sequence[Any],
        *,
        is_planned: bool,
    ) -> list[Any]:
        """Run step *step* (a number of its own) and return what *function* returned for each microbatch.

        The first rank's *arguments* count; the last rank runs the function, and all get what it returned. *split*
        divides arguments into those of the microbatches. The losses' gradients are multiplied by *scale*. *states*:
        of each microbatch's random numbers, on the first rank. *is_planned*: the model on this rank is the planned one.
        """
        calls: list[StepCall] = []
        try:
            if not is_planned:
                raise DeviationError("other modules, modes or hooks of the model, on this rank alone")
            inputs = self._send_arguments(step, arguments, split) if self._device == 0 else None
            if self._device == self._last:
                self._start(calls, step, function, arguments, split, scale)
            self._stage.begin(step, inputs, states, calls)
            with self._random_numbers(), torch.set_grad_enabled(self.plan.has_backward):
                target = torch.arange(self.plan.microbatches) if self.plan.has_backward else None
                self._schedule.step(target=target, return_outputs=False)
            return self._results(step, calls)
        except BaseException as error:
            self._schedule = self._stage.schedule(self._pipeline)  # The old one keeps the losses of the failed step.
            if not isinstance(error, PeerLost):
                with contextlib.suppress(PeerLost):
                    self._messages.fail(
                        self._device, step, self.plan.microbatches, _describe_error(error, self._device)
                    )
            raise
        finally:
            self._stage.end()
            for call in calls:
                call.cancel()

    def _send_arguments(self, step: int, arguments: Arguments, split: Split) -> Callable[[int], Any]:
        """Send the arguments to the last rank; return a function that gives the model's argument of a microbatch."""
        skeleton, tensors = wire.pack(pytree.tree_map(lambda leaf: None if _is_rank_local(leaf) else leaf, arguments))
        self._messages.send(self._last, ARGUMENTS, step, tensors, skeleton)
        if self.plan.inputs is None:
            return functools.partial(self._receive_input, step)
        indices, spec = self.plan.inputs, pytree.treespec_loads(self.plan.model_input)
        leaves = [pytree.tree_leaves(microbatch_arguments) for microbatch_arguments in split(*arguments)]
        return lambda microbatch: pytree.tree_unflatten([leaves[microbatch][index] for index in indices], spec)

    def _receive_input(self, step: int, microbatch: int) -> Any:
        tensors, skeleton = self._messages.receive(self._last, INPUT, (step, microbatch))
        return wire.unpack(skeleton, tensors)

    def _start(
        self,
        calls: list[StepCall],
        step: int,
        function: Callable[..., Any],
        arguments: Arguments,
        split: Split,
        scale: float,
    ) -> None:
        """Receive the arguments, and run the function for each microbatch until it calls the model."""
        tensors, skeleton = self._messages.receive(0, ARGUMENTS, step)
        received_leaves, spec = pytree.tree_flatten(wire.unpack(skeleton, tensors))
        local_leaves, local_spec = pytree.tree_flatten(arguments)
        if spec != local_spec:
            raise DeviationError("other arguments on this rank than on the pipeline's first one")
        leaves = [
            local if _is_rank_local(local) else received
            for local, received in zip(local_leaves, received_leaves, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        modes = AutogradModes.current()
        assert self._pool is not None
        for microbatch, microbatch_arguments in enumerate(split(args, kwargs)):
            call = StepCall(
                self._model,
                function,
                microbatch_arguments,
                has_backward=self.plan.has_backward,
                modes=self.plan.modes,
                scale=scale,
                recorder=self._recorder,
            )
            calls.append(call)
            self._pool.submit(call.body(modes))
            self._pass_input(step, microbatch, call.before_forward(), microbatch_arguments)

    def _pass_input(self, step: int, microbatch: int, model_input: Any, arguments: Arguments) -> None:
        """Make sure that the first rank uses *model_input*, with which the function called the model."""
        if self.plan.inputs is None:
            skeleton, tensors = wire.pack(model_input)
            self._messages.send(0, INPUT, (step, microbatch), tensors, skeleton)
            return
        leaves, argument_leaves = pytree.tree_leaves(model_input), pytree.tree_leaves(arguments)
        if len(leaves) != len(self.plan.inputs) or any(
            leaf is not argument_leaves[index] for leaf, index in zip(leaves, self.plan.inputs, strict=True)
        ):
            raise DeviationError("another argument of the model")

    def _results(self, step: int, calls: Sequence[StepCall]) -> list[Any]:
        """Return the functions' results, which the last rank sends to all."""
        if self._device == self._last:
            results = [call.result for call in calls]
            skeleton, tensors = wire.pack(results)
            # Copies: the script may change what it gets while they are being sent.
            copies = [tensor.detach().clone() for tensor in tensors]
            for device in range(self._last):
                self._messages.send(device, RESULTS, step, copies, (skeleton, self._stage.first_state))
            if self._stage.first_state is not None:
                torch.set_rng_state(self._stage.first_state)
            return results
        tensors, (skeleton, state) = self._messages.receive(self._last, RESULTS, step)
        if state is not None:
            torch.set_rng_state(state)
        received: list[Any] = wire.unpack(skeleton, tensors)
        return received

    @contextlib.contextmanager
    def _random_numbers(self) -> Iterator[None]:
        """Random numbers come from the first rank with each microbatch; a step that fails draws none on the others."""
        is_forked = self.plan.is_random and self._device > 0
        with torch.random.fork_rng(devices=()) if is_forked else contextlib.nullcontext():
            yield


def find_refusal(arguments: Arguments) -> str:
    """Return the reason why a step function with these arguments cannot take the fast path, "" if it can."""
    for leaf in pytree.tree_leaves(arguments):
        if not (isinstance(leaf, (torch.Tensor, *PLAIN)) or _is_rank_local(leaf)):
            return f"an argument of the step function is or holds a {type(leaf).__name__}"
    return ""


def _is_rank_local(leaf: Any) -> bool:
    return isinstance(leaf, RANK_LOCAL) or callable(leaf)


def _describe_error(error: BaseException, device: int) -> str:
    if isinstance(error, RemoteStepError):
        return str(error)
    return f"the step failed on partition {device}: {type(error).__name__}: {error}"
