"""Captures one call of the model in a separate graph: the layers that it calls, and the outputs that each needs.

The graph is discarded. From the result (`ModelCapture`) the plan is made by which every rank builds its own part.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from toolkit.rank.frameworks import keras as private_keras
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import layers
from toolkit.rank.modelparallel.tf.manual import MANUAL
from toolkit.rank.modelparallel.tf.plan import CallPlan, LayerOutput, PlannedCall, make_plan


class CapturedOutput(NamedTuple):
    """A tensor that a call returned: *value*, or the Keras mask of the tensor before it."""

    value: Any
    is_mask: bool = False


class LayerCall(NamedTuple):
    """One call of a layer."""

    path: str
    """The path of the layer."""
    layer: Any
    """The layer."""
    inside: int
    """The number of the call around it; -1: the model itself."""
    first: int
    """The number of its first operation in the graph."""
    end: int
    """One more than the number of its last operation."""
    arguments: Any
    """The positional and the keyword arguments."""
    result: Any
    """The returned value."""
    outputs: tuple[CapturedOutput, ...]
    """The tensors in `result`, with their masks."""
    is_in_main_graph: bool
    """False inside a loop or a condition."""


class ModelCapture(NamedTuple):
    """One call of the model: all calls of layers in order, parents first, and the returned value."""

    graph: Any
    calls: tuple[LayerCall, ...]
    result: Any


def capture(model: Any, inputs: Any, call: Any) -> ModelCapture:
    """Return the capture of one call of *model*: *call* is called with *inputs* (specs and values), in separate graphs.

    Builds the model's layers if they are not built.
    """
    import tensorflow as tf

    path_by_id = {id(layer): path for path, layer in layers.paths(model).items()}
    if not model.built or any(not layer.built for layer in layers.paths(model).values()):
        _trace_graph(tf, call, inputs)
        path_by_id = {id(layer): path for path, layer in layers.paths(model).items()}
    recorder = _Recorder(path_by_id)
    with layers.intercept_calls(recorder.handle):
        graph = _trace_graph(tf, recorder.record_call(call), inputs)
    return ModelCapture(graph, tuple(recorder.calls), recorder.result)


def _trace_graph(tf: Any, call: Any, inputs: Any) -> Any:
    with tf.init_scope():
        return tf.function(call, autograph=False).get_concrete_function(inputs).graph


class _Recorder:
    """Records the calls of the layers in *known*: id -> path."""

    def __init__(self, path_by_id: dict[int, str]) -> None:
        self.known = path_by_id
        self.calls: list[LayerCall] = []
        self.result: Any = None
        self._inside = -1
        self._main: Any = None

    def record_call(self, call: Any) -> Any:
        import tensorflow as tf

        def record_call(inputs: Any) -> Any:
            # tf.function may trace twice; the last time counts.
            self.calls, self._inside = [], -1
            self._main = tf.compat.v1.get_default_graph()
            self.result = call(inputs)
            return self.result

        return record_call

    def handle(self, layer: Any, original: Any, args: Any, kwargs: Any) -> Any:
        import tensorflow as tf

        path = self.known.get(id(layer))
        if path is None:
            return original(layer, *args, **kwargs)
        MANUAL.assign(layer)
        graph = tf.compat.v1.get_default_graph()
        number, outer_call = len(self.calls), self._inside
        is_in_main_graph = graph is self._main
        first = len(graph.get_operations()) if is_in_main_graph else 0
        self.calls.append(LayerCall(path, layer, outer_call, first, first, (args, kwargs), None, (), is_in_main_graph))
        self._inside = number
        try:
            result = with_copied_tensors(original(layer, *args, **kwargs))
        finally:
            self._inside = outer_call
        end = len(graph.get_operations()) if is_in_main_graph else 0
        self.calls[number] = self.calls[number]._replace(end=end, result=result, outputs=tuple(outputs_of(result)))
        return result


def with_copied_tensors(result: Any) -> Any:
    """Return *result* with copied tensors: a layer that returns its input would hide the layer that made it."""
    import tensorflow as tf

    def copy_tensor(value: Any) -> Any:
        if not tf.is_tensor(value):
            return value
        copy = tf.identity(value)
        mask = private_keras.find_mask(value)
        if mask is not None:
            private_keras.set_mask(copy, tf.identity(mask))
        return copy

    return tf.nest.map_structure(copy_tensor, result)


def outputs_of(result: Any) -> Iterator[CapturedOutput]:
    """Yield the tensors in *result*, each with its mask behind it."""
    import tensorflow as tf

    for value in tf.nest.flatten(result):
        if tf.is_tensor(value):
            yield CapturedOutput(value)
            mask = private_keras.find_mask(value)
            if mask is not None:
                yield CapturedOutput(mask, is_mask=True)


def find_undivided(captured: ModelCapture, devices: dict[str, int]) -> list[int]:
    """Return the numbers of the calls that run as a whole on one device; *devices*: path -> device of every layer."""
    chosen: set[int] = set()
    for number, call in enumerate(captured.calls):
        if call.inside >= 0 and _within(captured, call.inside, chosen):
            continue
        below = {device for path, device in devices.items() if path.startswith(call.path + ".")}
        if not layers.is_divisible(call.layer) or below <= {devices[call.path]}:
            chosen.add(number)
    return sorted(chosen)


def _within(captured: ModelCapture, number: int, chosen: set[int]) -> bool:
    while number >= 0:
        if number in chosen:
            return True
        number = captured.calls[number].inside
    return False


def find_uses(captured: ModelCapture, chosen: list[int]) -> list[tuple[LayerOutput, ...]]:
    """Return, for each of the calls with the numbers *chosen*, ascending, the outputs of the other calls that it
    needs."""
    walk = _TensorWalk(captured, chosen)
    return [walk.uses_of_call(number) for number in chosen]


def make_call_plan(
    captured: ModelCapture, devices: dict[str, int], costs: dict[str, float], count: int
) -> tuple[CallPlan, list[int]]:
    """Return the plan of *captured* on *count* devices, and the numbers of its undivided calls.

    Raises:
        SMPError: a layer is called inside a loop or a condition, or a tensor leaves a layer without being part of
            its result, or a variable is used outside any layer.
    """
    chosen = find_undivided(captured, devices)
    walk = _TensorWalk(captured, chosen)
    unknown = sum(costs.values()) / len(costs) if costs else 1.0

    def cost_of(path: str) -> float:
        return costs.get(path, unknown) / sum(call.path == path for call in captured.calls)

    calls = []
    for number in chosen:
        call = captured.calls[number]
        if not call.is_in_main_graph and count > 1:
            raise SMPError(
                f"Layer {call.path!r} is called inside a tf.cond or tf.while_loop of the model's call: expected calls "
                "outside of them. Put the loop or the condition into a layer of its own, which then stays on one "
                "partition."
            )
        floats = tuple(_is_float(output.value) for output in call.outputs)
        needs = walk.uses_of_call(number)
        calls.append(PlannedCall(call.path, devices[call.path], needs, floats, cost_of(call.path)))
    # Nothing of the step function uses the masks of the model's own outputs.
    outputs = [walk.uses_of_tensor(output.value) for output in outputs_of(captured.result) if not output.is_mask]
    return make_plan(calls, outputs, count), chosen


def _is_float(value: Any) -> bool:
    return bool(value.dtype.is_floating or value.dtype.is_complex)


class _TensorWalk:
    """Follows tensors of *found*'s graph back to the outputs of the calls with the numbers *chosen*."""

    def __init__(self, captured: ModelCapture, chosen: list[int]) -> None:
        self._captured = captured
        operations = captured.graph.get_operations()
        self._operations = operations
        self._number = {operation.name: number for number, operation in enumerate(operations)}
        self._maker: dict[int, int] = {}  # operation's number -> call that made it
        self._sources: dict[str, LayerOutput] = {}
        for place, number in enumerate(chosen):
            call = captured.calls[number]
            self._maker.update(dict.fromkeys(range(call.first, call.end), place))
            for index, output in enumerate(call.outputs):
                self._sources.setdefault(output.value.name, LayerOutput(place, index))
        self._chosen = chosen

    def uses_of_call(self, number: int) -> tuple[LayerOutput, ...]:
        call = self._captured.calls[number]
        starts = [
            tensor
            for operation in self._operations[call.first : call.end]
            for tensor in operation.inputs
            if tensor.dtype.name != "resource"  # a variable of the layer, or one that it shares (`shared`)
            and not call.first <= self._number[tensor.op.name] < call.end
        ]
        return self._follow(starts)

    def uses_of_tensor(self, tensor: Any) -> tuple[LayerOutput, ...]:
        return self._follow([tensor])

    def _follow(self, pending: list[Any]) -> tuple[LayerOutput, ...]:
        sources: set[LayerOutput] = set()
        visited: set[str] = set()
        while pending:
            tensor = pending.pop()
            if tensor.name in visited:
                continue
            visited.add(tensor.name)
            source = self._sources.get(tensor.name)
            if source is not None:
                sources.add(source)
                continue
            self._check(tensor)
            pending += list(tensor.op.inputs)
        return tuple(sorted(sources))

    def _check(self, tensor: Any) -> None:
        maker = self._maker.get(self._number[tensor.op.name])
        if maker is not None and tensor.op.type != "Placeholder":  # A Placeholder: a value from outside the graph.
            path = self._captured.calls[self._chosen[maker]].path
            raise SMPError(
                f"A tensor made inside layer {path!r} ({tensor.op.name}) is used outside of it: expected only what its "
                "call returns. Return the tensor from the layer's call."
            )
        if tensor.dtype.name == "resource":
            raise SMPError(
                f"The model uses a variable ({tensor.op.name}) outside its layers, so that it has no partition. Put "
                "the variable into a layer of its own."
            )
