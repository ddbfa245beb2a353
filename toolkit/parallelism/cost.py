"""Computes the cost of an assignment of modules for each device: memory, computing, transfers. Pure.

A call of a module on another device is a request and a response, forward and again backward. In a chain whose links
follow one another over the devices, each sends its output to the next.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from toolkit.parallelism.decision import Cut
from toolkit.parallelism.tree import Module
from toolkit.records import Record

# A call of a module of another process of this host costs about 1 ms, forward and backward together: four messages over
# TCP with a reader and a writer thread (seen on two cores). 16 MB take about 20 ms. Networks between hosts are guessed
# to be of the same order.
MESSAGE_S = 2.5e-4
BYTES_PER_S = 1e9


class ExclusiveCost(NamedTuple):
    """The cost of a module itself, without the modules below it."""

    parameter_bytes: int
    activation_bytes: int
    compute_s: float

    @property
    def memory_bytes(self) -> int:
        """Bytes of parameters and saved activations."""
        return self.parameter_bytes + self.activation_bytes


class ModuleTransfer(NamedTuple):
    """The bytes sent in one forward pass of one microbatch if `caller` and `callee` are on different devices."""

    caller: str
    """The path of the calling module."""
    callee: str
    """The path of the called module."""
    request_bytes: int
    """The size of the arguments."""
    response_bytes: int
    """The size of the results."""
    calls: int
    """The calls in one forward pass."""
    has_response: bool
    """False in a chain: the caller needs no result."""

    @property
    def seconds(self) -> float:
        """Return the time that it takes, forward and backward."""
        messages = self.calls * (2 if self.has_response else 1)
        return 2 * (messages * MESSAGE_S + (self.request_bytes + self.response_bytes) / BYTES_PER_S)


class CostScale(NamedTuple):
    """The whole model's memory and time, of which costs are shares, and the weight of memory beside time, 0 to 1."""

    memory_bytes: float
    time_s: float
    memory_weight: float

    def cost(self, memory_bytes: float, time_s: float) -> float:
        """Return the cost of a device that holds *memory_bytes* and is busy for *time_s*: 1 is the whole model's."""
        memory = memory_bytes / self.memory_bytes if self.memory_bytes else 0.0
        time = time_s / self.time_s if self.time_s else 0.0
        return self.memory_weight * memory + (1 - self.memory_weight) * time


class Load(Record, frozen=True, kw_only=True):
    """The load of one device, for one microbatch."""

    device: int
    """The number of the device."""
    parameter_bytes: int
    """The size of the parameters that it holds."""
    activation_bytes: int
    """The size of the activations that it saves for the backward pass."""
    compute_s: float
    """The time of its modules, forward and backward."""
    transfer_s: float
    """The time of its transfers. Every transfer counts at both of its ends."""

    def cost(self, scale: CostScale) -> float:
        """Return the cost of this device."""
        return scale.cost(self.parameter_bytes + self.activation_bytes, self.compute_s + self.transfer_s)


def exclusive_cost(module: Module) -> ExclusiveCost:
    """Return the cost of *module* without its children; measurements that do not add up count as 0."""
    below = module.children
    return ExclusiveCost(
        max(0, module.parameter_bytes - sum(child.parameter_bytes for child in below)),
        max(0, module.activation_bytes - sum(child.activation_bytes for child in below)),
        max(0.0, module.compute_s - sum(child.compute_s for child in below)),
    )


def resolve_devices(tree: Module, assignment: Mapping[str, int]) -> dict[str, int]:
    """Return the device of every module: as *assignment* names it, else its nearest named ancestor's, else 0."""
    devices: dict[str, int] = {}

    def visit(module: Module, inherited: int) -> None:
        devices[module.name] = assignment.get(module.name, inherited)
        for child in module.children:
            visit(child, devices[module.name])

    visit(tree, 0)
    return devices


class Chain(NamedTuple):
    """`links`: modules that run one after another. `holders`: the names of the sequential modules that hold them."""

    links: tuple[Module, ...]
    holders: frozenset[str]


def find_chain(tree: Module) -> Chain | None:
    """Return the chain if the whole model is one, else None.

    The model is a chain if the root is sequential, or its only child, or the only child of that, and the modules around
    it have no parameters. Sequential modules inside a chain are part of it.
    """
    module = tree
    while not module.sequential:
        if len(module.children) != 1 or exclusive_cost(module).parameter_bytes:
            return None
        module = module.children[0]
    holders = {module.name}

    def links(module: Module) -> Iterator[Module]:
        for child in module.children:
            if child.sequential and child.children:
                holders.add(child.name)
                yield from links(child)
            else:
                yield child

    links_of_chain = tuple(links(module))
    return Chain(links_of_chain, frozenset(holders)) if links_of_chain else None


def is_chain(tree: Module, devices: Mapping[str, int]) -> bool:
    """Return whether the links of the model's chain lie whole on devices, in ascending order from device 0."""
    chain = find_chain(tree)
    if chain is None:
        return False
    last = 0
    for link in chain.links:
        if devices[link.name] < last or any(devices[module.name] != devices[link.name] for module in link.walk()):
            return False
        last = devices[link.name]
    return devices[tree.name] == devices[chain.links[0].name] == 0


def list_transfers(tree: Module, *, as_chain: bool) -> list[ModuleTransfer]:
    """Return every transfer that an assignment may cause: between neighbours of the chain, or for each call."""
    chain = find_chain(tree) if as_chain else None
    if chain is not None:
        pairs = zip(chain.links, chain.links[1:], strict=False)
        return [
            ModuleTransfer(link.name, next_link.name, link.output_bytes, 0, 1, has_response=False)
            for link, next_link in pairs
        ]
    crossings = []

    def visit(module: Module, caller: str) -> None:
        for child in module.children:
            if child.calls:
                crossings.append(
                    ModuleTransfer(
                        caller, child.name, child.input_bytes, child.output_bytes, child.calls, has_response=True
                    )
                )
            visit(child, child.name if child.calls else caller)

    visit(tree, tree.name)
    return crossings


def compute_loads(tree: Module, assignment: Mapping[str, int], devices: int) -> tuple[Load, ...]:
    """Return the load of each of *devices* devices under *assignment*."""
    device_by_module = resolve_devices(tree, assignment)
    totals = [[0, 0, 0.0, 0.0] for _ in range(devices)]
    for module in tree.walk():
        for column, value in enumerate(exclusive_cost(module)):
            totals[device_by_module[module.name]][column] += value
    for transfer in list_transfers(tree, as_chain=is_chain(tree, device_by_module)):
        if device_by_module[transfer.caller] != device_by_module[transfer.callee]:
            totals[device_by_module[transfer.caller]][3] += transfer.seconds
            totals[device_by_module[transfer.callee]][3] += transfer.seconds
    return tuple(
        Load(
            device=device,
            parameter_bytes=int(parameters),
            activation_bytes=int(activations),
            compute_s=compute_s,
            transfer_s=transfer_s,
        )
        for device, (parameters, activations, compute_s, transfer_s) in enumerate(totals)
    )


def compute_cuts(tree: Module, assignment: Mapping[str, int]) -> tuple[Cut, ...]:
    """Return the traffic between devices in one forward pass of one microbatch, sorted by source and target."""
    device_by_module = resolve_devices(tree, assignment)
    crossing: dict[tuple[int, int], list[int]] = {}
    for transfer in list_transfers(tree, as_chain=is_chain(tree, device_by_module)):
        caller_device, callee_device = device_by_module[transfer.caller], device_by_module[transfer.callee]
        if caller_device == callee_device:
            continue
        directions = [(caller_device, callee_device, transfer.request_bytes)] + (
            [(callee_device, caller_device, transfer.response_bytes)] if transfer.has_response else []
        )
        for source, target, size in directions:
            entry = crossing.setdefault((source, target), [0, 0])
            entry[0] += size
            entry[1] += transfer.calls
    return tuple(
        Cut(source=source, target=target, bytes=size, calls=calls)
        for (source, target), (size, calls) in sorted(crossing.items())
    )
