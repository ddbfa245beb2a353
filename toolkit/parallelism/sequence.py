"""A module tree as a sequence of units, in order of execution, that the contiguous method cuts into runs. Pure.

A unit is a module with parameters and none below it, or a link of a chain that is to stay whole. What a module around
units costs by itself belongs to its first unit: it runs on that device.
"""

from collections.abc import Iterator

from toolkit.parallelism import cost
from toolkit.parallelism.tree import Module

# Runs are n x n / 2: deeper modules stay whole if there would be more units than this.
MOST = 400


class Units:
    """The units of a tree: names, own costs, and the transfers between their positions.

    *where*: the position of every module. *is_chain*: the units are the links of the model's chain.
    """

    def __init__(self, tree: Module, names: list[str], where: dict[str, int], *, is_chain: bool) -> None:
        self.names = names
        self.where = where
        self.memory_bytes = [0] * len(names)
        self.compute_s = [0.0] * len(names)
        self._tree = tree
        for module in tree.walk():
            alone = cost.own(module)
            self.memory_bytes[where[module.name]] += alone.memory_bytes
            self.compute_s[where[module.name]] += alone.compute_s
        # at position -> (other position, seconds), both ways.
        self._partners: list[list[tuple[int, float]]] = [[] for _ in names]
        for each in cost.transfers(tree, as_chain=is_chain):
            one, other = where[each.caller], where[each.callee]
            if one != other:
                self._partners[one].append((other, each.seconds))
                self._partners[other].append((one, each.seconds))

    def costs_of_runs(self, scale: cost.Scale, *, with_transfers: bool) -> list[list[float]]:
        """Return, for each first unit, the costs of the runs that end with it, the next one, and so on."""
        return [list(self._runs_from(start, scale, with_transfers)) for start in range(len(self.names))]

    def _runs_from(self, start: int, scale: cost.Scale, with_transfers: bool) -> Iterator[float]:
        memory, time_s, crossing_s = 0.0, 0.0, 0.0
        for at in range(start, len(self.names)):
            memory += self.memory_bytes[at]
            time_s += self.compute_s[at]
            if with_transfers:
                for other, seconds in self._partners[at]:
                    crossing_s += -seconds if start <= other < at else seconds
            yield scale.cost(memory, time_s + crossing_s)

    def assignment(self, begins: list[int]) -> dict[str, int]:
        """Return the assignment whose device d has the units from begins[d] to the next one's."""
        device = [0] * len(self.names)
        for number, begin in enumerate(begins):
            device[begin:] = [number] * (len(device) - begin)
        return compact(self._tree, {name: device[at] for name, at in self.where.items()})


def units_of(tree: Module, devices: int) -> Units:
    """Return the units of *tree*: as deep as there are at most MOST, or at least as many as *devices*."""
    height = _height(tree)
    found = _divide(tree, depth=1)
    for depth in range(2, height + 1):
        deeper = _divide(tree, depth=depth)
        if len(deeper.names) <= MOST or len(found.names) < devices:
            found = deeper
    return found


def links_of(tree: Module) -> Units | None:
    """Return the links of *tree*'s chain as units; None if it is none, or links share parameters."""
    chain = cost.chain_of(tree)
    if chain is None or ties(tree):
        return None
    return _divide(tree, whole=tuple(link.name for link in chain.links))


def _divide(tree: Module, *, depth: int = -1, whole: tuple[str, ...] = ()) -> Units:
    """Return units that are the modules of the names *whole*, or at most *depth* below the root."""
    tied = ties(tree)
    carries = with_parameters(tree, tied)
    names: list[str] = []
    where: dict[str, int] = {}

    def visit(module: Module, level: int) -> None:
        first = len(names)
        if module.name in whole or level == depth:
            where.update({each.name: first for each in module.walk()})
        else:
            for child in module.children:
                if child.name in carries:
                    visit(child, level + 1)
        where[module.name] = first
        if len(names) == first and module.name not in tied:
            names.append(module.name)

    visit(tree, 0)
    where |= {name: where[first] for name, first in tied.items()}
    return Units(tree, names, complete(tree, where), is_chain=bool(whole))


def _height(module: Module) -> int:
    return 1 + max((_height(child) for child in module.children), default=-1)


def ties(tree: Module) -> dict[str, str]:
    """Return, for each module that shares a parameter with an earlier one, the first module that it goes with."""
    first: dict[str, str] = {}
    order = {module.name: at for at, module in enumerate(tree.walk())}

    def root(name: str) -> str:
        while name in first:
            name = first[name]
        return name

    for module in tree.walk():
        for other in module.shares:
            one, two = sorted((root(module.name), root(other)), key=order.__getitem__)
            if one != two:
                first[two] = one
    return {name: root(name) for name in first}


def with_parameters(tree: Module, tied: dict[str, str]) -> set[str]:
    """Return the modules that hold parameters, or go with one that does, themselves or below, and the root."""
    found = {tree.name}
    bound = {*tied, *tied.values()}

    def visit(module: Module) -> bool:
        below = [visit(child) for child in module.children]
        if any(below) or module.parameter_bytes or module.name in bound:
            found.add(module.name)
            return True
        return False

    visit(tree)
    return found


def complete(tree: Module, where: dict[str, int]) -> dict[str, int]:
    """Return *where*, which names every module with parameters, with the others: each is with its parent, a link of
    the model's chain with the link before it."""
    chain = cost.chain_of(tree)
    holders = chain.holders if chain is not None else frozenset()
    found: dict[str, int] = {}

    def visit(module: Module, inherited: int) -> int:
        """Place *module* and what is below it; return where the next link of a chain continues."""
        found[module.name] = beside = where.get(module.name, inherited)
        for child in module.children:
            last = visit(child, beside)
            if module.name in holders:
                beside = last
        return beside

    visit(tree, 0)
    return found


def compact(tree: Module, devices: dict[str, int]) -> dict[str, int]:
    """Return *devices*, of every module, as an assignment: without modules on their parent's device, but the root."""
    found = {tree.name: devices[tree.name]}

    def visit(module: Module) -> None:
        for child in module.children:
            if devices[child.name] != devices[module.name]:
                found[child.name] = devices[child.name]
            visit(child)

    visit(tree)
    return found
