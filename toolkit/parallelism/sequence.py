"""Divides a module tree into a sequence of units, in order of execution, that the contiguous method cuts into runs.
Pure.

A unit is a module with parameters and none below it, or a link of a chain that must stay undivided. The exclusive cost
of a module around units belongs to its first unit: it runs on that device.
"""

from collections.abc import Iterator

from toolkit.parallelism import cost
from toolkit.parallelism.tree import Module

# There are n x n / 2 runs: modules stay undivided if there would be more units than this.
MOST = 400


class Units:
    """The units of a tree: their names, their costs, and the transfers between their positions.

    *positions*: the position of every module in the sequence. *is_chain*: the units are the links of the model's chain.
    """

    def __init__(self, tree: Module, names: list[str], positions: dict[str, int], *, is_chain: bool) -> None:
        self.names = names
        self.positions = positions
        self.memory_bytes = [0] * len(names)
        self.compute_s = [0.0] * len(names)
        self._tree = tree
        for module in tree.walk():
            exclusive = cost.exclusive_cost(module)
            self.memory_bytes[positions[module.name]] += exclusive.memory_bytes
            self.compute_s[positions[module.name]] += exclusive.compute_s
        # position -> (partner's position, seconds), in both directions.
        self._partners: list[list[tuple[int, float]]] = [[] for _ in names]
        for transfer in cost.list_transfers(tree, as_chain=is_chain):
            caller, callee = positions[transfer.caller], positions[transfer.callee]
            if caller != callee:
                self._partners[caller].append((callee, transfer.seconds))
                self._partners[callee].append((caller, transfer.seconds))

    def costs_of_runs(self, scale: cost.CostScale, *, with_transfers: bool) -> list[list[float]]:
        """Return, for each first unit, the costs of the runs that end with it, the next one, and so on."""
        return [list(self._runs_from(start, scale, with_transfers)) for start in range(len(self.names))]

    def _runs_from(self, start: int, scale: cost.CostScale, with_transfers: bool) -> Iterator[float]:
        memory, time_s, crossing_s = 0.0, 0.0, 0.0
        for position in range(start, len(self.names)):
            memory += self.memory_bytes[position]
            time_s += self.compute_s[position]
            if with_transfers:
                for partner, seconds in self._partners[position]:
                    crossing_s += -seconds if start <= partner < position else seconds
            yield scale.cost(memory, time_s + crossing_s)

    def assignment(self, begins: list[int]) -> dict[str, int]:
        """Return the assignment whose device d has the units from begins[d] to the next one's."""
        device = [0] * len(self.names)
        for number, begin in enumerate(begins):
            device[begin:] = [number] * (len(device) - begin)
        return compact_assignment(self._tree, {name: device[position] for name, position in self.positions.items()})


def divide_into_units(tree: Module, devices: int) -> Units:
    """Return the units of *tree*: divided as deeply as possible with at most MOST units, or until there are as many as
    *devices*."""
    height = _height(tree)
    units = _divide(tree, depth=1)
    for depth in range(2, height + 1):
        deeper = _divide(tree, depth=depth)
        if len(deeper.names) <= MOST or len(units.names) < devices:
            units = deeper
    return units


def links_as_units(tree: Module) -> Units | None:
    """Return the links of *tree*'s chain as units; None if it is no chain, or links share parameters."""
    chain = cost.find_chain(tree)
    if chain is None or find_ties(tree):
        return None
    return _divide(tree, undivided=tuple(link.name for link in chain.links))


def _divide(tree: Module, *, depth: int = -1, undivided: tuple[str, ...] = ()) -> Units:
    """Return the units: the modules named in *undivided*, or modules at most *depth* below the root."""
    tied = find_ties(tree)
    carries = modules_with_parameters(tree, tied)
    names: list[str] = []
    positions: dict[str, int] = {}

    def visit(module: Module, level: int) -> None:
        first = len(names)
        if module.name in undivided or level == depth:
            positions.update({descendant.name: first for descendant in module.walk()})
        else:
            for child in module.children:
                if child.name in carries:
                    visit(child, level + 1)
        positions[module.name] = first
        if len(names) == first and module.name not in tied:
            names.append(module.name)

    visit(tree, 0)
    positions |= {name: positions[first] for name, first in tied.items()}
    return Units(tree, names, complete_assignment(tree, positions), is_chain=bool(undivided))


def _height(module: Module) -> int:
    return 1 + max((_height(child) for child in module.children), default=-1)


def find_ties(tree: Module) -> dict[str, str]:
    """Return, for each module that shares a parameter with an earlier one, the first module, with whose device it
    goes."""
    first: dict[str, str] = {}
    order = {module.name: number for number, module in enumerate(tree.walk())}

    def root(name: str) -> str:
        while name in first:
            name = first[name]
        return name

    for module in tree.walk():
        for partner in module.shares:
            earlier, later = sorted((root(module.name), root(partner)), key=order.__getitem__)
            if earlier != later:
                first[later] = earlier
    return {name: root(name) for name in first}


def modules_with_parameters(tree: Module, tied: dict[str, str]) -> set[str]:
    """Return the root and the modules that hold parameters or are tied to one that does, themselves or below."""
    carriers = {tree.name}
    bound = {*tied, *tied.values()}

    def visit(module: Module) -> bool:
        below = [visit(child) for child in module.children]
        if any(below) or module.parameter_bytes or module.name in bound:
            carriers.add(module.name)
            return True
        return False

    visit(tree)
    return carriers


def complete_assignment(tree: Module, assignment: dict[str, int]) -> dict[str, int]:
    """Return the device of every module; *assignment* has those with parameters. A module without is on its parent's
    device, a link of the model's chain on that of the link before it."""
    chain = cost.find_chain(tree)
    holders = chain.holders if chain is not None else frozenset()
    devices: dict[str, int] = {}

    def visit(module: Module, inherited: int) -> int:
        """Assign *module* and the modules below it; return the device on which the next link of a chain continues."""
        devices[module.name] = device = assignment.get(module.name, inherited)
        for child in module.children:
            last = visit(child, device)
            if module.name in holders:
                device = last
        return device

    visit(tree, 0)
    return devices


def compact_assignment(tree: Module, devices: dict[str, int]) -> dict[str, int]:
    """Return *devices*, which names every module, as an assignment: the root and the modules not on their parent's
    device."""
    assignment = {tree.name: devices[tree.name]}

    def visit(module: Module) -> None:
        for child in module.children:
            if devices[child.name] != devices[module.name]:
                assignment[child.name] = devices[child.name]
            visit(child)

    visit(tree)
    return assignment
