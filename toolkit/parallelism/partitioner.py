"""Assigns modules to devices: a pure, deterministic function of (tree, devices, memory weight).

Two methods compete. The tree method is the published one (Karakus et al., "Amazon SageMaker Model Parallelism: A
General and Flexible Framework for Large Model Training", arXiv 2111.05972, the auto-partitioning section): devices are
dealt out from the root down, to contiguous runs of children. The contiguous method cuts the sequence of modules, in
order of execution, where the busiest partition costs least, transfers included. Modules that share a parameter are one:
the later ones go to the device of the first. A module without parameters runs with its caller, in a chain with the
module before it.
"""

from collections import deque
from collections.abc import Sequence

from toolkit.errors import ContractError
from toolkit.parallelism import cost
from toolkit.parallelism.decision import PartitionDecision, digest
from toolkit.parallelism.sequence import (
    Units,
    compact_assignment,
    complete_assignment,
    divide_into_units,
    find_ties,
    links_as_units,
    modules_with_parameters,
)
from toolkit.parallelism.tree import Module

# The tree method is taken unless it is worse than the best contiguous split by more than this.
TOLERANCE = 0.05


def decide(
    tree: Module,
    devices: int,
    memory_weight: float,
    fingerprint: str,
    *,
    contiguous_alone: bool = False,
    profiled_by: str = "",
    source: str = "",
) -> PartitionDecision:
    """Return the partition of *tree* onto *devices* devices; *memory_weight* (0 to 1) weighs memory beside time.

    *contiguous_alone*: no device gets modules both before and after those of another device.

    Raises:
        ContractError: the model has fewer modules with parameters than devices; *source* names it.
    """
    contiguous, scale = find_best_split(tree, devices, memory_weight, source)
    contiguous_cost = busiest_cost(tree, contiguous, devices, scale)
    tree_method = assign_by_tree(tree, devices, memory_weight)
    tree_method_cost = busiest_cost(tree, tree_method, devices, scale)
    idle = set(range(devices)) - used_devices(tree, tree_method)
    excess = tree_method_cost / contiguous_cost - 1 if contiguous_cost else 0.0
    if devices == 1:
        method, reason = "tree", "One partition holds the whole model."
    elif idle:
        numbers = ", ".join(map(str, sorted(idle)))
        method, reason = "contiguous", f"The tree method leaves partition {numbers} without parameters."
    elif contiguous_alone and not is_contiguous(tree, tree_method):
        method, reason = "contiguous", "The best contiguous split, as parameter contiguous asks for."
    elif excess > TOLERANCE:
        method, reason = "contiguous", f"The tree method's busiest partition would cost {100 * excess:.1f} % more."
    elif abs(excess) < 0.0005:
        method, reason = "tree", "Its busiest partition costs as much as that of the best contiguous split."
    else:
        method = "tree"
        comparison = "more" if excess > 0 else "less"
        reason = (
            f"Its busiest partition costs {100 * abs(excess):.1f} % {comparison} than that of the best contiguous "
            "split."
        )
    assignment = tree_method if method == "tree" else contiguous
    return PartitionDecision(
        fingerprint=fingerprint,
        devices=devices,
        memory_weight=memory_weight,
        method=method,
        reason=reason,
        assignment=assignment,
        cuts=cost.compute_cuts(tree, assignment),
        tree=tree,
        profiled_by=profiled_by,
        decided=digest(assignment),
    )


def is_contiguous(tree: Module, assignment: dict[str, int]) -> bool:
    """Return whether the devices of the modules with parameters, in order of execution, never decrease."""
    devices = cost.resolve_devices(tree, assignment)
    order = [devices[module.name] for module in tree.walk() if not module.children and module.parameter_bytes]
    return order == sorted(order)


def busiest_cost(tree: Module, assignment: dict[str, int], devices: int, scale: cost.CostScale) -> float:
    """Return the cost of the most expensive device, which the partitioner minimises."""
    return max(load.cost(scale) for load in cost.compute_loads(tree, assignment, devices))


def used_devices(tree: Module, assignment: dict[str, int]) -> set[int]:
    """Return the devices that hold parameters under *assignment*."""
    devices_by_module = cost.resolve_devices(tree, assignment)
    return {devices_by_module[module.name] for module in tree.walk() if cost.exclusive_cost(module).parameter_bytes}


def find_best_split(
    tree: Module, devices: int, memory_weight: float, source: str
) -> tuple[dict[str, int], cost.CostScale]:
    """Return the best contiguous split, in which every device has a part, and the scale of its costs.

    The time of the scale is the whole model's computing plus the transfers of the split that is best without them: a
    small model's time is mostly transfers, and they must not outweigh its memory.
    """
    units = divide_into_units(tree, devices)
    if len(units.names) < devices:
        raise ContractError(
            f"expected a model with at least {devices} modules that have parameters of their own, one for each "
            f"partition, found {len(units.names)}",
            where=source,
            hint="Lower partitions, or divide the model into more modules.",
        )
    memory = float(sum(units.memory_bytes))
    without_transfers = cost.CostScale(memory, sum(units.compute_s), memory_weight)
    first = units.assignment(_cut_into_runs(units, devices, without_transfers, with_transfers=False))
    crossing_s = sum(load.transfer_s for load in cost.compute_loads(tree, first, devices)) / 2
    scale = cost.CostScale(memory, sum(units.compute_s) + crossing_s, memory_weight)
    candidates = [units.assignment(_cut_into_runs(units, devices, scale))]
    chain = links_as_units(tree)
    if chain is not None and len(chain.names) >= devices:
        candidates.append(chain.assignment(_cut_into_runs(chain, devices, scale)))
    return min(candidates, key=lambda assignment: busiest_cost(tree, assignment, devices, scale)), scale


def _cut_into_runs(units: Units, devices: int, scale: cost.CostScale, *, with_transfers: bool = True) -> list[int]:
    """Return the first unit of each device's run, such that the busiest partition costs least."""
    count = len(units.names)
    costs = units.costs_of_runs(scale, with_transfers=with_transfers)
    # best[end]: (cost of the busiest device, sum of squares) of the units before `end`, and where the last run begins.
    worst = (float("inf"), 0.0)
    best: list[tuple[tuple[float, float], int]] = [((0.0, 0.0), 0)] + [(worst, 0)] * count
    begins = []
    for device in range(devices):
        next_best: list[tuple[tuple[float, float], int]] = [(worst, 0)] * (count + 1)
        for start in range(device, count):
            (busiest_so_far, squares), _ = best[start]
            if busiest_so_far == worst[0]:
                continue
            for end, run_cost in enumerate(costs[start], start + 1):
                candidate = (busiest_so_far if busiest_so_far > run_cost else run_cost, squares + run_cost * run_cost)
                if candidate < next_best[end][0]:
                    next_best[end] = (candidate, start)
        begins.append([begin for _, begin in next_best])
        best = next_best
    cut, end = [], count
    for row in reversed(begins):
        end = row[end]
        cut.append(end)
    return cut[::-1]


def assign_by_tree(tree: Module, devices: int, memory_weight: float) -> dict[str, int]:
    """Return the assignment of the published tree method.

    Breadth first from the root, which has all devices: a module runs on the first of its devices; its children are
    cut into as many contiguous segments as it has devices, the costliest segment as cheap as can be; the segments
    get devices by D'Hondt's quotients, those without one the parent's first.
    """
    tied = find_ties(tree)
    carries = modules_with_parameters(tree, tied)
    costs = _inclusive_costs(tree, tied, memory_weight)
    device_by_module: dict[str, int] = {}
    queue: deque[tuple[Module, Sequence[int]]] = deque([(tree, range(devices))])
    while queue:
        module, devices_of_module = queue.popleft()
        device_by_module[module.name] = devices_of_module[0]
        children = [child for child in module.children if child.name in carries and child.name not in tied]
        queue.extend(
            _deal_devices(children, [costs[child.name] for child in children], devices_of_module, devices_of_module[0])
        )
        pinned = [child for child in module.children if child.name in tied]
        queue.extend((child, devices_of_module[:1]) for child in pinned)
    device_by_module |= {name: device_by_module[first] for name, first in tied.items()}
    return compact_assignment(tree, complete_assignment(tree, device_by_module))


def _inclusive_costs(tree: Module, tied: dict[str, str], memory_weight: float) -> dict[str, float]:
    """Return the cost of each module with all below it; the cost of a tied module counts at the first of them."""
    memory = {module.name: 0.0 for module in tree.walk()}
    time_s = dict(memory)
    for module in tree.walk():
        first = tied.get(module.name, module.name)
        exclusive = cost.exclusive_cost(module)
        memory[first] += exclusive.memory_bytes
        time_s[first] += exclusive.compute_s
    scale = cost.CostScale(sum(memory.values()), sum(time_s.values()), memory_weight)
    inclusive_costs: dict[str, float] = {}

    def add(module: Module) -> float:
        exclusive = scale.cost(memory[module.name], time_s[module.name])
        inclusive_costs[module.name] = exclusive + sum(add(child) for child in module.children)
        return inclusive_costs[module.name]

    add(tree)
    return inclusive_costs


def _deal_devices(
    modules: Sequence[Module], costs: Sequence[float], devices: Sequence[int], fallback: int
) -> list[tuple[Module, Sequence[int]]]:
    """Return each of *modules*, siblings in order, with its share of *devices*."""
    if len(devices) == 1 or len(modules) <= 1:
        return [(module, devices) for module in modules]
    begins = cut_segments(costs, min(len(devices), len(modules)))
    ends = [*begins[1:], len(modules)]
    shares = apportion_devices([sum(costs[begin:end]) for begin, end in zip(begins, ends, strict=True)], len(devices))
    dealt: list[tuple[Module, Sequence[int]]] = []
    taken = 0
    for begin, end, share in zip(begins, ends, shares, strict=True):
        run_devices = devices[taken : taken + share] or [fallback]
        taken += share
        dealt += _deal_devices(modules[begin:end], costs[begin:end], run_devices, fallback)
    return dealt


def cut_segments(costs: Sequence[float], count: int) -> list[int]:
    """Return the begins of *count* contiguous, non-empty segments of *costs* whose costliest segment is cheapest."""
    sums = [0.0]
    for segment_cost in costs:
        sums.append(sums[-1] + segment_cost)
    size = len(costs)
    best = [[float("inf")] * (size + 1) for _ in range(count + 1)]
    begin = [[0] * (size + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for number in range(1, count + 1):
        for end in range(number, size + 1):
            for start in range(number - 1, end):
                costliest = max(best[number - 1][start], sums[end] - sums[start])
                if costliest < best[number][end]:
                    best[number][end], begin[number][end] = costliest, start
    segment_begins, end = [], size
    for number in range(count, 0, -1):
        end = begin[number][end]
        segment_begins.append(end)
    return segment_begins[::-1]


def apportion_devices(costs: Sequence[float], devices: int) -> list[int]:
    """Return the number of *devices* for each segment. Each device goes to the highest cost / (devices so far + 1)."""
    counts = [0] * len(costs)
    for _ in range(devices):
        highest = max(range(len(costs)), key=lambda number: (costs[number] / (counts[number] + 1), -number))
        counts[highest] += 1
    return counts
