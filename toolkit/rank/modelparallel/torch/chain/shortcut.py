"""Chooses how a step runs: in the module server, there and watched, or by a plan that was made of a watched step."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.torch.api import state as smp_state
from toolkit.rank.modelparallel.torch.chain.chain_steps import Arguments, Split, Steps, why_not
from toolkit.rank.modelparallel.torch.chain.layout import Layout, NotAChainError, find
from toolkit.rank.modelparallel.torch.chain.observation import Plan, Seen, Watch, decide
from toolkit.rank.modelparallel.torch.chain.structure import Numbers, structure
from toolkit.rank.modelparallel.torch.messages import Setting

SWITCH = "TOOLKIT_SMP_CHAIN"
SERVER, WATCHED = "server", "watched"
SEEN, PLAN = "smp.chain.seen", "smp.chain.plan"
# Each plan keeps a thread for each microbatch. A job has a few kinds of steps; one that has more runs the others in the
# server.
MOST_KINDS = 64
# A number among the arguments may select a path in the model (a phase), or may count steps. So many of its values are
# told apart; from then on one plan is for all.
MOST_VALUES = 4
CHANGED = "the step function changes the modules, modes or hooks of the model"


class Shortcut:
    """The fast path of *model*, a DistributedModel. *here* is the World, *torch_device* where this rank's modules are.

    For each step, the first rank of the pipeline calls `choose` and tells the others its answer. For SERVER nothing
    else is called. For WATCHED all ranks call `watch` before the step, after the model is partitioned, and `settle`
    after it, or `forget` if it failed. For any other answer all ranks call `run` instead of the step.
    """

    def __init__(self, model: Any, here: Any, torch_device: Any, recorder: Recorder) -> None:
        self.why = ""  # Why the newest step is in the server, on the first rank; "" if it is watched.
        self._model = model
        self._here = here
        self._torch_device = torch_device
        self._recorder = recorder
        self._ranks: Sequence[int] = here.group("pp")
        self._device = here.rank_in("pp")
        self._why_off = f"{SWITCH} is off" if os.environ.get(SWITCH, "").lower() == "off" else ""
        self._whys: dict[Any, str] = {}
        self._numbers = Numbers()
        self._devices: dict[int, int] = {}  # Of each module that the partition placed, by its number.
        self._values: dict[Any, set[Any]] = {}
        self._steps: list[Steps] = []
        self._structures: list[Any] = []  # This rank's, when each of the steps was planned.
        self._chosen: dict[Any, str] = {}
        self._once: set[Any] = set()  # Kinds to watch once more: their attributes may have been first values.
        self._sets_attributes = False  # In the step that was watched last.
        self._watched: tuple[Any, Any] = (None, None)  # The kind of the step that is watched.
        self._structure: Any = None  # At its beginning.
        self._layout: Layout | str = ""  # Then; text: it is no chain, and why.
        self._watch: Watch | None = None

    def choose(self, function: Any, arguments: Arguments) -> str:
        """Return how a step of *function* with *arguments* runs."""
        if len(self._ranks) == 1:
            return SERVER
        self.why = self._why_off or why_not(arguments)
        if self.why:
            return SERVER
        kind = (self._kind(function, arguments), structure(self._model.module, self._numbers))
        if kind not in self._chosen:
            if len(self._chosen) + len(self._once) >= MOST_KINDS:
                self.why = f"there are more than {MOST_KINDS} kinds of steps: their arguments, or the model, change"
                return SERVER
            self._watched = kind
        self.why = self._whys.get(kind, "")
        return self._chosen.get(kind, WATCHED)

    def partitioned(self) -> None:
        """Note where each module is. All ranks call this when the model was partitioned."""
        for path, device in self._model.assignment().items():
            self._devices[self._numbers.of(self._model.module.get_submodule(path))] = device

    def watch(self, calls: Sequence[Arguments] = (), states: Sequence[Any] = ()) -> None:
        """Watch the step that begins; the first rank gives each microbatch's arguments and state of random numbers."""
        self._structure = structure(self._model.module, self._numbers)
        try:
            self._layout = find(self._model.module, self._device_of, len(self._ranks))
        except NotAChainError as why:
            self._layout = str(why)
            return
        self._watch = Watch(self._layout, calls, states)

    def settle(self, backwards: int = 0, is_random: bool = False) -> None:
        """Decide how steps like the watched one run. The first rank gives the calls of model.backward in it, and
        whether it drew random numbers."""
        seen = self._seen()
        messenger, first = self._here.messenger, self._ranks[0]
        if self._device:
            messenger.send(first, SEEN, None, seen)
            plan = messenger.receive(first, PLAN).payload
        else:
            others = [messenger.receive(rank, SEEN).payload for rank in self._ranks[1:]]
            plan = self._decide([seen, *others], backwards, is_random)
            for rank in self._ranks[1:]:
                messenger.send(rank, PLAN, None, plan)
        if isinstance(plan, str):
            chosen = SERVER
            self.why = plan
        else:
            chosen = str(len(self._steps))
            self._plan(plan)
        # The first step's partition gives modules of other ranks a forward of their own: both structures are this kind.
        call, before = self._watched
        kinds = {(call, before), (call, self._structure)}
        if self._sets_attributes and not kinds & self._once:
            self._once |= kinds
            return
        self._once -= kinds
        for kind in kinds:
            self._chosen[kind], self._whys[kind] = chosen, self.why

    def _device_of(self, path: str) -> int:
        module = self._model.module.get_submodule(path)
        device = self._devices.get(self._numbers.of(module))
        if device is None:
            raise NotAChainError(f"{path} ({type(module).__name__}) came after the model was partitioned")
        return device

    def _seen(self) -> Seen | str:
        """Return what this rank has seen of the step, or why it cannot be planned."""
        watch, self._watch = self._watch, None
        seen = watch.close() if watch is not None else None
        if structure(self._model.module, self._numbers) != self._structure:
            return CHANGED
        return seen or str(self._layout)

    def _decide(self, everybody: Sequence[Seen | str], backwards: int, is_random: bool) -> Plan | str:
        seen = [what for what in everybody if isinstance(what, Seen)]
        whys = [what for what in everybody if isinstance(what, str)]
        self._sets_attributes = any(each.attributes for each in seen)
        if whys or isinstance(self._layout, str):
            return whys[0]
        cfg = self._here.cfg
        return decide(
            self._layout,
            seen,
            microbatches=cfg.microbatches,
            backwards=backwards,
            is_random=is_random,
            pipeline=cfg.pipeline,
            active_microbatches=cfg.active_microbatches,
        )

    def _plan(self, plan: Plan) -> None:
        assert isinstance(self._layout, Layout)
        self._structures.append(self._structure)
        self._steps.append(
            Steps(
                plan,
                self._model,
                self._layout,
                pipeline=self._here.cfg.pipeline,
                messenger=self._here.messenger,
                ranks=self._ranks,
                device=self._device,
                group=smp_state.process_groups["pp"],
                torch_device=self._torch_device,
                recorder=self._recorder,
            )
        )

    def forget(self) -> None:
        """Give up watching."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def run(
        self,
        chosen: str,
        step: int,
        function: Any,
        arguments: Arguments,
        *,
        split: Split,
        states: Callable[[], Sequence[Any]],
    ) -> tuple[list[Any], bool]:
        """Run step *step* as *chosen*; return each microbatch's result, and whether it had a backward pass.

        *states* gives each microbatch's state of random numbers. See Steps.run for the others.
        """
        steps = self._steps[int(chosen)]
        is_known = not self._device or structure(self._model.module, self._numbers) == self._structures[int(chosen)]
        needed = states() if steps.plan.is_random and not self._device else ()
        scale = self._model.gradient_scale
        results = steps.run(step, function, arguments, split, scale, needed, is_known=is_known)
        return results, steps.plan.has_backward

    def _kind(self, function: Any, arguments: Arguments) -> Any:
        """Return what all steps of one plan have in common, beside the model's structure."""
        leaves, spec = pytree.tree_flatten(arguments)
        return (
            function,
            spec,
            tuple(self._form((function, spec, place), leaf) for place, leaf in enumerate(leaves)),
            Setting.here(),
            tuple(parameter.requires_grad for parameter in self._model.module.parameters()),
        )

    def _form(self, place: Any, leaf: Any) -> Any:
        """Return what counts of *leaf*, the argument at *place*."""
        if isinstance(leaf, torch.Tensor):
            return tuple(leaf.shape), leaf.dtype
        if leaf is None or isinstance(leaf, (bool, str)):
            return leaf
        if not isinstance(leaf, (int, float, complex, bytes)):
            return type(leaf)
        values = self._values.setdefault(place, set())
        if len(values) < MOST_VALUES:
            values.add(leaf)
        return (type(leaf), leaf) if leaf in values else type(leaf)
