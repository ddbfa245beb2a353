"""Looks at one call of the model in a graph of its own: which layers it calls, and which of their outputs each needs.

The graph is thrown away. What it teaches (`Capture`) makes the plan by which every rank then builds its own part.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import layers
from toolkit.rank.modelparallel.tf.manual import MANUAL
from toolkit.rank.modelparallel.tf.plan import Call, Plan, Source, make


class Output(NamedTuple):
    """A tensor that a call returned: *value*, or the Keras mask of the tensor before it."""

    value: Any
    is_mask: bool = False


class LayerCall(NamedTuple):
    """One call of the layer at *path*, whose operations have the numbers *first* to *end* - 1 in the graph.

    `inside` is the number of the call around it, -1: the model itself. `result` is what it returned.
    """

    path: str
    layer: Any
    inside: int
    first: int
    end: int
    arguments: Any
    result: Any
    outputs: tuple[Output, ...]
    is_in_main_graph: bool


class Capture(NamedTuple):
    """One call of the model: all calls of layers in order, parents first, and what the model returned."""

    graph: Any
    calls: tuple[LayerCall, ...]
    result: Any


def capture(model: Any, inputs: Any, call: Any) -> Capture:
    """Return what one call of *model* does; *call* is called with *inputs* (specs and values), in graphs of its own.

    Builds the model's layers where that has not happened.
    """
    import tensorflow as tf

    known = {id(layer): path for path, layer in layers.paths(model).items()}
    if not model.built or any(not layer.built for layer in layers.paths(model).values()):
        _traced(tf, call, inputs)
        known = {id(layer): path for path, layer in layers.paths(model).items()}
    recorder = _Recorder(known)
    with layers.calls_handled(recorder.handle):
        graph = _traced(tf, recorder.watched(call), inputs)
    return Capture(graph, tuple(recorder.calls), recorder.result)


def _traced(tf: Any, call: Any, inputs: Any) -> Any:
    with tf.init_scope():
        return tf.function(call, autograph=False).get_concrete_function(inputs).graph


class _Recorder:
    """Records the calls of the layers in *known*: id -> path."""

    def __init__(self, known: dict[int, str]) -> None:
        self.known = known
        self.calls: list[LayerCall] = []
        self.result: Any = None
        self._inside = -1
        self._main: Any = None

    def watched(self, call: Any) -> Any:
        import tensorflow as tf

        def watched(inputs: Any) -> Any:
            # tf.function may trace twice; the last time counts.
            self.calls, self._inside = [], -1
            self._main = tf.compat.v1.get_default_graph()
            self.result = call(inputs)
            return self.result

        return watched

    def handle(self, layer: Any, original: Any, args: Any, kwargs: Any) -> Any:
        import tensorflow as tf

        path = self.known.get(id(layer))
        if path is None:
            return original(layer, *args, **kwargs)
        MANUAL.assign(layer)
        graph = tf.compat.v1.get_default_graph()
        number, around = len(self.calls), self._inside
        here = graph is self._main
        first = len(graph.get_operations()) if here else 0
        self.calls.append(LayerCall(path, layer, around, first, first, (args, kwargs), None, (), here))
        self._inside = number
        try:
            result = marked(original(layer, *args, **kwargs))
        finally:
            self._inside = around
        end = len(graph.get_operations()) if here else 0
        self.calls[number] = self.calls[number]._replace(end=end, result=result, outputs=tuple(outputs_of(result)))
        return result


def marked(result: Any) -> Any:
    """Return *result* with tensors of its own: a layer that returns its input would hide who made it."""
    import tensorflow as tf

    def own(value: Any) -> Any:
        if not tf.is_tensor(value):
            return value
        made = tf.identity(value)
        mask = getattr(value, "_keras_mask", None)
        if mask is not None:
            made._keras_mask = tf.identity(mask)
        return made

    return tf.nest.map_structure(own, result)


def outputs_of(result: Any) -> Iterator[Output]:
    """Yield the tensors in *result*, each with its mask behind it."""
    import tensorflow as tf

    for value in tf.nest.flatten(result):
        if tf.is_tensor(value):
            yield Output(value)
            mask = getattr(value, "_keras_mask", None)
            if mask is not None:
                yield Output(mask, is_mask=True)


def undivided(found: Capture, devices: dict[str, int]) -> list[int]:
    """Return the numbers of the calls that run as a whole on one device; *devices*: path -> device of every layer."""
    chosen: set[int] = set()
    for number, call in enumerate(found.calls):
        if call.inside >= 0 and _within(found, call.inside, chosen):
            continue
        below = {device for path, device in devices.items() if path.startswith(call.path + ".")}
        if not layers.is_divisible(call.layer) or below <= {devices[call.path]}:
            chosen.add(number)
    return sorted(chosen)


def _within(found: Capture, number: int, chosen: set[int]) -> bool:
    while number >= 0:
        if number in chosen:
            return True
        number = found.calls[number].inside
    return False


def uses(found: Capture, chosen: list[int]) -> list[tuple[Source, ...]]:
    """Return what each of the calls with the numbers *chosen*, ascending, needs of the others' outputs."""
    walk = _Walk(found, chosen)
    return [walk.uses_of_call(number) for number in chosen]


def plan(found: Capture, devices: dict[str, int], costs: dict[str, float], count: int) -> tuple[Plan, list[int]]:
    """Return the plan of *found* on *count* devices, and the numbers of its undivided calls.

    Raises:
        SMPError: a layer is called inside a loop or a condition, or a tensor leaves a layer by another way than its
            result, or a variable is used outside any layer.
    """
    chosen = undivided(found, devices)
    walk = _Walk(found, chosen)
    unknown = sum(costs.values()) / len(costs) if costs else 1.0

    def cost_of(path: str) -> float:
        return costs.get(path, unknown) / sum(call.path == path for call in found.calls)

    calls = []
    for number in chosen:
        its = found.calls[number]
        if not its.is_in_main_graph and count > 1:
            raise SMPError(
                f"Layer {its.path!r} is called inside a tf.cond or tf.while_loop of the model's call: expected calls "
                "outside of them. Put the loop or the condition into a layer of its own, which then stays on one "
                "partition."
            )
        floats = tuple(_is_float(output.value) for output in its.outputs)
        needs = walk.uses_of_call(number)
        calls.append(Call(its.path, devices[its.path], needs, floats, cost_of(its.path)))
    # Nothing of the step function uses the masks of the model's own outputs.
    outputs = [walk.uses_of_tensor(output.value) for output in outputs_of(found.result) if not output.is_mask]
    return make(calls, outputs, count), chosen


def _is_float(value: Any) -> bool:
    return bool(value.dtype.is_floating or value.dtype.is_complex)


class _Walk:
    """Follows tensors of *found*'s graph back to the outputs of the calls with the numbers *chosen*."""

    def __init__(self, found: Capture, chosen: list[int]) -> None:
        self._found = found
        operations = found.graph.get_operations()
        self._operations = operations
        self._number = {operation.name: number for number, operation in enumerate(operations)}
        self._maker: dict[int, int] = {}  # operation's number -> call that made it
        self._sources: dict[str, Source] = {}
        for place, number in enumerate(chosen):
            its = found.calls[number]
            self._maker.update(dict.fromkeys(range(its.first, its.end), place))
            for output, made in enumerate(its.outputs):
                self._sources.setdefault(made.value.name, Source(place, output))
        self._chosen = chosen

    def uses_of_call(self, number: int) -> tuple[Source, ...]:
        its = self._found.calls[number]
        starts = [
            tensor
            for operation in self._operations[its.first : its.end]
            for tensor in operation.inputs
            if tensor.dtype.name != "resource"  # a variable of the layer, or one that it shares (`shared`)
            and not its.first <= self._number[tensor.op.name] < its.end
        ]
        return self._followed(starts)

    def uses_of_tensor(self, tensor: Any) -> tuple[Source, ...]:
        return self._followed([tensor])

    def _followed(self, rest: list[Any]) -> tuple[Source, ...]:
        found: set[Source] = set()
        seen: set[str] = set()
        while rest:
            tensor = rest.pop()
            if tensor.name in seen:
                continue
            seen.add(tensor.name)
            source = self._sources.get(tensor.name)
            if source is not None:
                found.add(source)
                continue
            self._check(tensor)
            rest += list(tensor.op.inputs)
        return tuple(sorted(found))

    def _check(self, tensor: Any) -> None:
        maker = self._maker.get(self._number[tensor.op.name])
        if maker is not None and tensor.op.type != "Placeholder":  # A Placeholder: a value from outside the graph.
            path = self._found.calls[self._chosen[maker]].path
            raise SMPError(
                f"A tensor made inside layer {path!r} ({tensor.op.name}) is used outside of it: expected only what its "
                "call returns. Return the tensor from the layer's call."
            )
        if tensor.dtype.name == "resource":
            raise SMPError(
                f"The model uses a variable ({tensor.op.name}) outside its layers, so that it has no partition. Put "
                "the variable into a layer of its own."
            )
