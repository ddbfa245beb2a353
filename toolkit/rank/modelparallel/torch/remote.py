"""Calls of modules on other partitions: requests sent and served.

The caller's graph has one node for each call (RemoteNode); its backward sends the outputs' gradients and waits for the
inputs'. The owner's graph begins with a node (EntryNode) that keeps the inputs' gradients. If these are nothing but the
outputs' gradients of another call, they go directly to that call's owner, and the caller waits for its answer
(nodes.link_calls). The caller's grad mode, autocast and random numbers go along. The modules of calls in a row may run
speculatively (speculation.py).
"""

import contextlib
import functools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from toolkit.rank.modelparallel.errors import PeerLost, SMPError
from toolkit.rank.modelparallel.messenger import Message
from toolkit.rank.modelparallel.torch import arguments, attributes, remote_tensor, wire
from toolkit.rank.modelparallel.torch.messages import (
    BACKWARD,
    CALL,
    CANCEL,
    FETCH,
    FORGET,
    GRADIENTS,
    RESULT,
    VALUE,
    AutogradModes,
    CallRequest,
    CallResult,
    GradientHop,
    GradientsMessage,
    Key,
    RemoteFailure,
    RemoteStepError,
    SpeculativeCall,
    pack_gradients,
    to_remote_error,
)
from toolkit.rank.modelparallel.torch.nodes import CallRecord, EntryNode, GradientLink, HookUse, RemoteNode
from toolkit.rank.modelparallel.torch.order import Task, Urgency
from toolkit.rank.modelparallel.torch.remote_tensor import (
    RemoteTensor,
    TensorBundle,
    TensorRef,
    as_argument,
    materialize,
    ref_of,
)
from toolkit.rank.modelparallel.torch.scheduler import Aborted, Scheduler
from toolkit.rank.modelparallel.torch.speculation import (
    CallHistory,
    CallSignature,
    CallSite,
    CompletedCall,
    PredictedCall,
    SideEffects,
    Speculation,
    copy_inputs,
    is_followed,
    make_request,
    module_modes,
)

# The most calls, or backward passes of calls, in one request. Each request describes all that follow.
MAX_HOPS = 16


class _Region(threading.local):
    """`checkpointed`: this thread runs a checkpointed function (activation.py). `again`: in the backward pass."""

    checkpointed = again = False


region = _Region()


class RpcAgent:
    """Sends and serves this rank's calls across partitions.

    *ranks* are the ranks of the pipeline group by their partition. *keeps_outputs*: large outputs stay here until
    another rank needs their data (remote_tensor.py). *links_calls*: gradients go from owner to owner
    (nodes.link_calls), and calls run speculatively (speculation.py). Both depend on the script's hooks, and on when
    messages arrive, so they are not for ranks that must all make the same requests in the same order.
    """

    def __init__(
        self,
        messenger: Any,
        ranks: Sequence[int],
        device: torch.device,
        *,
        keeps_outputs: bool = True,
        links_calls: bool = True,
    ) -> None:
        self.scheduler = Scheduler()
        self.model: Any = None  # The DistributedModel, once there is one.
        self.own_failures: dict[str, BaseException] = {}  # Of the step, by the text that other ranks have of each.
        self.refusal = ""  # The reason why this rank answers no call of the step.
        self.ranks = tuple(ranks)
        self.device = device
        self.links_calls = links_calls
        self._messenger = messenger
        self._keeps_outputs = keeps_outputs
        self._waiting: dict[Key, Task] = {}
        self._records: dict[Key, CallRecord] = {}
        self._kept_tensors: dict[Key, Tensor] = {}
        self._released: dict[int, list[Key]] = {}
        self._eager_outputs: dict[str, set[int]] = {}
        self._history = CallHistory()
        self._model_modes: int | None = None  # Of the model in this step.
        self._lock = threading.Lock()  # Protects the fields that both tasks and the messages' threads change.
        self._expected: set[Key] = set()  # The speculative calls of this rank's tasks,
        self._early_results: dict[Key, Message] = {}  # and their results that no task has asked for yet.
        self._cancelled: set[Key] = set()  # Speculative calls of other ranks' tasks that are not needed.
        # Requires a gradient, so that calls whose tensors need none have a node in the graph.
        self._anchor = torch.zeros((), requires_grad=True)
        messenger.on(CALL, self._on_call)
        messenger.on(BACKWARD, self._on_backward)
        messenger.on(RESULT, self._on_response)
        messenger.on(GRADIENTS, self._on_response)
        messenger.on(FETCH, self._on_fetch)
        messenger.on(VALUE, self._on_response)
        messenger.on(FORGET, self._on_forget)
        messenger.on(CANCEL, self._on_cancel)

    def call(self, partition: int, module: Any, path: str, args: Any, kwargs: Any) -> Any:
        """Call *module*, which is at *path* on *partition*, with *args* and *kwargs*, and return what it returns."""
        task = self.scheduler.task
        if task is None:
            raise SMPError(
                f"expected module {path or 'the model'} of partition {partition} to be called inside a function with "
                "@smp.step, found a call outside of one: put the call into a step function"
            )
        if region.checkpointed:
            raise SMPError(
                f"expected a checkpointed function to call modules of this rank's partition alone, found a call of "
                f"module {path} of partition {partition}, which would be called again in the backward pass: checkpoint "
                "the modules with smp.set_activation_checkpointing"
            )
        skeleton, tensors = wire.pack((args, kwargs), self.model)
        call = RemoteModuleCall(self, task, partition, path, skeleton, AutogradModes.current(), module.training)
        # With gradients, the call is a node of the graph.
        run: Any = functools.partial(RemoteNode.apply, self._anchor, call) if torch.is_grad_enabled() else call.forward
        outputs = run(*map(as_argument, tensors))
        shared = arguments.shared_arguments(args, kwargs, tensors)
        result, contents = wire.unpack(call.result, outputs, self.model, shared)
        if call.changed or contents:
            changed = [(tensors[input_index], outputs[output_index]) for input_index, output_index in call.changed]
            module_name = f"module {path or 'the model'} of partition {partition}"
            arguments.carry_over(changed, contents, args, kwargs, tensors, module.forward, module_name)
        attributes.apply_changes(call.attributes, self.model.module_at, partition)
        if call.failure is not None:
            raise call.failure.exception()
        return result

    def exchange(self, task: Task, rank: int, kind: str, key: Key, payload: Any, buffers: Any = ()) -> Message:
        """Send a request to *rank* and return the response; *task* waits for it without the execution token."""
        self._waiting[key] = task
        self._messenger.send(rank, kind, key, payload, buffers)
        return self._reply(task)

    def _reply(self, task: Task, reply: Message | None = None) -> Message:
        """Return *task*'s *reply*; None: wait for it."""
        if reply is None:
            self.scheduler.wait(task)
            reply, task.reply = task.reply, None
            assert reply is not None
        if isinstance(reply.payload, RemoteFailure):
            if reply.payload.state:
                self.scheduler.set_state(task, torch.frombuffer(bytearray(reply.payload.state), dtype=torch.uint8))
            raise reply.payload.exception()
        return reply

    def request_call(
        self, task: Task, rank: int, request: CallRequest, buffers: Sequence[memoryview]
    ) -> tuple[Key, Message]:
        """Return the key and the response of the call that *request* asks *rank* for; it may have run speculatively."""
        if not self.links_calls:
            key = task.next_key()
            request = request._replace(released=self.pop_released(rank))
            return key, self.exchange(task, rank, CALL, key, request, buffers)
        if task.speculation is None:
            if self._model_modes is None:
                self._model_modes = hash(module_modes(self.model.module))
            task.speculation = Speculation((task.kind, self._model_modes))
        speculation: Speculation = task.speculation
        call, last = CallSignature.of(rank, request), speculation.last
        preferred = speculation.expected[0].inputs if speculation.expected else ()
        following = last.predict_from(call, request, buffers, preferred) if last is not None else None
        site = (speculation.kind, speculation.count, call)
        speculation.count += 1
        if following is not None and speculation.expected and _matches(speculation.expected[0], following):
            first, *expected = speculation.expected
            speculation.expected = []
            key = first.key
            with self._lock:
                self._expected.discard(key)
                early_result = self._early_results.pop(key, None)
                if early_result is None:
                    self._waiting[key] = task
            get_reply = functools.partial(self._reply, task, early_result)
            checks_side_effects = True
        else:
            self._cancel_speculation(task)
            key = task.next_key()
            checks_side_effects = last is not None and self._history.observe(last.site, following)
            released = self.pop_released(rank)
            expected = self._predict_calls(task, site)
            request = request._replace(
                released=released, next_calls=tuple(expected), checks_side_effects=checks_side_effects
            )
            get_reply = functools.partial(self.exchange, task, rank, CALL, key, request, buffers)
        speculation.last = None
        try:
            reply = get_reply()
        except BaseException:
            self._discard_expected(expected)
            raise
        result: CallResult = reply.payload
        if checks_side_effects and last is not None:
            self._history.count_repetition(last.site, has_side_effects=result.has_side_effects)
        if expected and not is_followed(result, expected[0]):
            self._discard_expected(expected)
            expected = []
        keeps_data = bool(expected) or self._history.is_open(site)
        speculation.last = CompletedCall(site, result, reply.buffers, keeps_data=keeps_data)
        speculation.expected = expected
        return key, reply

    def _cancel_speculation(self, task: Task) -> None:
        """Cancel the speculative calls of *task*, which makes another call."""
        speculation: Speculation = task.speculation
        if not speculation.expected:
            return
        assert speculation.last is not None
        self._history.refuse(speculation.last.site)
        calls, speculation.expected = speculation.expected, []
        for rank in sorted({call.rank for call in calls}):
            self._messenger.send(rank, CANCEL, None, [call.key for call in calls])
        self._discard_expected(calls)

    def _end_calls(self, task: Task) -> None:
        """Note that *task* makes no more calls."""
        speculation: Speculation | None = task.speculation
        if speculation is not None and speculation.last is not None:
            self._cancel_speculation(task)
            self._history.refuse(speculation.last.site)
            speculation.last = None

    def _predict_calls(self, task: Task, site: CallSite) -> list[SpeculativeCall]:
        """Return the speculative calls of *task* after the call at *site*."""
        calls: list[SpeculativeCall] = []
        while len(calls) < MAX_HOPS and (predicted := self._history.predict(site)) is not None:
            call = predicted.call
            calls.append(
                SpeculativeCall(
                    rank=call.rank,
                    key=task.next_key(),
                    inputs=predicted.inputs,
                    expected_skeleton=predicted.expected_skeleton,
                    path=call.path,
                    skeleton=call.skeleton,
                    modes=call.modes,
                    is_training=call.is_training,
                    eager_outputs=frozenset(self.eager_outputs(call.path)),
                    released=self.pop_released(call.rank),
                )
            )
            site = (site[0], site[1] + 1, call)
        with self._lock:
            self._expected.update(call.key for call in calls)
        return calls

    def _discard_expected(self, calls: Sequence[SpeculativeCall]) -> None:
        """Drop the results of the speculative *calls*, which no task will ask for."""
        with self._lock:
            for call in calls:
                self._expected.discard(call.key)
                self._early_results.pop(call.key, None)
        for call in calls:  # Perhaps its rank has not received the call, and so not what is released.
            self._released.setdefault(call.rank, []).extend(call.released)

    def fetch(self, ref: TensorRef) -> Tensor:
        """Return the data of the tensor *ref*."""
        if ref.rank == self._messenger.me:
            return self._kept_tensors[ref.key]
        task = self.scheduler.task
        if task is None:
            raise SMPError(
                "expected a tensor of a step to be used inside it, or returned by it, found one used later whose data "
                "stayed on another rank: return it from the step function"
            )
        reply = self.exchange(task, ref.rank, FETCH, task.next_key(), ref.key)
        if task.speculation is not None and task.speculation.last is not None:
            task.speculation.last.note_fetched(ref, reply.buffers[0])
        (tensor,) = wire.rebuild_tensors([reply.payload], reply.buffers, self.device)
        return tensor

    def release(self, ref: TensorRef) -> None:
        """Note that this rank does not need the tensor *ref* any more; its rank learns it with the next request."""
        self._released.setdefault(ref.rank, []).append(ref.key)

    def pop_released(self, rank: int) -> list[Key]:
        """Return the keys of the tensors of *rank* that were released since the last call."""
        return self._released.pop(rank, []) if self._released else []

    def eager_outputs(self, path: str) -> set[int]:
        """Return the indices of the outputs of the module at *path* whose data was needed here before."""
        return self._eager_outputs.setdefault(path, set())

    def finish_calls(self, task: Task) -> None:
        """Fetch the remote outputs that are still referenced when *task* ends; their owners free them afterwards."""
        self._end_calls(task)
        for reference in task.remote_outputs:
            tensor = reference()
            if tensor is not None:
                tensor.local_data()

    def keep_tensor(self, key: Key, tensor: Tensor) -> TensorRef | None:
        """Keep *tensor* here under *key*. None: it is small, or a parameter, and is sent."""
        is_parameter = tensor.is_leaf and tensor.requires_grad
        size_bytes = tensor.numel() * tensor.element_size()
        if not self._keeps_outputs or is_parameter or size_bytes < remote_tensor.MIN_REMOTE_BYTES:
            return None
        self._kept_tensors[key] = tensor.detach()
        return TensorRef(self._messenger.me, key)

    def make_remote_tensor(
        self, meta: wire.TensorMeta, ref: TensorRef, on_fetch: Callable[[], None] = lambda: None
    ) -> RemoteTensor:
        """Return the tensor *ref*, which has *meta*."""
        device = self.device if meta.on_accelerator else torch.device("cpu")
        return RemoteTensor(meta.shape, wire.DTYPES[meta.dtype], device, ref, self, on_fetch)

    def receive_tensors(self, bundle: TensorBundle, buffers: Sequence[memoryview]) -> list[Tensor]:
        """Return the tensors of *bundle*, and fetch the data of those that are references."""
        return bundle.unpack(buffers, self.device, lambda _, ref: self.fetch(ref).detach())

    def forget(self, microbatch: Key) -> None:
        """Let the other ranks free what they keep for the backward pass of *microbatch*'s calls: it has ended."""
        for rank in self.ranks[1:]:
            self._messenger.send(rank, FORGET, None, microbatch)

    def end_step(self) -> None:
        """Free everything that was kept for the step."""
        self._records.clear()
        self._waiting.clear()
        self._kept_tensors.clear()
        self._released.clear()
        self.own_failures.clear()
        self.refusal = ""
        self._model_modes = None
        with self._lock:
            self._expected.clear()
            self._early_results.clear()
            self._cancelled.clear()

    def _on_call(self, message: Message) -> None:
        request: CallRequest = message.payload
        self._drop(request.released)
        if not self.scheduler.start(Task(message.key, kind=request.path), lambda: self._serve_call(message)):
            # Of a module that ran speculatively and was not needed, for which its rank waits.
            late = RemoteFailure(f"expected module {request.path} to be called in a step, found a call after it")
            with contextlib.suppress(PeerLost):
                self._messenger.send(message.source, RESULT, message.key, late)

    def _on_backward(self, message: Message) -> None:
        self._drop(message.payload.released)
        self.scheduler.start(Task(message.key, is_backward=True), lambda: self._serve_backward(message))

    def _on_response(self, message: Message) -> None:
        with self._lock:
            task = self._waiting.pop(message.key, None)
            if task is None and message.key in self._expected:
                self._early_results[message.key] = message
        if task is not None:
            task.reply = message
            self.scheduler.resume(task, Urgency.ANSWERED)

    def _on_fetch(self, message: Message) -> None:
        tensor = self._kept_tensors.get(message.payload)
        if tensor is None:
            failure = RemoteFailure(
                "expected a tensor to be used in the step that made it, found one used in a later step"
            )
            self._messenger.send(message.source, VALUE, message.key, failure)
        else:
            (meta,) = wire.describe([tensor])
            self._messenger.send(message.source, VALUE, message.key, meta, wire.get_buffers([tensor]))

    def _drop(self, keys: list[Key]) -> None:
        for key in keys:
            self._kept_tensors.pop(key, None)

    def _on_forget(self, message: Message) -> None:
        for key in list(self._records):
            if key[:2] == message.payload:
                self._records.pop(key, None)

    def _on_cancel(self, message: Message) -> None:
        with self._lock:
            self._cancelled.update(message.payload)
            for key in message.payload:
                self._records.pop(key, None)
            self._drop([key for key in list(self._kept_tensors) if key[:-1] in message.payload])

    def _serve_call(  # noqa: PLR0915 - its values are freed in this order.
        self, message: Message, inputs: Sequence[Tensor] | None = None
    ) -> None:
        """Answer *message*; *inputs*: its tensors, None: those of the message."""
        request: CallRequest = message.payload
        if message.key in self._cancelled:
            return
        task = self.scheduler.task
        assert task is not None
        caller = message.source if request.caller is None else request.caller
        module = self.model.module_at(request.path)
        module_name = f"module {request.path or 'the model'} ({type(module).__name__})"
        with self._report_failures((caller, message.key), RESULT, module_name):
            if self.refusal:
                raise SMPError(self.refusal)
            self.scheduler.set_state(task, torch.frombuffer(bytearray(request.state), dtype=torch.uint8))
            if module.training != request.is_training:
                module.train(request.is_training)
            if inputs is None:
                inputs = (
                    self.receive_tensors(request.inputs, message.buffers)
                    if request.caller is None
                    else wire.rebuild_tensors(request.inputs.metas, message.buffers, self.device)
                )
            side_effects = SideEffects(module) if request.checks_side_effects else None
            record = CallRecord(inputs, request.inputs)
            with request.modes.apply():
                if request.modes.grad and any(record.requires_grad):
                    inputs = EntryNode.apply(self._anchor, record)  # type: ignore[no-untyped-call]
                args, kwargs = wire.unpack(request.skeleton, inputs, self.model)
                argument_snapshot = arguments.ArgumentSnapshot(args, kwargs, inputs)
                attribute_snapshot = attributes.AttributeSnapshot(module)
                failure = None
                try:
                    value = module(*args, **kwargs)
                except Exception as error:
                    if not any(argument_snapshot.changes()):
                        raise
                    value, failure = None, self._record_failure(error, module_name, task)
                finally:
                    self._end_calls(task)
                changed, contents = argument_snapshot.changes()
                skeleton, tensors = wire.pack((value, contents), self.model, argument_snapshot.shared)
                outputs = [materialize(output) for output in (*tensors, *(inputs[index] for index in changed))]
                changed_pairs = [
                    (input_index, output_index) for output_index, input_index in enumerate(changed, len(tensors))
                ]
                del inputs, argument_snapshot, value, contents, tensors
            record.has_calls = self.links_calls and task.calls > 1
            keeps_graph = request.modes.grad and record.keep_graph(outputs)
            with self._lock:
                if message.key in self._cancelled:
                    return
                if keeps_graph:
                    self._records[message.key] = record
                refs = [
                    None if index in request.eager_outputs else self.keep_tensor((*message.key, index), output)
                    for index, output in enumerate(outputs)
                ]
            bundle, buffers = TensorBundle.of(outputs, refs)
            attribute_changes = attribute_snapshot.changes(request.path)
            has_side_effects = (
                side_effects is None or task.speculation is not None or bool(attribute_changes) or side_effects.exist()
            )
            result = CallResult(
                skeleton=skeleton,
                outputs=bundle,
                state=self._state(task),
                changed=changed_pairs,
                failure=failure,
                attributes=attribute_changes,
                has_side_effects=has_side_effects,
            )
            if request.next_calls and is_followed(result, request.next_calls[0]):
                self._start_speculative_call(request.next_calls, result, outputs, caller)
            self._messenger.send(caller, RESULT, message.key, result, buffers)

    def _start_speculative_call(
        self, calls: tuple[SpeculativeCall, ...], result: CallResult, outputs: Sequence[Tensor], caller: int
    ) -> None:
        """Start the first of *calls*, which follows the call that gave *result* with *outputs* to *caller*."""
        first, *next_calls = calls
        request = make_request(first, tuple(next_calls), result, caller)
        if first.rank != self._messenger.me:
            buffers = wire.get_buffers([outputs[index] for index in first.inputs])
            self._messenger.send(first.rank, CALL, first.key, request, buffers)
            return
        self._drop(first.released)
        inputs = copy_inputs(first, result, outputs)
        message = Message(self._messenger.me, CALL, first.key, request, [])
        self.scheduler.start(Task(first.key, kind=first.path), lambda: self._serve_call(message, inputs))

    def _serve_backward(self, message: Message) -> None:
        request: GradientsMessage = message.payload
        caller = request.caller or (message.source, message.key)
        with self._report_failures(caller, GRADIENTS, "a backward pass"):
            record = self._records[request.call]
            received = self.receive_tensors(request.gradients, message.buffers)
            if message.source == self._messenger.me:  # From the call before, for this one alone.
                self._drop([ref.key for ref in request.gradients.refs if ref is not None])
            remaining = iter(received)
            gradients = record.backward([next(remaining) if is_present else None for is_present in request.present])
            gradients = [
                gradient.local_data() if isinstance(gradient, RemoteTensor) else gradient for gradient in gradients
            ]
            del remaining, received
            if record.is_finished:
                self._records.pop(request.call, None)
            if request.hops:
                self._forward_gradients(message.key, gradients, request.hops, caller)
                return
            # The gradient of an input that came as a reference stays here; others are sent to the caller.
            refs = [
                self.keep_tensor((*message.key, index), gradient) if ref is not None and gradient is not None else None
                for index, (gradient, ref) in enumerate(zip(gradients, record.refs, strict=True))
            ]
            answer, buffers = pack_gradients(request.call, gradients, refs, [])
            self._messenger.send(caller[0], GRADIENTS, caller[1], answer, buffers)

    def _forward_gradients(
        self,
        key: Key,
        input_gradients: Sequence[Tensor | None],
        hops: tuple[GradientHop, ...],
        caller: tuple[int, Key],
    ) -> None:
        """Send *input_gradients* to the next call of *hops*, of whose outputs they are the gradients."""
        hop = hops[0]
        output_gradients: list[Tensor | None] = [None] * hop.output_count
        for source_index, target_index in hop.index_pairs:
            gradient, total = input_gradients[source_index], output_gradients[target_index]
            output_gradients[target_index] = gradient if total is None or gradient is None else total + gradient
        is_local = hop.rank == self._messenger.me
        refs = [
            self.keep_tensor((*key, index), gradient) if is_local and gradient is not None else None
            for index, gradient in enumerate(output_gradients)
        ]
        released = [*hop.released, *self.pop_released(hop.rank)]
        request, buffers = pack_gradients(hop.call, output_gradients, refs, released, hops=hops[1:], caller=caller)
        if is_local:
            # Before this task ends: else another microbatch is next, and this one's gradient comes late.
            copies = [memoryview(bytearray(buffer)) for buffer in buffers]
            self._on_backward(Message(self._messenger.me, BACKWARD, hop.key, request, copies))
            return
        self._messenger.send(hop.rank, BACKWARD, hop.key, request, buffers)

    def _state(self, task: Task) -> bytes:
        state: bytes = self.scheduler.state_of(task).numpy().tobytes()
        return state

    @contextlib.contextmanager
    def _report_failures(self, caller: tuple[int, Key], kind: str, work: str) -> Iterator[None]:
        """Send an exception of the block, which does *work*, to the *caller* (its rank and the answer's key)."""
        try:
            yield
        except (Aborted, PeerLost):
            pass  # The step's main thread reports the reason.
        except BaseException as error:  # noqa: BLE001 - whatever the module raised, the caller must not wait for ever
            failure = self._record_failure(error, work, self.scheduler.task if kind == RESULT else None)
            with contextlib.suppress(PeerLost):
                self._messenger.send(caller[0], kind, caller[1], failure)

    def _record_failure(self, error: BaseException, work: str, task: Task | None) -> RemoteFailure:
        """Record *error*, which *work* raised in the call of *task*, and return the failure for the caller."""
        rank = self._messenger.me
        text = _describe_failure(to_remote_error(error), self.ranks.index(rank), rank, work)
        if to_remote_error(error) is error:
            self.own_failures[text] = error
        return RemoteFailure.of(error, text, self._state(task) if task is not None else b"")


class RemoteModuleCall:
    """One call of a module on another partition, and its backward pass. `changed` and `attributes`: as in CallResult.

    `result`: the skeleton of the module's result.
    """

    def __init__(
        self,
        agent: RpcAgent,
        task: Task,
        partition: int,
        path: str,
        skeleton: bytes,
        modes: AutogradModes,
        is_training: bool,
    ) -> None:
        self._agent = agent
        self._task = task
        self._partition = partition
        self._key: Key = ()
        self._path = path
        self._skeleton = skeleton
        self._modes = modes
        self._is_training = is_training
        self._backwards = 0
        self._metas: list[wire.TensorMeta] = []
        self._input_count = 0
        self._outputs: list[weakref.ref[Tensor]] = []
        self._get_gradients: Callable[[], list[Tensor | None]] | None = None
        self.result = b""
        self.changed: list[tuple[int, int]] = []
        self.attributes: Sequence[attributes.AttributeChange] = ()
        self.failure: RemoteFailure | None = None
        self.requires_grad: list[bool] = []
        self.hook_use = HookUse()
        self.gradient_link: GradientLink | None = None

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Return the output tensors; `result` is then the skeleton of the output."""
        agent, task = self._agent, self._task
        rank = agent.ranks[self._partition]
        eager_outputs = agent.eager_outputs(self._path)
        self._input_count = len(tensors)
        inputs, buffers = TensorBundle.of(tensors, [ref_of(tensor) for tensor in tensors])
        request = CallRequest(
            path=self._path,
            skeleton=self._skeleton,
            inputs=inputs,
            modes=self._modes,
            is_training=self._is_training,
            state=agent._state(task),
            eager_outputs=frozenset(eager_outputs),
            released=[],
        )
        self._key, reply = agent.request_call(task, rank, request, buffers)
        result: CallResult = reply.payload
        self.result, self.changed, self.failure = result.skeleton, result.changed, result.failure
        self.attributes = result.attributes
        self._metas = result.outputs.metas
        self.requires_grad = [meta.requires_grad for meta in self._metas]
        agent.scheduler.set_state(task, torch.frombuffer(bytearray(result.state), dtype=torch.uint8))
        if self._modes.grad and any(self.requires_grad):
            task.awaiting_backward.add(self._key)

        def resolve(meta: wire.TensorMeta, ref: TensorRef) -> Tensor:
            tensor = agent.make_remote_tensor(meta, ref, functools.partial(eager_outputs.add, ref.key[-1]))
            task.remote_outputs.append(weakref.ref(tensor))
            return tensor

        outputs = result.outputs.unpack(reply.buffers, agent.device, resolve)
        self._outputs = [weakref.ref(output) for output in outputs]
        return outputs

    @property
    def is_retained(self) -> bool:
        """True if `retain_grad` was called on an output."""
        return any(output.retains_grad for reference in self._outputs if (output := reference()) is not None)

    def begin_backward(self) -> None:
        """Drop the state of an earlier backward pass, which may have failed."""
        self.gradient_link = self._get_gradients = None

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the inputs' gradients."""
        task = self._agent.scheduler.task
        if task is None or not task.is_backward:
            raise SMPError(
                "expected model.backward(loss) in a function with @smp.step, found loss.backward(): "
                "call model.backward(loss), which runs the backward pass on all partitions"
            )
        self._task.awaiting_backward.discard(self._key)
        if self._get_gradients is None:
            self._request_gradients(task, gradients)
        get_gradients, self._get_gradients = self._get_gradients, None
        assert get_gradients is not None
        return get_gradients()

    def _request_gradients(self, task: Task, gradients: Sequence[Tensor | None]) -> None:
        """Request the backward pass of this call and of those linked to it; set `_get_gradients` of each."""
        agent, rank = self._agent, self._agent.ranks[self._partition]
        refs = [ref_of(gradient) for gradient in gradients]
        key = self._next_backward()
        hops: list[GradientHop] = []
        last = self
        while last.gradient_link is not None and len(hops) < MAX_HOPS:
            link = last.gradient_link
            last._get_gradients = functools.partial(last._make_placeholders, link)
            last = link.target
            hops.append(last._make_hop(link.index_pairs))
        request, buffers = pack_gradients(
            self._key, gradients, refs, agent.pop_released(rank), hops=tuple(hops), caller=None
        )
        reply = agent.exchange(task, rank, BACKWARD, key, request, buffers)
        answer: GradientsMessage = reply.payload
        remaining = iter(answer.gradients.unpack(reply.buffers, agent.device, agent.make_remote_tensor))
        input_gradients = [next(remaining) if is_present else None for is_present in answer.present]
        last._get_gradients = lambda: input_gradients

    def _next_backward(self) -> Key:
        self._backwards += 1
        return (*self._key, -self._backwards)

    def _make_hop(self, index_pairs: list[tuple[int, int]]) -> GradientHop:
        rank = self._agent.ranks[self._partition]
        return GradientHop(
            rank=rank,
            call=self._key,
            key=self._next_backward(),
            output_count=len(self._metas),
            index_pairs=index_pairs,
            released=self._agent.pop_released(rank),
        )

    def _make_placeholders(self, link: GradientLink) -> list[Tensor | None]:
        """Return gradients of the inputs for the engine alone: the linked call's owner has the true ones."""
        placeholders: list[Tensor | None] = [None] * self._input_count
        value = 0.0 if torch.is_anomaly_enabled() else math.nan  # NaN, so that nothing takes them for true ones.
        for source_index, target_index in link.index_pairs:
            meta = link.target._metas[target_index]
            device = self._agent.device if meta.on_accelerator else torch.device("cpu")
            gradient = torch.full((), value, dtype=wire.DTYPES[meta.dtype], device=device)
            placeholders[source_index] = gradient.expand(meta.shape)
        return placeholders


def _matches(speculative: SpeculativeCall, call: PredictedCall) -> bool:
    """Return whether the *speculative* call is the *call* that the script makes."""
    signature = CallSignature(
        rank=speculative.rank,
        path=speculative.path,
        skeleton=speculative.skeleton,
        modes=speculative.modes,
        is_training=speculative.is_training,
    )
    return call.call == signature and call.inputs == speculative.inputs


def _describe_failure(error: BaseException, partition: int, rank: int, work: str) -> str:
    if isinstance(error, RemoteStepError):
        return str(error)
    # Without the traceback, which that rank prints: in this message `train` would take it for this rank's own.
    return f"{work} failed on partition {partition} (rank {rank}): {type(error).__name__}: {error}"
