"""Pure: the order in which each rank works on the microbatches of a step.

Every rank computes the same order for all of them: it simulates the step with the layers' relative costs. What could be
simulated can be done, so that no two ranks wait for each other. "simple" does all forward passes before any backward
pass; "interleaved" takes a backward pass wherever one can begin, with at most `active` microbatches in flight.
"""

from collections.abc import Sequence
from typing import NamedTuple

from toolkit.rank.modelparallel.tf.plan import Event, Plan


class Pass(NamedTuple):
    """One pass through a call of the model: model call *call* forward (`turn` -1), or backward for the `turn`-th time.

    A step function may differentiate a call of the model several times (two losses).
    """

    call: int
    turn: int = -1

    @property
    def is_backward(self) -> bool:
        return self.turn >= 0


class Item(NamedTuple):
    """*event* of *its* pass, for microbatch *microbatch*."""

    microbatch: int
    its: Pass
    event: Event


def in_order(passes: Sequence[Pass]) -> list[Pass]:
    """Return *passes*, as one rank met them, in the order that all ranks agree on.

    A rank that differentiates a loss over several calls of the model meets their backward passes in an order of its
    own. Later calls may depend on earlier ones, so that the later ones' gradients come first.
    """
    found: list[Pass] = []
    run: list[Pass] = []
    for its in [*passes, Pass(-1)]:
        if its.is_backward:
            run.append(its)
            continue
        found += sorted(run, key=lambda each: (each.turn, -each.call))
        run = []
        found.append(its)
    return found[:-1]


def order(
    plans: Sequence[Plan], passes: Sequence[Pass], microbatches: int, pipeline: str, active: int
) -> list[list[Item]]:
    """Return each device's items in order. *plans*: one for each call of the model; *passes* as `in_order` has them."""
    devices = len(plans[0].forward) if plans else 0
    programs = [
        [
            Item(0, its, event)
            for its in passes
            for event in (plans[its.call].backward if its.is_backward else plans[its.call].forward)[device]
        ]
        for device in range(devices)
    ]
    return _Simulation(programs, microbatches, pipeline == "simple", active).run()


class _Simulation:
    """The step, simulated. `at[device][microbatch]`: how many items of its program are done."""

    def __init__(self, programs: list[list[Item]], microbatches: int, is_simple: bool, active: int) -> None:
        self.programs = programs
        self.microbatches = microbatches
        self.is_simple = is_simple
        self.active = active
        self.at = [[0] * microbatches for _ in programs]
        self.ready_s = [[0.0] * microbatches for _ in programs]  # when the item before it ended
        self.clock_s = [0.0] * len(programs)
        self.sent_s: dict[tuple[int, Pass, int], float] = {}
        self.done: list[list[Item]] = [[] for _ in programs]
        self.last_forward = [
            max((number for number, item in enumerate(program) if not item.its.is_backward), default=-1)
            for program in programs
        ]

    def run(self) -> list[list[Item]]:
        while any(at < len(program) for program, its in zip(self.programs, self.at, strict=True) for at in its):
            found = [choice for device in range(len(self.programs)) if (choice := self._choice(device)) is not None]
            if not found:
                raise AssertionError("the ranks of this plan wait for each other")
            self._do(*min(found))
        return self.done

    def _choice(self, device: int) -> tuple[float, int, int] | None:
        """Return (when, device, microbatch) of what *device* does next, None if nothing can be done yet."""
        program = self.programs[device]
        found = []
        for microbatch in range(self.microbatches):
            at = self.at[device][microbatch]
            begin_s = self._begin_s(device, microbatch) if at < len(program) else None
            if begin_s is not None:
                backward_first = not self.is_simple and program[at].its.is_backward
                # A pass that has begun is finished first, unless it has to wait.
                under_way = program[at].event.kind not in ("start", "turn")
                found.append((begin_s, not backward_first, not under_way, microbatch))
        if not found:
            return None
        begin_s, *_, microbatch = min(found)
        return begin_s, device, microbatch

    def _begin_s(self, device: int, microbatch: int) -> float | None:
        """Return when the next item of *microbatch* can begin, None if it must wait for what is not done yet."""
        at = self.at[device][microbatch]
        item = self.programs[device][at]
        begin_s = max(self.clock_s[device], self.ready_s[device][microbatch])
        if item.event.kind == "receive":
            sent_s = self.sent_s.get((microbatch, item.its, item.event.transfer))
            return None if sent_s is None else max(begin_s, sent_s - item.event.cost)
        if at == 0 and self._in_flight(device) >= self.active and not self.is_simple:
            return None
        if self.is_simple and item.its.is_backward and min(self.at[device]) <= self.last_forward[device]:
            return None
        return begin_s

    def _in_flight(self, device: int) -> int:
        return sum(0 < at < len(self.programs[device]) for at in self.at[device])

    def _do(self, begin_s: float, device: int, microbatch: int) -> None:
        item = self.programs[device][self.at[device][microbatch]]._replace(microbatch=microbatch)
        end_s = begin_s + item.event.cost
        if item.event.kind == "send":
            self.sent_s[microbatch, item.its, item.event.transfer] = end_s
        self.at[device][microbatch] += 1
        self.clock_s[device] = self.ready_s[device][microbatch] = end_s
        self.done[device].append(item)
