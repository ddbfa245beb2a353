"""What an assignment of modules to devices costs each device: memory, computing, transfers. Pure.

A call of a module on another device is a request and a response, forward and again backward. In a chain whose links
follow one another over the devices, each hands its output to the next.
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


class Own(NamedTuple):
    """What a module costs by itself, without the modules below it."""

    parameter_bytes: int
    activation_bytes: int
    compute_s: float

    @property
    def memory_bytes(self) -> int:
        """Bytes of parameters and saved activations."""
        return self.parameter_bytes + self.activation_bytes


class Transfer(NamedTuple):
    """What crosses in one forward pass of one microbatch if *caller* and *callee* are on different devices."""

    caller: str
    callee: str
    there_bytes: int
    back_bytes: int
    calls: int
    replies: bool

    @property
    def seconds(self) -> float:
        """Return what it takes, forward and backward."""
        messages = self.calls * (2 if self.replies else 1)
        return 2 * (messages * MESSAGE_S + (self.there_bytes + self.back_bytes) / BYTES_PER_S)


class Scale(NamedTuple):
    """What costs are shares of: the whole model's memory and time; and the weight of memory beside time, 0 to 1."""

    memory_bytes: float
    time_s: float
    memory_weight: float

    def cost(self, memory_bytes: float, time_s: float) -> float:
        """Return the cost of a device that holds *memory_bytes* and is busy for *time_s*: 1 is the whole model's."""
        memory = memory_bytes / self.memory_bytes if self.memory_bytes else 0.0
        time = time_s / self.time_s if self.time_s else 0.0
        return self.memory_weight * memory + (1 - self.memory_weight) * time


class Load(Record, frozen=True, kw_only=True):
    """What one device has, for one microbatch; `transfer_s` counts every transfer at both of its ends."""

    device: int
    parameter_bytes: int
    activation_bytes: int
    compute_s: float
    transfer_s: float

    def cost(self, scale: Scale) -> float:
        """Return the cost of this device."""
        return scale.cost(self.parameter_bytes + self.activation_bytes, self.compute_s + self.transfer_s)


def own(module: Module) -> Own:
    """Return the cost of *module* without its children; measurements that do not add up count as 0."""
    below = module.children
    return Own(
        max(0, module.parameter_bytes - sum(child.parameter_bytes for child in below)),
        max(0, module.activation_bytes - sum(child.activation_bytes for child in below)),
        max(0.0, module.compute_s - sum(child.compute_s for child in below)),
    )


def devices_of(tree: Module, assignment: Mapping[str, int]) -> dict[str, int]:
    """Return the device of every module: its own in *assignment*, or its nearest named ancestor's, else 0."""
    found: dict[str, int] = {}

    def visit(module: Module, inherited: int) -> None:
        found[module.name] = assignment.get(module.name, inherited)
        for child in module.children:
            visit(child, found[module.name])

    visit(tree, 0)
    return found


class Chain(NamedTuple):
    """`links`: modules that run one after another. `holders`: the names of the sequential modules that hold them."""

    links: tuple[Module, ...]
    holders: frozenset[str]


def chain_of(tree: Module) -> Chain | None:
    """Return the chain that the whole model is: the root is sequential, or its only child, or that one's, and the
    modules around it have no parameters. Sequential modules inside it are part of it. None if it is none."""
    module = tree
    while not module.sequential:
        if len(module.children) != 1 or own(module).parameter_bytes:
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

    found = tuple(links(module))
    return Chain(found, frozenset(holders)) if found else None


def is_chain(tree: Module, where: Mapping[str, int]) -> bool:
    """Return whether the links of the model's chain lie whole on devices, in ascending order from device 0."""
    chain = chain_of(tree)
    if chain is None:
        return False
    last = 0
    for link in chain.links:
        if where[link.name] < last or any(where[each.name] != where[link.name] for each in link.walk()):
            return False
        last = where[link.name]
    return where[tree.name] == where[chain.links[0].name] == 0


def transfers(tree: Module, *, as_chain: bool) -> list[Transfer]:
    """Return every transfer that an assignment may cause: between neighbours of the chain, or of all calls."""
    chain = chain_of(tree) if as_chain else None
    if chain is not None:
        pairs = zip(chain.links, chain.links[1:], strict=False)
        return [Transfer(one.name, other.name, one.output_bytes, 0, 1, replies=False) for one, other in pairs]
    found = []

    def visit(module: Module, caller: str) -> None:
        for child in module.children:
            if child.calls:
                found.append(
                    Transfer(caller, child.name, child.input_bytes, child.output_bytes, child.calls, replies=True)
                )
            visit(child, child.name if child.calls else caller)

    visit(tree, tree.name)
    return found


def loads(tree: Module, assignment: Mapping[str, int], devices: int) -> tuple[Load, ...]:
    """Return the load of each of *devices* devices under *assignment*."""
    where = devices_of(tree, assignment)
    held = [[0, 0, 0.0, 0.0] for _ in range(devices)]
    for module in tree.walk():
        for at, value in enumerate(own(module)):
            held[where[module.name]][at] += value
    for each in transfers(tree, as_chain=is_chain(tree, where)):
        if where[each.caller] != where[each.callee]:
            held[where[each.caller]][3] += each.seconds
            held[where[each.callee]][3] += each.seconds
    return tuple(
        Load(
            device=device,
            parameter_bytes=int(parameters),
            activation_bytes=int(activations),
            compute_s=compute_s,
            transfer_s=transfer_s,
        )
        for device, (parameters, activations, compute_s, transfer_s) in enumerate(held)
    )


def cuts(tree: Module, assignment: Mapping[str, int]) -> tuple[Cut, ...]:
    """Return what crosses between devices in one forward pass of one microbatch, sorted by source and target."""
    where = devices_of(tree, assignment)
    crossing: dict[tuple[int, int], list[int]] = {}
    for each in transfers(tree, as_chain=is_chain(tree, where)):
        one, other = where[each.caller], where[each.callee]
        if one == other:
            continue
        ways = [(one, other, each.there_bytes)] + ([(other, one, each.back_bytes)] if each.replies else [])
        for source, target, size in ways:
            entry = crossing.setdefault((source, target), [0, 0])
            entry[0] += size
            entry[1] += each.calls
    return tuple(
        Cut(source=source, target=target, bytes=size, calls=calls)
        for (source, target), (size, calls) in sorted(crossing.items())
    )
