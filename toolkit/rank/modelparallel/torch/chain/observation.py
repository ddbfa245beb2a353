"""Observes one step in the module server, and makes a plan of the next steps from it, or the reason why not."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from toolkit.rank.frameworks.torch.tensors import pytree
from toolkit.rank.modelparallel.torch.attributes import AttributeSnapshot
from toolkit.rank.modelparallel.torch.chain.layout import Layout
from toolkit.rank.modelparallel.torch.messages import AutogradModes
from toolkit.rank.modelparallel.torch.remote import region


class LeafMeta(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: Any
    requires_grad: bool


class TreeMeta(NamedTuple):
    """The tensors that a module takes or returns. `spec`: their structure, a pytree's, as text."""

    spec: str
    leaves: tuple[LeafMeta, ...]


class StepObservation(NamedTuple):
    """The observations of one rank in a step."""

    outputs: dict[str, set[TreeMeta | str]]
    """By path: the outputs of the module's calls."""
    call_counts: dict[str, int]
    """By path: the number of the module's calls."""
    model_inputs: set[TreeMeta | str]
    """The inputs of the model's calls."""
    modes: set[AutogradModes]
    """The modes of the model's calls."""
    are_wrappers_plain: bool
    """True if the wrappers passed on their input and output unchanged."""
    inputs: tuple[int, ...] | None
    """The indices of the model's inputs among the leaves of the function's arguments, None: they are not among them."""
    draws_before: bool
    """True if the function drew random numbers before it called the model."""
    attributes: tuple[tuple[str, str], ...]
    """(path, name) of the attributes set by modules before the last stage: the last rank's function lacks them."""


class ChainPlan(NamedTuple):
    """The way in which the chain runs the steps of one signature."""

    microbatches: int
    """The number of microbatches."""
    has_backward: bool
    """True if the function calls model.backward."""
    modes: AutogradModes
    """The modes in which the function calls the model."""
    model_input: str
    """The structure of the model's argument."""
    inputs: tuple[int, ...] | None
    """As in StepObservation."""
    is_random: bool
    """True if the step draws random numbers."""
    outputs: tuple[TreeMeta, ...]
    """By device: the output of its stage."""


class StepObserver:
    """Observes the modules of *layout* on this rank until `close`.

    *split* are the (args, kwargs) of each microbatch, *states* those of its random numbers, on the rank that runs the
    user's function; on other ranks they are empty.
    """

    def __init__(self, layout: Layout, split: Sequence[tuple[Any, Any]], states: Sequence[Any]) -> None:
        self._layout = layout
        self._arguments = [pytree.tree_leaves(arguments) for arguments in split]
        self._outputs: dict[str, set[TreeMeta | str]] = {}
        self._call_counts: Counter[str] = Counter()
        self._model_inputs: set[TreeMeta | str] = set()
        self._modes: set[AutogradModes] = set()
        self._passed: list[list[tuple[Any, Any]]] = [[] for _ in layout.wrappers]
        self._draws_before = False
        self._snapshots = [
            (link.path, AttributeSnapshot(link.module)) for stage in layout.stages[:-1] for link in stage
        ]
        self._handles = [
            link.module.register_forward_hook(self._after_link(link.path)) for stage in layout.stages for link in stage
        ]
        if states:
            self._handles.append(layout.wrappers[0][1].register_forward_pre_hook(self._before_model(states)))
        self._handles += [
            module.register_forward_hook(self._on_wrapper(index), with_kwargs=True)
            for index, (_, module) in enumerate(layout.wrappers)
        ]

    def close(self) -> StepObservation:
        """Return the observations."""
        for handle in self._handles:
            handle.remove()
        observation = StepObservation(
            outputs=self._outputs,
            call_counts=dict(self._call_counts),
            model_inputs=self._model_inputs,
            modes=self._modes,
            are_wrappers_plain=len({frozenset(map(_identity, passed)) for passed in self._passed}) == 1,
            inputs=self._input_indices(),
            draws_before=self._draws_before,
            attributes=tuple(
                (change.path, change.name) for path, snapshot in self._snapshots for change in snapshot.changes(path)
            ),
        )
        self._passed, self._arguments, self._snapshots = [], [], []
        return observation

    def _before_model(self, states: Sequence[Any]) -> Any:
        def observe(_module: Any, _args: Any) -> None:
            state = torch.get_rng_state()
            self._draws_before = self._draws_before or not any(torch.equal(state, initial) for initial in states)

        return observe

    def _after_link(self, path: str) -> Any:
        def observe(_module: Any, _args: Any, output: Any) -> None:
            if region.again:
                return
            self._call_counts[path] += 1
            self._outputs.setdefault(path, set()).add(describe(output))

        return observe

    def _on_wrapper(self, index: int) -> Any:
        def observe(_module: Any, args: Any, kwargs: Any, output: Any) -> None:
            self._passed[index].append(((args, kwargs), output))
            if index == 0:
                self._call_counts["model"] += 1
                is_plain = len(args) == 1 and not kwargs
                self._model_inputs.add(describe(args[0]) if is_plain else "more than one argument")
                self._modes.add(AutogradModes.current())

        return observe

    def _input_indices(self) -> tuple[int, ...] | None:
        """Return the indices of the model's inputs in the function's arguments, None: not the same in all calls."""
        indices = set()
        for (args, _), _ in self._passed[0]:
            for arguments in self._arguments:
                index_by_id = {id(argument): index for index, argument in reversed(list(enumerate(arguments)))}
                call_indices = tuple(index_by_id.get(id(leaf)) for leaf in pytree.tree_leaves(args))
                if None not in call_indices:
                    break
            else:
                return None
            indices.add(call_indices)
        return indices.pop() if len(indices) == 1 else None  # type: ignore[return-value]


def describe(value: Any) -> TreeMeta | str:
    """Return the metadata of *value*; text, if it holds anything but tensors."""
    leaves, spec = pytree.tree_flatten(value)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            return f"a {type(leaf).__name__}"
    try:
        text = pytree.treespec_dumps(spec)
    except NotImplementedError:
        return f"a {type(value).__name__}"
    return TreeMeta(text, describe_leaves(leaves))


def describe_leaves(tensors: Sequence[Any]) -> tuple[LeafMeta, ...]:
    """Return the metadata of *tensors*."""
    return tuple(LeafMeta(tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in tensors)


def make_plan(
    layout: Layout,
    observations: Sequence[StepObservation],
    *,
    microbatches: int,
    backwards: int,
    is_random: bool,
    pipeline: str,
    active_microbatches: int,
) -> ChainPlan | str:
    """Return the plan for steps like the one of *observations*, by the pipeline's ranks; text: why there is none.

    *backwards*: the calls of model.backward in it. *is_random*: it drew random numbers.
    """
    first = next((observation for observation in observations if observation.modes), None)
    if first is None or first.call_counts["model"] != microbatches:
        return "the step function does not call the model once"
    if len(first.modes) != 1 or len(first.model_inputs) != 1:
        return "the step function calls the model in several ways"
    (modes,), (model_input,) = first.modes, first.model_inputs
    if backwards not in (0, microbatches):
        return "the step function does not call model.backward once"
    if isinstance(model_input, str):
        return f"the model's argument holds {model_input}"
    if any(leaf.requires_grad for leaf in model_input.leaves):
        return "the model's argument requires a gradient"
    if first.draws_before:
        return "the step function draws random numbers before it calls the model"
    if not first.are_wrappers_plain:
        return f"{type(layout.wrappers[0][1]).__name__}.forward does more than call what it holds"
    if attribute := next((observation.attributes[0] for observation in observations if observation.attributes), None):
        path, name = attribute
        return f"{path} sets its attribute {name}, which the step function would not see"
    outputs = _read_outputs(layout, observations, microbatches)
    if isinstance(outputs, str):
        return outputs
    devices = len(layout.stages)
    if backwards and pipeline == "interleaved" and active_microbatches < min(devices, microbatches):
        return f"active_microbatches {active_microbatches} is below the {devices} partitions"
    if not backwards:
        modes = modes._replace(grad=False)
        outputs = [
            TreeMeta(output.spec, tuple(leaf._replace(requires_grad=False) for leaf in output.leaves))
            for output in outputs
        ]
    return ChainPlan(
        microbatches=microbatches,
        has_backward=backwards > 0,
        modes=modes,
        model_input=model_input.spec,
        inputs=first.inputs,
        is_random=is_random,
        outputs=tuple(outputs),
    )


def _read_outputs(layout: Layout, observations: Sequence[StepObservation], microbatches: int) -> list[TreeMeta] | str:
    """Return the output of each stage; text: why it is not the same for each microbatch."""
    outputs: list[TreeMeta] = []
    for stage in layout.stages:
        for path, module, _ in stage:
            counts = {observation.call_counts[path] for observation in observations if path in observation.call_counts}
            if counts != {microbatches}:
                return f"{path} ({type(module).__name__}) is not called once"
        path, module, _ = stage[-1]
        stage_outputs = set().union(*(observation.outputs.get(path, set()) for observation in observations))
        if len(stage_outputs) != 1:
            return f"the output of {path} ({type(module).__name__}) differs between microbatches"
        (output,) = stage_outputs
        if isinstance(output, str):
            return f"the output of {path} ({type(module).__name__}) holds {output}"
        outputs.append(output)
    return outputs


def _identity(call: tuple[Any, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    (args, kwargs), output = call
    inputs = tuple(id(leaf) for leaf in pytree.tree_leaves((args, kwargs)))
    return inputs, tuple(id(leaf) for leaf in pytree.tree_leaves(output))
