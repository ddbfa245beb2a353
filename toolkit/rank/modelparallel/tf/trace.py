"""One trace of a step function: its calls of the model, microbatch by microbatch, each rank building its own part.

Every rank traces the whole step function for every microbatch. The layers of other partitions are not called: what
they return is received, or, if this rank does not need it, a value that nothing uses.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import boundary, capture, layers, recording, schedule
from toolkit.rank.modelparallel.tf.boundary import Address, Post
from toolkit.rank.modelparallel.tf.capture import Capture
from toolkit.rank.modelparallel.tf.plan import Plan, Source
from toolkit.rank.modelparallel.tf.recording import Spot
from toolkit.rank.modelparallel.tf.schedule import Pass
from toolkit.rank.modelparallel.world import World


class ModelCall(NamedTuple):
    """The plan of one call of the model in the step function, and the capture it was made from."""

    plan: Plan
    found: Capture
    chosen: list[int]


# What an operation does: (microbatch, pass, kind of event, transfer).
Key = tuple[int, Pass, str, int]


class Trace:
    """The trace number *number* of this process: the same on all ranks, since all trace the same functions.

    *is_backward_first*: pipeline "interleaved".
    """

    def __init__(self, world: World, number: int, microbatches: int, post: Post) -> None:
        self.world = world
        self.post = post
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
        self._operations: dict[Key, tuple[Any, Spot | None]] = {}

    def begin(self, microbatch: int) -> None:
        """What follows is microbatch *microbatch*."""
        self.microbatch = microbatch

    def call_model(self, model: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return what *model* returns for this microbatch; *original* is Keras's own call of it."""
        partition = model.smp_partition
        number = sum(not its.is_backward for its in self._passes[self.microbatch])
        if number == len(self.calls):
            specs = _specs((args, kwargs))
            found = capture.capture(model, specs, lambda both: original(*both[0], **both[1]))
            partition.settle(model, found)
            self.parameter_bytes = partition.held_bytes()
            plan, chosen = capture.plan(found, partition.devices, partition.costs, self.world.cfg.partitions)
            self.calls.append(ModelCall(plan, found, chosen))
        if self.world.cfg.partitions == 1:
            return original(*args, **kwargs)
        self._passes[self.microbatch].append(Pass(number))
        return _Run(self, number, partition.anchor(model)).through(original, args, kwargs)

    def note(self, its: Pass, kind: str, transfer: int, operation: Any, spot: Spot | None = None) -> None:
        """Remember that *operation*, at *spot* in the timeline, does this event of the present microbatch."""
        self._operations[self.microbatch, its, kind, transfer] = operation, spot

    def turned(self, call: int) -> Pass:
        """Return the pass that begins now: one more backward pass through model call *call*."""
        passes = self._passes[self.microbatch]
        found = Pass(call, sum(its.call == call and its.is_backward for its in passes))
        passes.append(found)
        return found

    def turn_of(self, call: int) -> Pass:
        """Return the backward pass through model call *call* that is under way."""
        return max(its for its in self._passes[self.microbatch] if its.call == call)

    def differentiated(self, gradients: Sequence[Any]) -> None:
        """Remember that *gradients* are gradients, or made of several."""
        import tensorflow as tf

        self._gradients.update(_tensor(gradient).name for gradient in gradients)
        turned = [its for its in schedule.in_order(self._passes[self.microbatch]) if its.is_backward]
        if not turned or (self.microbatch, turned[-1], "end", -1) in self._operations:
            return
        plan = self.calls[turned[-1].call].plan
        if plan.backward[self.me][-1].cost:
            with tf.control_dependencies([_tensor(gradient) for gradient in gradients]):
                self.post.mark(lambda _, operation, spot: self.note(turned[-1], "end", -1, operation, spot))

    def is_gradient(self, value: Any) -> bool:
        """True if *value* is made from gradients."""
        rest, seen = [_tensor(value)], set()
        while rest:
            tensor = rest.pop()
            if tensor.name in self._gradients:
                return True
            if tensor.name not in seen:
                seen.add(tensor.name)
                rest += list(tensor.op.inputs)
        return False

    def ordered(self) -> list[Any]:
        """Return this rank's operations in the order in which they must run.

        Raises:
            SMPError: microbatches differ in what they do, or a backward pass leaves out a partition.
        """
        if not self.calls or self.world.cfg.partitions == 1:
            return []
        passes = [schedule.in_order(each) for each in self._passes]
        for number, each in enumerate(passes):
            if each != passes[0]:
                raise SMPError(
                    f"The step function calls the model or its gradients {len(passes[0])} times for microbatch 0 and "
                    f"{len(each)} times for microbatch {number}: expected the same for all."
                )
        cfg = self.world.cfg
        active = cfg.active_microbatches or self.microbatches
        plans = [its.plan for its in self.calls]
        items = schedule.order(plans, passes[0], self.microbatches, cfg.pipeline, active)[self.me]
        found, spots = [], {}
        for number, (microbatch, its, event) in enumerate(items):
            operation, spot = self._operations.get((microbatch, its, event.kind, event.transfer), (None, None))
            if operation is None and event.kind == "end":
                continue
            if operation is None:
                raise SMPError(
                    "The step function asked for gradients that leave out variables of this partition: expected those "
                    "of all of model.trainable_variables. Use optimizer.get_gradients(loss, "
                    "model.trainable_variables)."
                )
            found.append(operation)
            if spot is not None:
                spots[number] = spot
        recording.assigned(items, spots)
        return found


class _Run:
    """One call of the model for one microbatch on this rank; it is model call *number*."""

    def __init__(self, trace: Trace, number: int, anchor: Any) -> None:
        self.trace = trace
        self.number = number
        self.plan, self.found, self.chosen = trace.calls[number]
        self.paths = {self.found.calls[each].path for each in self.chosen}
        self.known = {id(call.layer): call.path for call in self.found.calls}
        self.anchor = anchor
        self.tokens: list[Any] = []
        self.place = 0
        self.is_inside = False

    def through(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        import tensorflow as tf

        self.trace.anchors.append(self.anchor)
        gate = tf.no_op()
        self.trace.note(Pass(self.number), "start", -1, gate)
        flat = tf.nest.flatten((args, kwargs))
        with tf.control_dependencies([gate]):
            freed = iter(boundary.together([value for value in flat if tf.is_tensor(value)]))
        flat = [next(freed) if tf.is_tensor(value) else value for value in flat]
        args, kwargs = tf.nest.pack_sequence_as((args, kwargs), flat)
        with layers.calls_handled(self.handle):
            result = original(*args, **kwargs)
        if self.place != len(self.plan.calls):
            raise self._another_way(f"the call ended before {self.plan.calls[self.place].path!r}")
        return self.told(result)

    def handle(self, layer: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call *layer* if it is this rank's, or return what stands for its result."""
        path = self.known.get(id(layer))
        if self.is_inside or path not in self.paths:
            return original(layer, *args, **kwargs)
        place, self.place = self.place, self.place + 1
        if place >= len(self.plan.calls) or self.plan.calls[place].path != path:
            raise self._another_way(f"found {path!r}")
        if self.plan.calls[place].device != self.trace.me:
            return self.absent(place)
        self.is_inside = True
        try:
            result = original(layer, *args, **kwargs)
        finally:
            self.is_inside = False
        return self.sent(place, result)

    def sent(self, place: int, result: Any) -> Any:
        """Send the outputs of layer call *place* that others need; return *result* with those that take part in it."""
        import tensorflow as tf

        numbers = iter(range(len(self.plan.calls[place].is_float)))

        def send(value: Any) -> Any:
            for transfer in self.plan.sent(Source(place, next(numbers))):
                value = self.send(transfer, value)
            return value

        def both(value: Any) -> Any:
            if not tf.is_tensor(value):
                return value
            mask = getattr(value, "_keras_mask", None)
            value = send(value)
            if mask is not None:
                value._keras_mask = send(mask)
            return value

        return tf.nest.map_structure(both, result)

    def absent(self, place: int) -> Any:
        """Return what stands for the result of layer call *place*, of another partition."""
        import tensorflow as tf

        numbers = iter(range(len(self.plan.calls[place].is_float)))

        def stand_in(value: Any) -> Any:
            transfer = self.plan.received(Source(place, next(numbers)), self.trace.me)
            return unused(value) if transfer is None else self.receive(transfer, value)

        def both(value: Any) -> Any:
            if not tf.is_tensor(value):
                return value
            made = stand_in(value)
            mask = getattr(value, "_keras_mask", None)
            if mask is not None:
                made._keras_mask = stand_in(mask)
            return made

        return tf.nest.map_structure(both, self.found.calls[self.chosen[place]].result)

    def told(self, result: Any) -> Any:
        """Return the model's *result*, the same on all ranks, such that its gradients reach all of this rank's part."""
        import tensorflow as tf

        flat = tf.nest.flatten(result)
        seen = [output.value for output in capture.outputs_of(self.found.result) if not output.is_mask]
        tensors = [value for value in flat if tf.is_tensor(value)]
        shared = [self.shown(output, *both) for output, both in enumerate(zip(tensors, seen, strict=True))]
        joined = iter(self.joined(shared))
        return tf.nest.pack_sequence_as(result, [next(joined) if tf.is_tensor(value) else value for value in flat])

    def shown(self, output: int, value: Any, seen: Any) -> Any:
        """Return the model's output number *output*: *value* if this rank made it, else what its maker sends."""
        import tensorflow as tf

        if self.plan.owners[output] == -1:
            return value
        for transfer in self.plan.shown(output, self.trace.me):
            if self.plan.owners[output] == self.trace.me:
                value = self.send(transfer, value)
            else:
                value = tf.stop_gradient(self.receive(transfer, seen))
        return value

    def joined(self, values: list[Any]) -> list[Any]:
        trace, microbatch, number = self.trace, self.trace.microbatch, self.number

        def turn() -> boundary.Note:
            its = trace.turned(number)
            assert trace.microbatch == microbatch
            return lambda _direction, operation, _spot: trace.note(its, "turn", -1, operation)

        return boundary.join(values, self.tokens, turn)

    def send(self, transfer: int, value: Any) -> Any:
        its = self.plan.transfers[transfer]
        to = Address(self.trace.ranks[its.target], self.key(transfer))
        note = self.noted(transfer, "send")
        if not its.has_gradient:
            self.trace.post.push(to, value, note, "forward")
            return value
        value, token = boundary.send(self.trace.post, to, value, self.anchor, note)
        self.tokens.append(token)
        return value

    def receive(self, transfer: int, like: Any) -> Any:
        its = self.plan.transfers[transfer]
        origin = Address(self.trace.ranks[its.origin], self.key(transfer))
        note = self.noted(transfer, "receive")
        if not its.has_gradient:
            return self.trace.post.pull(origin, like.dtype, like.shape, note, "forward")
        value, token = boundary.receive(self.trace.post, origin, like.dtype, like.shape, self.anchor, note)
        self.tokens.append(token)
        return value

    def key(self, transfer: int) -> tuple[int, ...]:
        return (self.trace.number, self.trace.microbatch, self.number, transfer)

    def noted(self, transfer: int, kind: str) -> boundary.Note:
        """Return the note for the operations of *transfer*; in a backward pass a send is a receive, and vice versa."""
        other = {"send": "receive", "receive": "send"}[kind]

        def note(direction: str, operation: Any, spot: Spot | None) -> None:
            if direction == "forward":
                self.trace.note(Pass(self.number), kind, transfer, operation, spot)
            else:
                self.trace.note(self.trace.turn_of(self.number), other, transfer, operation, spot)

        return note

    def _another_way(self, found: str) -> SMPError:
        expected = [call.path for call in self.plan.calls]
        return SMPError(
            f"The model called other layers than when it was partitioned: expected {', '.join(expected)}; {found}. Its "
            "call must not depend on Python values that change."
        )


def _tensor(value: Any) -> Any:
    """Return *value*, or the values of IndexedSlices."""
    return getattr(value, "values", value)


def unused(like: Any) -> Any:
    """Return a tensor of the type and shape of *like* for whom nobody asks: TensorFlow removes what comes of it."""
    import tensorflow as tf

    zeros = tf.zeros([size or 1 for size in like.shape.as_list()] if like.shape.rank is not None else [], like.dtype)
    return tf.compat.v1.placeholder_with_default(zeros, like.shape)


def _specs(inputs: Any) -> Any:
    import tensorflow as tf

    def spec(value: Any) -> Any:
        return tf.TensorSpec(value.shape, value.dtype) if tf.is_tensor(value) else value

    return tf.nest.map_structure(spec, inputs)
