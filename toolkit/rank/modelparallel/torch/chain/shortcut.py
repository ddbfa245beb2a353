"""Chooses how a step runs: in the module server, there and observed, or by a plan made from an observed step."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from toolkit.rank.frameworks.torch.distributed import can_run_chains
from toolkit.rank.frameworks.torch.tensors import pytree
from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.torch.api import state as smp_state
from toolkit.rank.modelparallel.torch.chain.chain_steps import Arguments, ChainSteps, Split, find_refusal
from toolkit.rank.modelparallel.torch.chain.layout import Layout, NotAChainError, find_layout
from toolkit.rank.modelparallel.torch.chain.observation import ChainPlan, StepObservation, StepObserver, make_plan
from toolkit.rank.modelparallel.torch.chain.structure import Numbers, describe_structure
from toolkit.rank.modelparallel.torch.messages import AutogradModes

SWITCH = "TOOLKIT_SMP_CHAIN"
SERVER, OBSERVED = "server", "observed"
OBSERVATION, PLAN = "smp.chain.observation", "smp.chain.plan"
# Each plan keeps a thread for each microbatch. A job has a few kinds of steps; one that has more runs the others in the
# server.
MAX_KINDS = 64
# A number among the arguments may select a path in the model (a phase), or may count steps. So many of its values have
# plans of their own; from then on one plan is for all.
MAX_VALUES = 4
CHANGED = "the step function changes the modules, modes or hooks of the model"


class Shortcut:
    """The fast path of *model*, a DistributedModel. *torch_device*: that of this rank's modules.

    For each step, the first rank of the pipeline calls `choose` and sends its answer to the others. For SERVER nothing
    else is called. For OBSERVED all ranks call `observe` before the step, after the model is partitioned, and
    `plan_steps` after it, or `stop_observing` if it failed. For any other answer all ranks call `run` instead of the
    step.
    """

    def __init__(self, model: Any, this_world: Any, torch_device: Any, recorder: Recorder) -> None:
        self.reason = ""  # The reason why the newest step is in the server, on the first rank; "" if it is observed.
        self._model = model
        self._world = this_world
        self._torch_device = torch_device
        self._recorder = recorder
        self._ranks: Sequence[int] = this_world.group("pp")
        self._device = this_world.rank_in("pp")
        self._off_reason = f"{SWITCH} is off" if os.environ.get(SWITCH, "").lower() == "off" else ""
        self._reasons: dict[Any, str] = {}
        self._numbers = Numbers()
        self._devices: dict[int, int] = {}  # Of each module that the partition placed, by its number.
        self._values: dict[Any, set[Any]] = {}
        self._steps: list[ChainSteps] = []
        self._structures: list[Any] = []  # This rank's, when each of the steps was planned.
        self._chosen: dict[Any, str] = {}
        self._observe_again: set[Any] = set()  # Kinds whose attributes may have been first values.
        self._sets_attributes = False  # In the step that was observed last.
        self._observed_kind: tuple[Any, Any] = (None, None)  # The kind of the step that is observed.
        self._structure: Any = None  # At its beginning.
        self._layout: Layout | str = ""  # Then; text: the reason why it is no chain.
        self._observer: StepObserver | None = None

    def choose(self, function: Any, arguments: Arguments) -> str:
        """Return how a step of *function* with *arguments* runs."""
        if len(self._ranks) == 1:
            return SERVER
        self.reason = self._off_reason or find_refusal(arguments)
        if self.reason:
            return SERVER
        kind = (self._kind(function, arguments), describe_structure(self._model.module, self._numbers))
        if kind not in self._chosen:
            if len(self._chosen) + len(self._observe_again) >= MAX_KINDS:
                self.reason = f"there are more than {MAX_KINDS} kinds of steps: their arguments, or the model, change"
                return SERVER
            self._observed_kind = kind
        self.reason = self._reasons.get(kind, "")
        return self._chosen.get(kind, OBSERVED)

    def record_partition(self) -> None:
        """Record the device of each module. All ranks call this when the model was partitioned."""
        for path, device in self._model.assignment().items():
            self._devices[self._numbers.of(self._model.module.get_submodule(path))] = device

    def observe(self, microbatches: Sequence[Arguments] = (), states: Sequence[Any] = ()) -> None:
        """Observe the step that begins; the first rank gives each microbatch's arguments and random number state."""
        self._structure = describe_structure(self._model.module, self._numbers)
        try:
            self._layout = find_layout(self._model.module, self._device_of, len(self._ranks))
        except NotAChainError as error:
            self._layout = str(error)
            return
        self._observer = StepObserver(self._layout, microbatches, states)

    def plan_steps(self, backwards: int = 0, is_random: bool = False) -> None:
        """Decide how steps like the observed one run.

        The first rank gives the number of calls of model.backward in it, and whether it drew random numbers.
        """
        observation = self._finish_observation()
        messenger, first = self._world.messenger, self._ranks[0]
        if self._device:
            messenger.send(first, OBSERVATION, None, observation)
            plan = messenger.receive(first, PLAN).payload
        else:
            others = [messenger.receive(rank, OBSERVATION).payload for rank in self._ranks[1:]]
            plan = self._decide([observation, *others], backwards, is_random)
            for rank in self._ranks[1:]:
                messenger.send(rank, PLAN, None, plan)
        if isinstance(plan, str):
            chosen = SERVER
            self.reason = plan
        else:
            chosen = str(len(self._steps))
            self._add_steps(plan)
        # The first step's partition gives modules of other ranks a forward of their own: both structures are this kind.
        call, structure_before = self._observed_kind
        kinds = {(call, structure_before), (call, self._structure)}
        if self._sets_attributes and not kinds & self._observe_again:
            self._observe_again |= kinds
            return
        self._observe_again -= kinds
        for kind in kinds:
            self._chosen[kind], self._reasons[kind] = chosen, self.reason

    def _device_of(self, path: str) -> int:
        module = self._model.module.get_submodule(path)
        device = self._devices.get(self._numbers.of(module))
        if device is None:
            raise NotAChainError(f"{path} ({type(module).__name__}) came after the model was partitioned")
        return device

    def _finish_observation(self) -> StepObservation | str:
        """Return this rank's observation of the step, or the reason why it cannot be planned."""
        observer, self._observer = self._observer, None
        observation = observer.close() if observer is not None else None
        if describe_structure(self._model.module, self._numbers) != self._structure:
            return CHANGED
        return observation or str(self._layout)

    def _decide(self, ranks: Sequence[StepObservation | str], backwards: int, is_random: bool) -> ChainPlan | str:
        observations = [observation for observation in ranks if isinstance(observation, StepObservation)]
        reasons = [reason for reason in ranks if isinstance(reason, str)]
        self._sets_attributes = any(observation.attributes for observation in observations)
        if reasons or isinstance(self._layout, str):
            return reasons[0]
        cfg = self._world.cfg
        plan = make_plan(
            self._layout,
            observations,
            microbatches=cfg.microbatches,
            backwards=backwards,
            is_random=is_random,
            pipeline=cfg.pipeline,
            active_microbatches=cfg.active_microbatches,
        )
        return plan if isinstance(plan, str) or can_run_chains() else f"torch {torch.__version__} is too old for chains"

    def _add_steps(self, plan: ChainPlan) -> None:
        assert isinstance(self._layout, Layout)
        self._structures.append(self._structure)
        self._steps.append(
            ChainSteps(
                plan,
                self._model,
                self._layout,
                pipeline=self._world.cfg.pipeline,
                messenger=self._world.messenger,
                ranks=self._ranks,
                device=self._device,
                group=smp_state.process_groups["pp"],
                torch_device=self._torch_device,
                recorder=self._recorder,
            )
        )

    def stop_observing(self) -> None:
        """Stop observing the step, which failed."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.close()

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

        *states* gives each microbatch's state of random numbers. See ChainSteps.run for the others.
        """
        steps = self._steps[int(chosen)]
        is_planned = (
            not self._device or describe_structure(self._model.module, self._numbers) == self._structures[int(chosen)]
        )
        initial_states = states() if steps.plan.is_random and not self._device else ()
        scale = self._model.gradient_scale
        results = steps.run(step, function, arguments, split, scale, initial_states, is_planned=is_planned)
        return results, steps.plan.has_backward

    def _kind(self, function: Any, arguments: Arguments) -> Any:
        """Return a key that all steps of one plan have in common, beside the model's structure."""
        leaves, spec = pytree.tree_flatten(arguments)
        return (
            function,
            spec,
            tuple(self._leaf_kind((function, spec, index), leaf) for index, leaf in enumerate(leaves)),
            AutogradModes.current(),
            tuple(parameter.requires_grad for parameter in self._model.module.parameters()),
        )

    def _leaf_kind(self, position: Any, leaf: Any) -> Any:
        """Return the part of a step's kind that comes from *leaf*, the argument at *position*."""
        if isinstance(leaf, torch.Tensor):
            return tuple(leaf.shape), leaf.dtype
        if leaf is None or isinstance(leaf, (bool, str)):
            return leaf
        if not isinstance(leaf, (int, float, complex, bytes)):
            return type(leaf)
        values = self._values.setdefault(position, set())
        if len(values) < MAX_VALUES:
            values.add(leaf)
        return (type(leaf), leaf) if leaf in values else type(leaf)
