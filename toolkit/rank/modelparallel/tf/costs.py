"""Builds the partitioner's view of a Keras model: the tree of its layers with their costs."""

import hashlib
import math
from collections import Counter
from typing import Any

from toolkit.parallelism.tree import Module
from toolkit.rank.modelparallel.tf import capture, layers
from toolkit.rank.modelparallel.tf.capture import ModelCapture
from toolkit.rank.modelparallel.tf.measuring import measure_layers


def fingerprint(model: Any) -> str:
    """Return a text that is equal for models of equal paths, classes and shapes of variables."""
    rows = [
        (path, type(layer).__name__, [tuple(variable.shape) for variable in layers.own_variables(layer)])
        for path, layer in layers.paths(model).items()
    ]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:32]


def build_tree(model: Any, captured: ModelCapture, *, is_timed: bool = True) -> Module:
    """Return the tree of *model* in the order of *captured*'s calls; *is_timed*: with the measured time of layers.

    Keras's own layers, and layers with variables of their own, are leaves of the tree: they stay undivided.
    """
    return _Tree(model, captured, is_timed=is_timed).module("", model)


class _Tree:
    def __init__(self, model: Any, captured: ModelCapture, *, is_timed: bool) -> None:
        self._captured = captured
        self._layers_by_path = layers.paths(model)
        self._first: dict[str, int] = {}
        for number, call in enumerate(captured.calls):
            self._first.setdefault(call.path, number)
        self._calls = Counter(call.path for call in captured.calls)
        self._holders: dict[int, list[str]] = {}
        self._counted: set[int] = set()
        leaves = set(self._leaves("", model))
        for path in leaves:
            for variable in layers.variables(self._layers_by_path[path]):
                self._holders.setdefault(id(variable), []).append(path)
        self._seconds = measure_layers(captured, leaves) if is_timed else {}

    def module(self, path: str, layer: Any) -> Module:
        """Return *layer*, at *path*, with the layers below it."""
        below = self._below(path, layer)
        children = tuple(self.module(name, child) for name, child in below)
        own_variables = layers.own_variables(layer) if below else layers.variables(layer)
        fresh = {id(variable): variable for variable in own_variables if id(variable) not in self._counted}
        self._counted.update(fresh)
        holders = {path for variable in own_variables for path in self._holders.get(id(variable), [])}
        calls = [call for call in self._captured.calls if call.path == path]
        output_bytes = sum(bytes_of(output.value) for call in calls for output in call.outputs)
        return Module(
            name=path,
            kind=type(layer).__name__,
            parameter_bytes=sum(map(bytes_of, fresh.values())) + sum(child.parameter_bytes for child in children),
            activation_bytes=sum(child.activation_bytes for child in children) + (0 if below else output_bytes),
            input_bytes=sum(bytes_of(value) for call in calls for value in _tensors(call.arguments)),
            output_bytes=output_bytes,
            compute_s=self._seconds.get(path, 0.0) + sum(child.compute_s for child in children),
            calls=self._calls[path] if path else 1,
            sequential=bool(children) and self._is_sequential(path, layer),
            shares=() if below else tuple(sorted(holders - {path})),
            children=children,
        )

    def _leaves(self, path: str, layer: Any) -> list[str]:
        below = self._below(path, layer)
        return (
            [leaf for name, child in below for leaf in self._leaves(name, child)] if below else [path] if path else []
        )

    def _below(self, path: str, layer: Any) -> list[tuple[str, Any]]:
        if path and not layers.is_divisible(layer):
            return []
        prefix = path + "." if path else ""
        held_layers = [(prefix + name, child) for name, child in layers.children(layer)]
        children = [(name, child) for name, child in held_layers if self._layers_by_path.get(name) is child]
        return sorted(children, key=lambda pair: self._first.get(pair[0], len(self._captured.calls)))

    def _is_sequential(self, path: str, layer: Any) -> bool:
        """Return whether *layer* only calls its children one after another, each with the result of the previous
        one."""
        if type(layer).__name__ == "Sequential":
            return True
        inside = self._first.get(path, -1)
        numbers = [number for number, call in enumerate(self._captured.calls) if call.inside == inside]
        paths = [self._captured.calls[number].path for number in numbers]
        if paths != [name for name, _ in self._below(path, layer)]:
            return False
        uses = capture.find_uses(self._captured, numbers)
        return all({source.call for source in uses_of_call} <= {place - 1} for place, uses_of_call in enumerate(uses))


def bytes_of(value: Any) -> int:
    """Return the bytes of *value*, a tensor or variable; unknown sizes count as 1."""
    import tensorflow as tf

    return int(math.prod(size or 1 for size in value.shape) * tf.as_dtype(value.dtype).size)


def _tensors(arguments: Any) -> list[Any]:
    import tensorflow as tf

    return [value for value in tf.nest.flatten(arguments) if tf.is_tensor(value)]
