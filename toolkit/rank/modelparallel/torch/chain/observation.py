"""Watches one step in the module server, and makes from it the plan of the next steps, or the reason why not."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from toolkit.rank.modelparallel.torch.attributes import Before
from toolkit.rank.modelparallel.torch.chain.layout import Layout
from toolkit.rank.modelparallel.torch.messages import Setting
from toolkit.rank.modelparallel.torch.remote import region


class Form(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: Any
    requires_grad: bool


class Tensors(NamedTuple):
    """What a module takes or gives: the structure (a pytree's, as text), and of each tensor its Form."""

    spec: str
    leaves: tuple[Form, ...]


class Seen(NamedTuple):
    """What the hooks of one rank saw.

    `outputs`: of a module's every call. `called`: how often. `settings`: of the whole model's calls. `wraps`: the
    wrappers passed on their input and output as they were. `inputs`: where the model's input is among the leaves of the
    function's arguments, None: it is none of them. `draws_before`: the function drew random numbers before it called
    the model. `attributes`: (path, name) of those that modules before the last stage got: the function does not see
    them from the last rank.
    """

    outputs: dict[str, set[Tensors | str]]
    called: dict[str, int]
    model_inputs: set[Tensors | str]
    settings: set[Setting]
    wraps: bool
    inputs: tuple[int, ...] | None
    draws_before: bool
    attributes: tuple[tuple[str, str], ...]


class Plan(NamedTuple):
    """How the chain runs the steps of one signature. `outputs[device]`: what its stage gives."""

    microbatches: int
    has_backward: bool
    setting: Setting
    model_input: str  # The structure of the model's argument.
    inputs: tuple[int, ...] | None
    is_random: bool
    outputs: tuple[Tensors, ...]


class Watch:
    """Watches the modules of *layout* on this rank until `close`.

    *split* are the (args, kwargs) of each microbatch, *states* those of its random numbers, on the rank that runs the
    user's function; elsewhere there are none.
    """

    def __init__(self, layout: Layout, split: Sequence[tuple[Any, Any]], states: Sequence[Any]) -> None:
        self._layout = layout
        self._arguments = [pytree.tree_leaves(each) for each in split]
        self._outputs: dict[str, set[Tensors | str]] = {}
        self._called: Counter[str] = Counter()
        self._model_inputs: set[Tensors | str] = set()
        self._settings: set[Setting] = set()
        self._passed: list[list[tuple[Any, Any]]] = [[] for _ in layout.wrappers]
        self._draws_before = False
        self._before = [(link.path, Before(link.module)) for stage in layout.stages[:-1] for link in stage]
        self._handles = [
            link.module.register_forward_hook(self._after_link(link.path)) for stage in layout.stages for link in stage
        ]
        if states:
            self._handles.append(layout.wrappers[0][1].register_forward_pre_hook(self._before_model(states)))
        self._handles += [
            module.register_forward_hook(self._on_wrapper(place), with_kwargs=True)
            for place, (_, module) in enumerate(layout.wrappers)
        ]

    def close(self) -> Seen:
        """Return what was seen."""
        for handle in self._handles:
            handle.remove()
        found = Seen(
            self._outputs,
            dict(self._called),
            self._model_inputs,
            self._settings,
            len({frozenset(map(_identity, passed)) for passed in self._passed}) == 1,
            self._where(),
            self._draws_before,
            tuple((each.path, each.name) for path, before in self._before for each in before.changes(path)),
        )
        self._passed, self._arguments, self._before = [], [], []
        return found

    def _before_model(self, states: Sequence[Any]) -> Any:
        def watch(_module: Any, _args: Any) -> None:
            state = torch.get_rng_state()
            self._draws_before = self._draws_before or not any(torch.equal(state, its) for its in states)

        return watch

    def _after_link(self, path: str) -> Any:
        def watch(_module: Any, _args: Any, output: Any) -> None:
            if region.again:
                return
            self._called[path] += 1
            self._outputs.setdefault(path, set()).add(described(output))

        return watch

    def _on_wrapper(self, place: int) -> Any:
        def watch(_module: Any, args: Any, kwargs: Any, output: Any) -> None:
            self._passed[place].append(((args, kwargs), output))
            if place == 0:
                self._called["model"] += 1
                is_plain = len(args) == 1 and not kwargs
                self._model_inputs.add(described(args[0]) if is_plain else "more than one argument")
                self._settings.add(Setting.here())

        return watch

    def _where(self) -> tuple[int, ...] | None:
        """Return the places of the model's inputs in the function's arguments, if they are the same in all calls."""
        places = set()
        for (args, _), _ in self._passed[0]:
            for arguments in self._arguments:
                known = {id(argument): place for place, argument in reversed(list(enumerate(arguments)))}
                found = tuple(known.get(id(leaf)) for leaf in pytree.tree_leaves(args))
                if None not in found:
                    break
            else:
                return None
            places.add(found)
        return places.pop() if len(places) == 1 else None  # type: ignore[return-value]


def described(value: Any) -> Tensors | str:
    """Return *value* as Tensors; text, where something in it is no tensor."""
    leaves, spec = pytree.tree_flatten(value)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            return f"a {type(leaf).__name__}"
    try:
        text = pytree.treespec_dumps(spec)
    except NotImplementedError:
        return f"a {type(value).__name__}"
    return Tensors(text, forms(leaves))


def forms(tensors: Sequence[Any]) -> tuple[Form, ...]:
    """Return the forms of *tensors*."""
    return tuple(Form(tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in tensors)


def decide(
    layout: Layout,
    seen: Sequence[Seen],
    *,
    microbatches: int,
    backwards: int,
    is_random: bool,
    pipeline: str,
    active_microbatches: int,
) -> Plan | str:
    """Return the plan for steps like the one that the pipeline's ranks have *seen*; text, why there is none.

    *backwards*: the calls of model.backward in it. *is_random*: it drew random numbers.
    """
    first = next((each for each in seen if each.settings), None)
    if first is None or first.called["model"] != microbatches:
        return "the step function does not call the model once"
    if len(first.settings) != 1 or len(first.model_inputs) != 1:
        return "the step function calls the model in several ways"
    (setting,), (given,) = first.settings, first.model_inputs
    if backwards not in (0, microbatches):
        return "the step function does not call model.backward once"
    if isinstance(given, str):
        return f"the model's argument holds {given}"
    if any(leaf.requires_grad for leaf in given.leaves):
        return "the model's argument requires a gradient"
    if first.draws_before:
        return "the step function draws random numbers before it calls the model"
    if not first.wraps:
        return f"{type(layout.wrappers[0][1]).__name__}.forward does more than call what it holds"
    if changed := next((each.attributes[0] for each in seen if each.attributes), None):
        path, name = changed
        return f"{path} sets its attribute {name}, which the step function would not see"
    outputs: list[Tensors] = []
    for stage in layout.stages:
        for path, module, _ in stage:
            times = {each.called[path] for each in seen if path in each.called}
            if times != {microbatches}:
                return f"{path} ({type(module).__name__}) is not called once"
        path, module, _ = stage[-1]
        found = set().union(*(each.outputs.get(path, set()) for each in seen))
        if len(found) != 1:
            return f"the output of {path} ({type(module).__name__}) differs between microbatches"
        (output,) = found
        if isinstance(output, str):
            return f"the output of {path} ({type(module).__name__}) holds {output}"
        outputs.append(output)
    devices = len(layout.stages)
    if backwards and pipeline == "interleaved" and active_microbatches < min(devices, microbatches):
        return f"active_microbatches {active_microbatches} is below the {devices} partitions"
    if not backwards:
        setting = setting._replace(grad=False)
        outputs = [
            Tensors(each.spec, tuple(leaf._replace(requires_grad=False) for leaf in each.leaves)) for each in outputs
        ]
    return Plan(microbatches, backwards > 0, setting, given.spec, first.inputs, is_random, tuple(outputs))


def _identity(call: tuple[Any, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    (args, kwargs), output = call
    inputs = tuple(id(leaf) for leaf in pytree.tree_leaves((args, kwargs)))
    return inputs, tuple(id(leaf) for leaf in pytree.tree_leaves(output))
