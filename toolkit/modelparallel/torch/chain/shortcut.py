"""Chooses how a step runs: in the module server, there and watched, or by a plan that was made of a watched step."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from toolkit.modelparallel.recorder import Recorder
from toolkit.modelparallel.torch.api import state as smp_state
from toolkit.modelparallel.torch.chain.layout import Layout, NotAChainError, find
from toolkit.modelparallel.torch.chain.steps import Arguments, Split, Steps, why_not
from toolkit.modelparallel.torch.chain.watch import Seen, Watch, decide

SWITCH = "TOOLKIT_SMP_CHAIN"
SERVER, WATCHED = "server", "watched"
SEEN, PLAN = "smp.chain.seen", "smp.chain.plan"


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
        self._is_off = os.environ.get(SWITCH, "").lower() == "off"
        self._why_off = f"{SWITCH} is off"
        self._whys: dict[Any, str] = {}
        self._layout: Layout | None = None
        self._steps: list[Steps] = []
        self._chosen: dict[Any, str] = {}
        self._watched: Any = None  # The kind of the step that is watched.
        self._watch: Watch | None = None

    def choose(self, function: Any, arguments: Arguments) -> str:
        """Return how a step of *function* with *arguments* runs."""
        if len(self._ranks) == 1:
            return SERVER
        self.why = self._why_off if self._is_off else why_not(arguments)
        if self.why:
            return SERVER
        kind = self._kind(function, arguments)
        if kind not in self._chosen:
            self._watched = kind
        self.why = self._whys.get(kind, "")
        return self._chosen.get(kind, WATCHED)

    def watch(self, calls: Sequence[Arguments] = (), states: Sequence[Any] = ()) -> None:
        """Watch the step that begins; the first rank gives each microbatch's arguments and state of random numbers."""
        if self._layout is None:
            try:
                self._layout = find(self._model.module, _devices(self._model), len(self._ranks))
            except NotAChainError as why:
                self._is_off = True
                self.why = self._why_off = str(why)
                return
        self._watch = Watch(self._layout, calls, states)

    def settle(self, backwards: int = 0, is_random: bool = False) -> None:
        """Decide how steps like the watched one run. The first rank gives the calls of model.backward in it, and
        whether it drew random numbers."""
        watch, self._watch = self._watch, None
        if watch is None or self._layout is None:
            return
        seen = watch.close()
        messenger, first = self._here.messenger, self._ranks[0]
        cfg = self._here.cfg
        if self._device:
            messenger.send(first, SEEN, None, seen)
            plan = messenger.receive(first, PLAN).payload
        else:
            everybody: list[Seen] = [seen]
            everybody += [messenger.receive(rank, SEEN).payload for rank in self._ranks[1:]]
            plan = decide(
                self._layout,
                everybody,
                microbatches=cfg.microbatches,
                backwards=backwards,
                is_random=is_random,
                pipeline=cfg.pipeline,
                active_microbatches=cfg.active_microbatches,
            )
            for rank in self._ranks[1:]:
                messenger.send(rank, PLAN, None, plan)
        if isinstance(plan, str):
            chosen = SERVER
            self.why = self._whys[self._watched] = plan
        else:
            chosen = str(len(self._steps))
            self._steps.append(
                Steps(
                    plan,
                    self._model,
                    self._layout,
                    pipeline=cfg.pipeline,
                    messenger=messenger,
                    ranks=self._ranks,
                    device=self._device,
                    group=smp_state.process_groups["pp"],
                    torch_device=self._torch_device,
                    recorder=self._recorder,
                )
            )
        self._chosen[self._watched] = chosen

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
        needed = states() if steps.plan.is_random and not self._device else ()
        return steps.run(step, function, arguments, split, self._model.gradient_scale, needed), steps.plan.has_backward

    def _kind(self, function: Any, arguments: Arguments) -> Any:
        """Return what all steps of one plan have in common."""
        leaves, spec = pytree.tree_flatten(arguments)
        return (
            function,
            spec,
            tuple(map(_form, leaves)),
            torch.is_grad_enabled(),
            tuple(module.training for module in self._model.module.modules()),
            tuple(parameter.requires_grad for parameter in self._model.module.parameters()),
        )


def _devices(model: Any) -> Callable[[str], int]:
    """Return a function that gives the device of the module at a path, also for the other paths of a shared one."""
    assignment = model.assignment()
    devices = {id(model.module.get_submodule(path)): device for path, device in assignment.items()}
    return lambda path: devices[id(model.module.get_submodule(path))]


def _form(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype
    return leaf if isinstance(leaf, bool) else type(leaf)
