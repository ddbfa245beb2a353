"""Computes the order in which each rank works on the microbatches of a step. Pure.

Every rank computes the same order for all ranks: it simulates the step with the layers' relative costs. An order that
could be simulated can be run without two ranks that wait for each other. "simple" runs all forward passes before any
backward pass; "interleaved" runs a backward pass as soon as it can begin, with at most `active` microbatches in flight.
"""

from collections.abc import Sequence
from typing import NamedTuple

from toolkit.rank.modelparallel.tf.plan import CallPlan, PipelineEvent


class Pass(NamedTuple):
    """One pass through a call of the model: model call *call* forward (`turn` -1), or backward for the `turn`-th time.

    A step function may differentiate a call of the model several times (two losses).
    """

    call: int
    turn: int = -1

    @property
    def is_backward(self) -> bool:
        return self.turn >= 0


class ScheduledEvent(NamedTuple):
    """One event of a pass, for one microbatch."""

    microbatch: int
    model_pass: Pass
    event: PipelineEvent


def put_in_order(passes: Sequence[Pass]) -> list[Pass]:
    """Return *passes*, in the order in which one rank built them, in the order on which all ranks agree.

    Ranks that differentiate a loss over several calls of the model build the backward passes in different orders. Later
    calls may depend on earlier ones, so the gradients of later calls come first.
    """
    ordered: list[Pass] = []
    run: list[Pass] = []
    for model_pass in [*passes, Pass(-1)]:
        if model_pass.is_backward:
            run.append(model_pass)
            continue
        ordered += sorted(run, key=lambda backward_pass: (backward_pass.turn, -backward_pass.call))
        run = []
        ordered.append(model_pass)
    return ordered[:-1]


def schedule_step(
    plans: Sequence[CallPlan], passes: Sequence[Pass], microbatches: int, pipeline: str, active: int
) -> list[list[ScheduledEvent]]:
    """Return each device's items in order. *plans*: one for each call of the model; *passes* as `put_in_order` returns
    them."""
    devices = len(plans[0].forward) if plans else 0
    programs = [
        [
            ScheduledEvent(0, model_pass, event)
            for model_pass in passes
            for event in (
                plans[model_pass.call].backward if model_pass.is_backward else plans[model_pass.call].forward
            )[device]
        ]
        for device in range(devices)
    ]
    return _Simulation(programs, microbatches, pipeline == "simple", active).run()


class _Simulation:
    """Simulates the step. `positions[device][microbatch]`: the number of finished items of its program."""

    def __init__(self, programs: list[list[ScheduledEvent]], microbatches: int, is_simple: bool, active: int) -> None:
        self.programs = programs
        self.microbatches = microbatches
        self.is_simple = is_simple
        self.active = active
        self.positions = [[0] * microbatches for _ in programs]
        self.ready_s = [[0.0] * microbatches for _ in programs]  # the time at which the previous item ended
        self.clock_s = [0.0] * len(programs)
        self.sent_s: dict[tuple[int, Pass, int], float] = {}
        self.done: list[list[ScheduledEvent]] = [[] for _ in programs]
        self.last_forward = [
            max((number for number, item in enumerate(program) if not item.model_pass.is_backward), default=-1)
            for program in programs
        ]

    def run(self) -> list[list[ScheduledEvent]]:
        while any(
            done_count < len(program)
            for program, done_counts in zip(self.programs, self.positions, strict=True)
            for done_count in done_counts
        ):
            choices = [
                choice for device in range(len(self.programs)) if (choice := self._choose_next(device)) is not None
            ]
            if not choices:
                raise AssertionError("the ranks of this plan wait for each other")
            self._advance(*min(choices))
        return self.done

    def _choose_next(self, device: int) -> tuple[float, int, int] | None:
        """Return (begin, device, microbatch) of *device*'s next item, None if none can begin yet."""
        program = self.programs[device]
        choices = []
        for microbatch in range(self.microbatches):
            position = self.positions[device][microbatch]
            begin_s = self._begin_s(device, microbatch) if position < len(program) else None
            if begin_s is not None:
                is_preferred_backward = not self.is_simple and program[position].model_pass.is_backward
                # A pass that has begun is finished first, unless it has to wait.
                has_begun = program[position].event.kind not in ("start", "turn")
                choices.append((begin_s, not is_preferred_backward, not has_begun, microbatch))
        if not choices:
            return None
        begin_s, *_, microbatch = min(choices)
        return begin_s, device, microbatch

    def _begin_s(self, device: int, microbatch: int) -> float | None:
        """Return the time at which the next item of *microbatch* can begin, None if it must wait for an unfinished
        one."""
        position = self.positions[device][microbatch]
        item = self.programs[device][position]
        begin_s = max(self.clock_s[device], self.ready_s[device][microbatch])
        if item.event.kind == "receive":
            sent_s = self.sent_s.get((microbatch, item.model_pass, item.event.transfer))
            return None if sent_s is None else max(begin_s, sent_s - item.event.cost)
        if position == 0 and self._in_flight(device) >= self.active and not self.is_simple:
            return None
        if self.is_simple and item.model_pass.is_backward and min(self.positions[device]) <= self.last_forward[device]:
            return None
        return begin_s

    def _in_flight(self, device: int) -> int:
        return sum(0 < position < len(self.programs[device]) for position in self.positions[device])

    def _advance(self, begin_s: float, device: int, microbatch: int) -> None:
        item = self.programs[device][self.positions[device][microbatch]]._replace(microbatch=microbatch)
        end_s = begin_s + item.event.cost
        if item.event.kind == "send":
            self.sent_s[microbatch, item.model_pass, item.event.transfer] = end_s
        self.positions[device][microbatch] += 1
        self.clock_s[device] = self.ready_s[device][microbatch] = end_s
        self.done[device].append(item)
