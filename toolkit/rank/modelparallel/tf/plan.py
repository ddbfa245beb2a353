"""Pure: which tensors cross between partitions in one call of the model, and in what order each rank handles them.

A model's call is a sequence of calls of layers; each layer is on one device. What is between the layers (additions,
reshapes, activations) costs little and runs wherever its result is needed, so that only outputs of layers cross.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple


class Source(NamedTuple):
    """Output number *output* of layer call number *call*."""

    call: int
    output: int


class Call(NamedTuple):
    """One call of the layer at *path*. *uses* are the outputs of other calls that it needs, in order.

    `is_float`: for each of its outputs, whether a gradient can come back for it. `cost`: of one forward pass, relative.
    """

    path: str
    device: int
    uses: tuple[Source, ...]
    is_float: tuple[bool, ...] = (True,)
    cost: float = 1.0


class Transfer(NamedTuple):
    """What device *origin* sends to *target*: a layer's output, or (output >= 0) the model's output of that number.

    The gradient of a layer's output comes back; each rank computes the loss from the model's outputs itself, and only
    the rank that made an output uses its gradient.
    """

    origin: int
    target: int
    source: Source | None
    output: int
    has_gradient: bool


class Event(NamedTuple):
    """One thing that a rank does in order: "send" or "receive" *transfer* (a number), "start", "turn" or "end".

    A forward pass begins with "start", which gives the model's inputs free; a backward pass with "turn", which gives
    the gradients of its outputs free. `cost` is that of the layers that run before it.
    """

    kind: Literal["start", "turn", "send", "receive", "end"]
    transfer: int = -1
    cost: float = 0.0


class Plan(NamedTuple):
    """*owners*: for each output of the model the device that makes it, -1: every rank does. *forward*, *backward*:
    each device's events. *live* are the calls on which an output depends."""

    calls: tuple[Call, ...]
    owners: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    forward: tuple[tuple[Event, ...], ...]
    backward: tuple[tuple[Event, ...], ...]
    live: frozenset[int]

    def sent(self, source: Source) -> list[int]:
        """Return the numbers of the transfers that carry *source*."""
        return [number for number, its in enumerate(self.transfers) if its.source == source]

    def received(self, source: Source, device: int) -> int | None:
        """Return the number of the transfer that brings *source* to *device*, None if none does."""
        return next((number for number in self.sent(source) if self.transfers[number].target == device), None)

    def shown(self, output: int, device: int) -> list[int]:
        """Return the transfers of the model's *output* in which *device* takes part: it sends all or receives one."""
        known = enumerate(self.transfers)
        return [number for number, its in known if its.output == output and device in (its.origin, its.target)]


def make(calls: Sequence[Call], outputs: Sequence[tuple[Source, ...]], devices: int) -> Plan:
    """Return the plan for *calls*, in order of execution; *outputs*: what each output of the model is made from."""
    live = _live(calls, outputs)
    owners = tuple(
        max((source.call, calls[source.call].device) for source in uses)[1] if uses else -1 for uses in outputs
    )
    transfers = _transfers(calls, outputs, owners, live, devices)
    forward = _forward(calls, outputs, owners, live, transfers, devices)
    backward = tuple(_mirrored(events, transfers) for events in forward)
    return Plan(tuple(calls), owners, transfers, forward, backward, live)


def _live(calls: Sequence[Call], outputs: Sequence[tuple[Source, ...]]) -> frozenset[int]:
    found: set[int] = set()
    rest = [source.call for uses in outputs for source in uses]
    while rest:
        call = rest.pop()
        if call not in found:
            found.add(call)
            rest += [source.call for source in calls[call].uses]
    return frozenset(found)


def _transfers(
    calls: Sequence[Call],
    outputs: Sequence[tuple[Source, ...]],
    owners: Sequence[int],
    live: frozenset[int],
    devices: int,
) -> tuple[Transfer, ...]:
    users = [(call.device, call.uses) for number, call in enumerate(calls) if number in live]
    users += [(owner, uses) for owner, uses in zip(owners, outputs, strict=True) if owner >= 0]
    crossing = [
        Transfer(calls[source.call].device, device, source, -1, calls[source.call].is_float[source.output])
        for device, uses in users
        for source in uses
        if calls[source.call].device != device
    ]
    shown = [
        Transfer(owner, device, None, output, False)
        for output, owner in enumerate(owners)
        for device in range(devices)
        if owner >= 0 and device != owner
    ]
    return tuple(dict.fromkeys(crossing + shown))


def _forward(
    calls: Sequence[Call],
    outputs: Sequence[tuple[Source, ...]],
    owners: Sequence[int],
    live: frozenset[int],
    transfers: Sequence[Transfer],
    devices: int,
) -> tuple[tuple[Event, ...], ...]:
    events: list[list[Event]] = [[Event("start")] for _ in range(devices)]
    waiting_cost = [0.0] * devices
    arrived: set[int] = set()

    def add(device: int, kind: Literal["send", "receive", "end"], transfer: int = -1) -> None:
        events[device].append(Event(kind, transfer, waiting_cost[device]))
        waiting_cost[device] = 0.0

    def receive(device: int, uses: Sequence[Source]) -> None:
        for number, its in enumerate(transfers):
            if its.source in uses and its.target == device and number not in arrived:
                arrived.add(number)
                add(device, "receive", number)

    for number, call in enumerate(calls):
        if number not in live:
            continue
        receive(call.device, call.uses)
        waiting_cost[call.device] += call.cost
        for sent, its in enumerate(transfers):
            if its.source is not None and its.source.call == number:
                add(call.device, "send", sent)
    for output, owner in enumerate(owners):
        if owner >= 0:
            receive(owner, outputs[output])
            for number, its in enumerate(transfers):
                if its.output == output:
                    add(owner, "send", number)
                    add(its.target, "receive", number)
    for device in range(devices):
        add(device, "end")
    return tuple(tuple(each) for each in events)


def _mirrored(forward: Sequence[Event], transfers: Sequence[Transfer]) -> tuple[Event, ...]:
    """Return the backward pass of *forward*: gradients go the other way, in the other order, at twice the cost."""
    other: dict[str, Literal["send", "receive"]] = {"send": "receive", "receive": "send"}
    found = [Event("turn")]
    cost = 0.0
    for event in reversed(forward):
        if event.kind in other and transfers[event.transfer].has_gradient:
            found.append(Event(other[event.kind], event.transfer, cost))
            cost = 0.0
        cost += 2 * event.cost
    return (*found, Event("end", -1, cost))
