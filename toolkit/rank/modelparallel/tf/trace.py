"""One trace of a step function: its calls of the model, microbatch by microbatch. Each rank builds its own part.

Every rank traces the whole step function for every microbatch. The layers of other partitions are not called: their
results are received, or, if this rank does not need them, replaced by unused values.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toolkit.rank.frameworks import keras as private_keras
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import boundary, capture, layers, recording, schedule
from toolkit.rank.modelparallel.tf.boundary import Address, GraphTransport
from toolkit.rank.modelparallel.tf.capture import ModelCapture
from toolkit.rank.modelparallel.tf.plan import CallPlan, LayerOutput
from toolkit.rank.modelparallel.tf.recording import ExchangePoint
from toolkit.rank.modelparallel.tf.schedule import Pass
from toolkit.rank.modelparallel.world import World


class ModelCall(NamedTuple):
    """The plan of one call of the model in the step function, and the capture from which it was made."""

    plan: CallPlan
    captured: ModelCapture
    chosen: list[int]


# The event that an operation performs: (microbatch, pass, kind of event, transfer).
Key = tuple[int, Pass, str, int]


class StepTrace:
    """Trace *number* of this process. The number is the same on all ranks, since all trace the same functions."""

    def __init__(self, world: World, number: int, microbatches: int, transport: GraphTransport) -> None:
        self.world = world
        self.transport = transport
        self.number = number
        self.microbatches = microbatches
        self.me = world.rank_in("pp")
        self.ranks = world.group("pp")
        self.microbatch = 0
        self.calls: list[ModelCall] = []
        self.anchors: list[Any] = []
        self.parameter_bytes = 0
        self._gradients: set[str] = set()  # names of tensors
        self._passes: list[list[Pass]] = [[] for _ in range(microbatches)]
        self._operations: dict[Key, tuple[Any, ExchangePoint | None]] = {}

    def begin(self, microbatch: int) -> None:
        """Begin *microbatch*: the following calls belong to it."""
        self.microbatch = microbatch

    def call_model(self, model: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return *model*'s result for this microbatch; *original* is Keras's own call of it."""
        partition = model.smp_partition
        number = sum(not model_pass.is_backward for model_pass in self._passes[self.microbatch])
        if number == len(self.calls):
            specs = _specs((args, kwargs))
            captured = capture.capture(model, specs, lambda arguments: original(*arguments[0], **arguments[1]))
            partition.settle(model, captured)
            self.parameter_bytes = partition.held_bytes()
            plan, chosen = capture.make_call_plan(
                captured, partition.devices, partition.costs, self.world.cfg.partitions
            )
            self.calls.append(ModelCall(plan, captured, chosen))
        if self.world.cfg.partitions == 1:
            return original(*args, **kwargs)
        self._passes[self.microbatch].append(Pass(number))
        return _ModelCallRun(self, number, partition.anchor(model)).run(original, args, kwargs)

    def note(
        self, model_pass: Pass, kind: str, transfer: int, operation: Any, point: ExchangePoint | None = None
    ) -> None:
        """Remember that *operation*, at *point* in the timeline, performs this event of the current microbatch."""
        self._operations[self.microbatch, model_pass, kind, transfer] = operation, point

    def begin_backward(self, call: int) -> Pass:
        """Begin one more backward pass through model call *call*, and return it."""
        passes = self._passes[self.microbatch]
        backward_pass = Pass(call, sum(model_pass.call == call and model_pass.is_backward for model_pass in passes))
        passes.append(backward_pass)
        return backward_pass

    def current_backward(self, call: int) -> Pass:
        """Return the backward pass through model call *call* that is running."""
        return max(model_pass for model_pass in self._passes[self.microbatch] if model_pass.call == call)

    def note_gradients(self, gradients: Sequence[Any]) -> None:
        """Remember that *gradients* are gradients, or sums of gradients."""
        import tensorflow as tf

        self._gradients.update(_tensor(gradient).name for gradient in gradients)
        backward_passes = [
            model_pass for model_pass in schedule.put_in_order(self._passes[self.microbatch]) if model_pass.is_backward
        ]
        if not backward_passes or (self.microbatch, backward_passes[-1], "end", -1) in self._operations:
            return
        plan = self.calls[backward_passes[-1].call].plan
        if plan.backward[self.me][-1].cost:
            with tf.control_dependencies([_tensor(gradient) for gradient in gradients]):
                self.transport.mark(
                    lambda _, operation, point: self.note(backward_passes[-1], "end", -1, operation, point)
                )

    def is_gradient(self, value: Any) -> bool:
        """True if *value* is made from gradients."""
        pending, visited = [_tensor(value)], set()
        while pending:
            tensor = pending.pop()
            if tensor.name in self._gradients:
                return True
            if tensor.name not in visited:
                visited.add(tensor.name)
                pending += list(tensor.op.inputs)
        return False

    def order_operations(self) -> list[Any]:
        """Return this rank's operations in the order in which they must run.

        Raises:
            SMPError: microbatches differ in their calls, or a backward pass leaves out a partition.
        """
        if not self.calls or self.world.cfg.partitions == 1:
            return []
        passes = [schedule.put_in_order(passes_of_microbatch) for passes_of_microbatch in self._passes]
        for number, passes_of_microbatch in enumerate(passes):
            if passes_of_microbatch != passes[0]:
                raise SMPError(
                    f"The step function calls the model or its gradients {len(passes[0])} times for microbatch 0 and "
                    f"{len(passes_of_microbatch)} times for microbatch {number}: expected the same for all."
                )
        cfg = self.world.cfg
        active = cfg.active_microbatches or self.microbatches
        plans = [call.plan for call in self.calls]
        scheduled = schedule.schedule_step(plans, passes[0], self.microbatches, cfg.pipeline, active)[self.me]
        operations, points = [], {}
        for number, (microbatch, model_pass, event) in enumerate(scheduled):
            operation, point = self._operations.get((microbatch, model_pass, event.kind, event.transfer), (None, None))
            if operation is None and event.kind == "end":
                continue
            if operation is None:
                raise SMPError(
                    "The step function asked for gradients that leave out variables of this partition: expected those "
                    "of all of model.trainable_variables. Use optimizer.get_gradients(loss, "
                    "model.trainable_variables)."
                )
            operations.append(operation)
            if point is not None:
                points[number] = point
        recording.assign_work(scheduled, points)
        return operations


class _ModelCallRun:
    """One call of the model, number *number*, for one microbatch on this rank."""

    def __init__(self, trace: StepTrace, number: int, anchor: Any) -> None:
        self.trace = trace
        self.number = number
        self.plan, self.captured, self.chosen = trace.calls[number]
        self.paths = {self.captured.calls[number].path for number in self.chosen}
        self.path_by_id = {id(call.layer): call.path for call in self.captured.calls}
        self.anchor = anchor
        self.tokens: list[Any] = []
        self.position = 0
        self.is_inside = False

    def run(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        import tensorflow as tf

        self.trace.anchors.append(self.anchor)
        gate = tf.no_op()
        self.trace.note(Pass(self.number), "start", -1, gate)
        flat = tf.nest.flatten((args, kwargs))
        with tf.control_dependencies([gate]):
            freed = iter(boundary.identities([value for value in flat if tf.is_tensor(value)]))
        flat = [next(freed) if tf.is_tensor(value) else value for value in flat]
        args, kwargs = tf.nest.pack_sequence_as((args, kwargs), flat)
        with layers.intercept_calls(self.handle):
            result = original(*args, **kwargs)
        if self.position != len(self.plan.calls):
            raise self._deviation_error(f"the call ended before {self.plan.calls[self.position].path!r}")
        return self.return_outputs(result)

    def handle(self, layer: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call *layer* if it is this rank's, else return a stand-in for its result."""
        path = self.path_by_id.get(id(layer))
        if self.is_inside or path not in self.paths:
            return original(layer, *args, **kwargs)
        position, self.position = self.position, self.position + 1
        if position >= len(self.plan.calls) or self.plan.calls[position].path != path:
            raise self._deviation_error(f"found {path!r}")
        if self.plan.calls[position].device != self.trace.me:
            return self.stand_in_for(position)
        self.is_inside = True
        try:
            result = original(layer, *args, **kwargs)
        finally:
            self.is_inside = False
        return self.send_outputs(position, result)

    def send_outputs(self, position: int, result: Any) -> Any:
        """Send the outputs of layer call *position* that other ranks need; return *result* with the sent tensors in
        it."""
        import tensorflow as tf

        numbers = iter(range(len(self.plan.calls[position].is_float)))

        def send(value: Any) -> Any:
            for transfer in self.plan.transfers_of(LayerOutput(position, next(numbers))):
                value = self.send(transfer, value)
            return value

        def convert(value: Any) -> Any:
            if not tf.is_tensor(value):
                return value
            mask = private_keras.find_mask(value)
            value = send(value)
            if mask is not None:
                private_keras.set_mask(value, send(mask))
            return value

        return tf.nest.map_structure(convert, result)

    def stand_in_for(self, position: int) -> Any:
        """Return a stand-in for the result of layer call *position* of another partition."""
        import tensorflow as tf

        numbers = iter(range(len(self.plan.calls[position].is_float)))

        def stand_in(value: Any) -> Any:
            transfer = self.plan.transfer_to(LayerOutput(position, next(numbers)), self.trace.me)
            return unused(value) if transfer is None else self.receive(transfer, value)

        def convert(value: Any) -> Any:
            if not tf.is_tensor(value):
                return value
            stand_in_value = stand_in(value)
            mask = private_keras.find_mask(value)
            if mask is not None:
                private_keras.set_mask(stand_in_value, stand_in(mask))
            return stand_in_value

        return tf.nest.map_structure(convert, self.captured.calls[self.chosen[position]].result)

    def return_outputs(self, result: Any) -> Any:
        """Return the model's *result*, equal on all ranks. Its gradients reach every operation of this rank's part."""
        import tensorflow as tf

        flat = tf.nest.flatten(result)
        captured_values = [output.value for output in capture.outputs_of(self.captured.result) if not output.is_mask]
        tensors = [value for value in flat if tf.is_tensor(value)]
        shared = [
            self.exchange_output(output, *values)
            for output, values in enumerate(zip(tensors, captured_values, strict=True))
        ]
        joined = iter(self.join(shared))
        return tf.nest.pack_sequence_as(result, [next(joined) if tf.is_tensor(value) else value for value in flat])

    def exchange_output(self, output: int, value: Any, captured: Any) -> Any:
        """Return the model's output number *output*: *value* if this rank made it, else the tensor that its owner
        sends."""
        import tensorflow as tf

        if self.plan.owners[output] == -1:
            return value
        for transfer in self.plan.output_transfers(output, self.trace.me):
            if self.plan.owners[output] == self.trace.me:
                value = self.send(transfer, value)
            else:
                value = tf.stop_gradient(self.receive(transfer, captured))
        return value

    def join(self, values: list[Any]) -> list[Any]:
        trace, microbatch, number = self.trace, self.trace.microbatch, self.number

        def turn() -> boundary.Note:
            backward_pass = trace.begin_backward(number)
            assert trace.microbatch == microbatch
            return lambda _direction, operation, _spot: trace.note(backward_pass, "turn", -1, operation)

        return boundary.join(values, self.tokens, turn)

    def send(self, transfer: int, value: Any) -> Any:
        planned = self.plan.transfers[transfer]
        target = Address(self.trace.ranks[planned.target], self.key(transfer))
        note = self.make_note(transfer, "send")
        if not planned.has_gradient:
            self.trace.transport.push(target, value, note, "forward")
            return value
        value, token = boundary.send(self.trace.transport, target, value, self.anchor, note)
        self.tokens.append(token)
        return value

    def receive(self, transfer: int, like: Any) -> Any:
        planned = self.plan.transfers[transfer]
        origin = Address(self.trace.ranks[planned.origin], self.key(transfer))
        note = self.make_note(transfer, "receive")
        if not planned.has_gradient:
            return self.trace.transport.pull(origin, like.dtype, like.shape, note, "forward")
        value, token = boundary.receive(self.trace.transport, origin, like.dtype, like.shape, self.anchor, note)
        self.tokens.append(token)
        return value

    def key(self, transfer: int) -> tuple[int, ...]:
        return (self.trace.number, self.trace.microbatch, self.number, transfer)

    def make_note(self, transfer: int, kind: str) -> boundary.Note:
        """Return the note for the operations of *transfer*; in a backward pass a send becomes a receive, and vice
        versa."""
        opposite = {"send": "receive", "receive": "send"}[kind]

        def note(direction: str, operation: Any, point: ExchangePoint | None) -> None:
            if direction == "forward":
                self.trace.note(Pass(self.number), kind, transfer, operation, point)
            else:
                self.trace.note(self.trace.current_backward(self.number), opposite, transfer, operation, point)

        return note

    def _deviation_error(self, deviation: str) -> SMPError:
        expected = [call.path for call in self.plan.calls]
        return SMPError(
            f"The model called other layers than when it was partitioned: expected {', '.join(expected)}; {deviation}. "
            "Its call must not depend on Python values that change."
        )


def _tensor(value: Any) -> Any:
    """Return *value*, or the values of IndexedSlices."""
    return getattr(value, "values", value)


def unused(like: Any) -> Any:
    """Return an unused tensor of the type and shape of *like*; TensorFlow removes the operations that depend on it."""
    import tensorflow as tf

    zeros = tf.zeros([size or 1 for size in like.shape.as_list()] if like.shape.rank is not None else [], like.dtype)
    return tf.compat.v1.placeholder_with_default(zeros, like.shape)


def _specs(inputs: Any) -> Any:
    import tensorflow as tf

    def spec(value: Any) -> Any:
        return tf.TensorSpec(value.shape, value.dtype) if tf.is_tensor(value) else value

    return tf.nest.map_structure(spec, inputs)
