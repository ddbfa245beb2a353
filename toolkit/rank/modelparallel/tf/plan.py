"""Plans one call of the model: the tensors that cross between partitions, and the order of each rank's transfers. Pure.

A model's call is a sequence of calls of layers; each layer is on one device. The operations between the layers
(additions, reshapes, activations) cost little and run on each rank that needs their result, so that only outputs of
layers cross.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple


class LayerOutput(NamedTuple):
    """Output number *output* of layer call number *call*."""

    call: int
    output: int


class PlannedCall(NamedTuple):
    """One call of a layer."""

    path: str
    """The path of the layer."""
    device: int
    """The partition of the layer."""
    uses: tuple[LayerOutput, ...]
    """The outputs of other calls that it needs, in order."""
    is_float: tuple[bool, ...] = (True,)
    """For each of its outputs, whether a gradient can come back for it."""
    cost: float = 1.0
    """The relative cost of one forward pass."""


class TensorTransfer(NamedTuple):
    """A tensor that one device sends to another: a layer's output, or an output of the model.

    The gradient of a layer's output comes back; each rank computes the loss from the model's outputs itself, and only
    the rank that made an output uses its gradient.
    """

    origin: int
    """The device that sends."""
    target: int
    """The device that receives."""
    source: LayerOutput | None
    """The layer's output; None for an output of the model."""
    output: int
    """The number of the model's output; -1 for a layer's output."""
    has_gradient: bool
    """True if the target sends a gradient back."""


class PipelineEvent(NamedTuple):
    """One event in a rank's order: "send" or "receive" of `transfer` (a number), "start", "turn" or "end".

    A forward pass begins with "start", which releases the model's inputs; a backward pass with "turn", which releases
    the gradients of its outputs. `cost` is the cost of the layers that run before it.
    """

    kind: Literal["start", "turn", "send", "receive", "end"]
    transfer: int = -1
    cost: float = 0.0


class CallPlan(NamedTuple):
    """The plan of one call of the model."""

    calls: tuple[PlannedCall, ...]
    """The calls of layers, in order of execution."""
    owners: tuple[int, ...]
    """For each output of the model the device that makes it; -1 if every rank makes it."""
    transfers: tuple[TensorTransfer, ...]
    """The tensors that cross between devices."""
    forward: tuple[tuple[PipelineEvent, ...], ...]
    """Each device's events of the forward pass."""
    backward: tuple[tuple[PipelineEvent, ...], ...]
    """Each device's events of the backward pass."""
    live: frozenset[int]
    """The numbers of the calls on which an output depends."""

    def transfers_of(self, source: LayerOutput) -> list[int]:
        """Return the numbers of the transfers that carry *source*."""
        return [number for number, transfer in enumerate(self.transfers) if transfer.source == source]

    def transfer_to(self, source: LayerOutput, device: int) -> int | None:
        """Return the number of the transfer that brings *source* to *device*, None if none does."""
        return next((number for number in self.transfers_of(source) if self.transfers[number].target == device), None)

    def output_transfers(self, output: int, device: int) -> list[int]:
        """Return the transfers of the model's *output* in which *device* takes part. It sends all or receives one."""
        numbered = enumerate(self.transfers)
        return [
            number
            for number, transfer in numbered
            if transfer.output == output and device in (transfer.origin, transfer.target)
        ]


def make_plan(calls: Sequence[PlannedCall], outputs: Sequence[tuple[LayerOutput, ...]], devices: int) -> CallPlan:
    """Return the plan for *calls*, in order of execution; *outputs*: the layer outputs from which each output
    of the model is made."""
    live = _find_live_calls(calls, outputs)
    owners = tuple(
        max((source.call, calls[source.call].device) for source in uses)[1] if uses else -1 for uses in outputs
    )
    transfers = _plan_transfers(calls, outputs, owners, live, devices)
    forward = _plan_forward(calls, outputs, owners, live, transfers, devices)
    backward = tuple(_plan_backward(events, transfers) for events in forward)
    return CallPlan(tuple(calls), owners, transfers, forward, backward, live)


def _find_live_calls(calls: Sequence[PlannedCall], outputs: Sequence[tuple[LayerOutput, ...]]) -> frozenset[int]:
    live: set[int] = set()
    pending = [source.call for uses in outputs for source in uses]
    while pending:
        call = pending.pop()
        if call not in live:
            live.add(call)
            pending += [source.call for source in calls[call].uses]
    return frozenset(live)


def _plan_transfers(
    calls: Sequence[PlannedCall],
    outputs: Sequence[tuple[LayerOutput, ...]],
    owners: Sequence[int],
    live: frozenset[int],
    devices: int,
) -> tuple[TensorTransfer, ...]:
    users = [(call.device, call.uses) for number, call in enumerate(calls) if number in live]
    users += [(owner, uses) for owner, uses in zip(owners, outputs, strict=True) if owner >= 0]
    of_layers = [
        TensorTransfer(calls[source.call].device, device, source, -1, calls[source.call].is_float[source.output])
        for device, uses in users
        for source in uses
        if calls[source.call].device != device
    ]
    of_outputs = [
        TensorTransfer(owner, device, None, output, False)
        for output, owner in enumerate(owners)
        for device in range(devices)
        if owner >= 0 and device != owner
    ]
    return tuple(dict.fromkeys(of_layers + of_outputs))


def _plan_forward(
    calls: Sequence[PlannedCall],
    outputs: Sequence[tuple[LayerOutput, ...]],
    owners: Sequence[int],
    live: frozenset[int],
    transfers: Sequence[TensorTransfer],
    devices: int,
) -> tuple[tuple[PipelineEvent, ...], ...]:
    events: list[list[PipelineEvent]] = [[PipelineEvent("start")] for _ in range(devices)]
    waiting_cost = [0.0] * devices
    arrived: set[int] = set()

    def add(device: int, kind: Literal["send", "receive", "end"], transfer: int = -1) -> None:
        events[device].append(PipelineEvent(kind, transfer, waiting_cost[device]))
        waiting_cost[device] = 0.0

    def receive(device: int, uses: Sequence[LayerOutput]) -> None:
        for number, transfer in enumerate(transfers):
            if transfer.source in uses and transfer.target == device and number not in arrived:
                arrived.add(number)
                add(device, "receive", number)

    for number, call in enumerate(calls):
        if number not in live:
            continue
        receive(call.device, call.uses)
        waiting_cost[call.device] += call.cost
        for sent_number, transfer in enumerate(transfers):
            if transfer.source is not None and transfer.source.call == number:
                add(call.device, "send", sent_number)
    for output, owner in enumerate(owners):
        if owner >= 0:
            receive(owner, outputs[output])
            for number, transfer in enumerate(transfers):
                if transfer.output == output:
                    add(owner, "send", number)
                    add(transfer.target, "receive", number)
    for device in range(devices):
        add(device, "end")
    return tuple(tuple(events_of_device) for events_of_device in events)


def _plan_backward(forward: Sequence[PipelineEvent], transfers: Sequence[TensorTransfer]) -> tuple[PipelineEvent, ...]:
    """Return the backward pass of *forward*: gradients go in the opposite direction and order, at twice the cost."""
    opposite: dict[str, Literal["send", "receive"]] = {"send": "receive", "receive": "send"}
    backward = [PipelineEvent("turn")]
    cost = 0.0
    for event in reversed(forward):
        if event.kind in opposite and transfers[event.transfer].has_gradient:
            backward.append(PipelineEvent(opposite[event.kind], event.transfer, cost))
            cost = 0.0
        cost += 2 * event.cost
    return (*backward, PipelineEvent("end", -1, cost))
