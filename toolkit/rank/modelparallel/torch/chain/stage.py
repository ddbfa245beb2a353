"""One device's part of a chain: a stage for torch's schedules that sends its tensors by the ranks' messenger.

The schedule decides the order of work. A received tensor lives from its microbatch's forward to its backward, and no
transfer needs the other side's attention. (torch's own point-to-point operations on gloo hold a thread until the peer
process ends, whatever happens to a third rank.) On CUDA, torch's own operations run.
"""

import functools
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from toolkit.rank.frameworks.torch.distributed import set_stage_count
from toolkit.rank.frameworks.torch.tensors import pytree
from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.torch import checkpointing
from toolkit.rank.modelparallel.torch.chain.calls import DeviationError, StepCall
from toolkit.rank.modelparallel.torch.chain.layout import ChainLink
from toolkit.rank.modelparallel.torch.chain.observation import ChainPlan, TreeMeta, describe, describe_leaves
from toolkit.rank.modelparallel.torch.chain.stage_messages import BACKWARD, FORWARD, StageMessages
from toolkit.rank.modelparallel.torch.nodes import NonLeaf
from toolkit.rank.modelparallel.torch.scaling import to_working_dtype


class StageModule(nn.Module):
    """The modules of one device, in order. Takes and gives tuples of tensors."""

    def __init__(self, links: Sequence[ChainLink], device: int, plan: ChainPlan) -> None:
        super().__init__()
        self._cfg = world.current().cfg
        self.links = nn.ModuleList(link.module for link in links)
        runs = [list(run) for _, run in groupby(links, key=lambda link: id(link.parent))]
        # Consecutive modules of one Sequential, as activation checkpointing groups them.
        self._runs = [checkpointing.group_layers(run[0].parent, [link.module for link in run]) for run in runs]
        self.failure: Exception | None = None
        self.value: Any = None  # On the last device: the model's output as it is.
        self._input_spec = None if device == 0 else pytree.treespec_loads(plan.outputs[device - 1].spec)
        self._output = plan.outputs[device]
        self._output_spec = pytree.treespec_loads(self._output.spec)
        self._is_last = device == len(plan.outputs) - 1
        self._modes = plan.modes

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        """Run the modules on *tensors*; on the first device on the model's argument."""
        if self._input_spec is None:
            value = to_working_dtype(tensors[0], self._cfg)
        else:
            value = pytree.tree_unflatten([NonLeaf.apply(tensor) for tensor in tensors], self._input_spec)  # type: ignore[no-untyped-call]
        try:
            return self._run(value)
        except Exception as error:
            self.failure = error
            raise

    def _run(self, value: Any) -> tuple[Any, ...]:
        with self._modes.apply():
            for run in self._runs:
                value = run(value)
        leaves, spec = pytree.tree_flatten(value)
        if spec != self._output_spec or describe_leaves(leaves) != self._output.leaves:
            output = _format(describe(value))
            raise DeviationError(f"{output} after {type(self.links[-1]).__name__}, not {_format(self._output)}")
        if self._is_last:
            self.value = value
            return tuple(leaves)
        return tuple(leaf.contiguous() for leaf in leaves)


if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage
else:
    PipelineStage = object  # Its import takes a second and sets variables: `get_stage_class` puts it in.


class Stage(PipelineStage):
    """Device *device* of the chain. `begin` gives it a step; a schedule runs it."""

    def __init__(
        self,
        links: Sequence[ChainLink],
        device: int,
        plan: ChainPlan,
        messages: StageMessages,
        group: Any,
        torch_device: Any,
        recorder: Recorder,
    ) -> None:
        self.segment = StageModule(links, device, plan)
        super().__init__(
            self.segment,
            device,
            len(plan.outputs),
            torch_device,
            input_args=() if device == 0 else _examples(plan.outputs[device - 1]),
            output_args=_examples(plan.outputs[device]),
            group=group,
        )
        self.plan = plan
        self._device = device
        self._messages = messages
        self._uses_messenger = torch_device.type != "cuda"
        self._recorder = recorder
        self._state: Any = None  # Of the microbatch's random numbers.
        self._states: Sequence[Any] = ()
        self.first_state: Any = None  # After the first microbatch.
        self._step = 0
        self._inputs: Callable[[int], Any] | None = None
        self._calls: Sequence[StepCall] = ()
        self._losses: dict[int, Any] = {}

    def schedule(self, pipeline: str) -> Any:
        """Return the schedule that runs this stage; its `step` takes the microbatches' numbers as the target."""
        is_interleaved = pipeline == "interleaved" and self.plan.microbatches >= self.num_stages
        from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

        schedule_class = Schedule1F1B if is_interleaved and self.plan.has_backward else ScheduleGPipe
        loss = self._loss if self.plan.has_backward else None
        schedule = schedule_class(self, self.plan.microbatches, loss_fn=loss, scale_grads=False)
        is_last = self._device == self.num_stages - 1
        active = world.current().cfg.active_microbatches or 0
        if self._uses_messenger and not is_last and active > self.num_stages:
            # One forward more before the first backward, as if there were a stage more: the next device then has its
            # input before it needs it, and does not wait for the message.
            set_stage_count(schedule, self.num_stages + 1)
        return schedule

    def _loss(self, _output: Any, microbatch: Any) -> Any:
        return self._losses.pop(int(microbatch))

    def begin(
        self, step: int, inputs: Callable[[int], Any] | None, states: Sequence[Any], calls: Sequence[StepCall]
    ) -> None:
        """Prepare for step *step*.

        *inputs* returns the model's argument of a microbatch and *states* has the states of the microbatches' random
        numbers, both on the first device; *calls* are those of the user's function, on the last one.
        """
        self._step, self._inputs, self._states, self._calls = step, inputs, states, calls
        self._state = None
        self._losses.clear()

    def end(self) -> None:
        """Free the state of the step."""
        self._inputs, self._calls, self.segment.value = None, (), None
        self.clear_runtime_states()

    def forward_one_chunk(
        self, fwd_chunk_id: int, args: Any, kwargs: Any = None, save_forward_output: bool = True
    ) -> Any:
        """Run the forward pass, and send its output; on the last device run the user's function up to its backward."""
        with self._recorder.span("forward", fwd_chunk_id):
            if self._inputs is not None:
                args = (self._inputs(fwd_chunk_id),)
                self._state = self._states[fwd_chunk_id] if self.plan.is_random else None
            if self._state is not None:
                torch.set_rng_state(self._state)
            try:
                output = super().forward_one_chunk(fwd_chunk_id, args, kwargs, save_forward_output)
            except RuntimeError as error:
                if error.__cause__ is not None and error.__cause__ is self.segment.failure:
                    raise self.segment.failure from None
                raise
            if self.is_last:
                self._losses[fwd_chunk_id] = self._calls[fwd_chunk_id].after_forward(self.segment.value)
            if self.plan.is_random:
                self._state = torch.get_rng_state()
                if fwd_chunk_id == 0:
                    self.first_state = self._state
            if not self.is_last and self._uses_messenger:
                tensors, _ = self.fwd_cache[fwd_chunk_id]
                self._messages.send(self._device + 1, FORWARD, (self._step, fwd_chunk_id), tensors, self._state)
        if not self.has_backward:
            _clear_buffers(self.args_recv_info[fwd_chunk_id])
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass, and send its gradients; on the last device run the rest of the user's function."""
        if not self.has_backward:
            return
        with self._recorder.span("backward", bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
            if not self.is_first and self._uses_messenger:
                tensors = [operation.tensor for operation in super().get_bwd_send_ops(bwd_chunk_id)]
                self._messages.send(self._device - 1, BACKWARD, (self._step, bwd_chunk_id), tensors)
            if self.is_last:
                self._calls[bwd_chunk_id].after_backward()
        _clear_buffers(self.args_recv_info[bwd_chunk_id])
        if not self.is_last:
            _clear_buffers(self.grad_recv_info[bwd_chunk_id])

    # Before its first step a schedule votes whether all stages know the shapes of their tensors. These do.

    def _warmup_forward_vote(self, has_backward: bool, received_acc: Any = None) -> Any:
        return torch.ones(1) if self._uses_messenger else super()._warmup_forward_vote(has_backward, received_acc)

    def _warmup_backward_result(self, received_result: Any = None) -> Any:
        return torch.ones(1) if self._uses_messenger else super()._warmup_backward_result(received_result)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[Any]:
        """Receive a microbatch's input."""
        if self.is_first or not self._uses_messenger:
            return super().get_fwd_recv_ops(fwd_chunk_id)
        self._state = self._receive(self._device - 1, FORWARD, fwd_chunk_id, self.args_recv_info[fwd_chunk_id])
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[Any]:
        """Receive the gradients of a microbatch's output."""
        if not self.has_backward or self.is_last or not self._uses_messenger:
            return super().get_bwd_recv_ops(bwd_chunk_id)
        infos = [info for info in self.grad_recv_info[bwd_chunk_id] if info.tensor_meta is not None]
        self._receive(self._device + 1, BACKWARD, bwd_chunk_id, infos)
        return []

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[Any]:
        """Send a microbatch's output, if forward_one_chunk has not."""
        return [] if self._uses_messenger else super().get_fwd_send_ops(fwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[Any]:
        """Send the gradients of a microbatch's input, if backward_one_chunk has not."""
        return [] if self._uses_messenger else super().get_bwd_send_ops(bwd_chunk_id)

    def _receive(self, device: int, kind: str, microbatch: int, infos: Sequence[Any]) -> Any:
        """Put the tensors that *device* sends into *infos*; return the value sent with them."""
        tensors, extra = self._messages.receive(device, kind, (self._step, microbatch))
        for info, tensor in zip(infos, tensors, strict=True):
            info.buffer = tensor
        return extra


@functools.cache
def get_stage_class() -> type[Stage]:
    """Return Stage as a subclass of torch's PipelineStage."""
    from torch.distributed.pipelining import PipelineStage

    return type("Stage", (Stage, PipelineStage), {})


def _clear_buffers(infos: Sequence[Any]) -> None:
    for info in infos:
        info.buffer = None


def _examples(tensors: TreeMeta) -> tuple[Any, ...]:
    return tuple(
        torch.empty(shape, dtype=dtype, device="meta").requires_grad_(requires_grad)
        for shape, dtype, requires_grad in tensors.leaves
    )


def _format(value: TreeMeta | str) -> str:
    if isinstance(value, str):
        return value
    return ", ".join(
        f"{str(dtype).removeprefix('torch.')}{list(shape)}{'' if requires_grad else ' without gradient'}"
        for shape, dtype, requires_grad in value.leaves
    )
