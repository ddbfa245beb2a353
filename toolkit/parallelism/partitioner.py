"""Which module runs on which device: a pure, deterministic function of (tree, devices, memory weight).

Two methods compete. The tree method is the published one (Karakus et al., "Amazon SageMaker Model Parallelism: A
General and Flexible Framework for Large Model Training", arXiv 2111.05972, the auto-partitioning section): devices are
dealt out from the root down, to contiguous runs of children. The contiguous method cuts the sequence of modules, in
order of execution, where the busiest partition costs least, transfers included. Modules that share a parameter are one:
the later ones go where the first is. A module without parameters runs with its caller, in a chain with the module
before it.
"""

from collections import deque
from collections.abc import Sequence

from toolkit.errors import ContractError
from toolkit.parallelism import cost
from toolkit.parallelism.decision import Decision, digest
from toolkit.parallelism.sequence import Units, compact, complete, links_of, ties, units_of, with_parameters
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
) -> Decision:
    """Return the partition of *tree* onto *devices* devices; *memory_weight* (0 to 1) weighs memory beside time.

    *contiguous_alone*: no device gets modules before and after those of another one.

    Raises:
        ContractError: the model has fewer modules with parameters than devices; *source* names it.
    """
    best, scale = best_split(tree, devices, memory_weight, source)
    contiguous = busiest(tree, best, devices, scale)
    published = by_tree(tree, devices, memory_weight)
    found = busiest(tree, published, devices, scale)
    idle = set(range(devices)) - used(tree, published)
    more = found / contiguous - 1 if contiguous else 0.0
    if devices == 1:
        method, reason = "tree", "One partition holds the whole model."
    elif idle:
        numbers = ", ".join(map(str, sorted(idle)))
        method, reason = "contiguous", f"The tree method leaves partition {numbers} without parameters."
    elif contiguous_alone and not is_contiguous(tree, published):
        method, reason = "contiguous", "The best contiguous split, as parameter contiguous asks for."
    elif more > TOLERANCE:
        method, reason = "contiguous", f"The tree method's busiest partition would cost {100 * more:.1f} % more."
    elif abs(more) < 0.0005:
        method, reason = "tree", "Its busiest partition costs as much as that of the best contiguous split."
    else:
        method = "tree"
        how = "more" if more > 0 else "less"
        reason = f"Its busiest partition costs {100 * abs(more):.1f} % {how} than that of the best contiguous split."
    assignment = published if method == "tree" else best
    return Decision(
        fingerprint=fingerprint,
        devices=devices,
        memory_weight=memory_weight,
        method=method,
        reason=reason,
        assignment=assignment,
        cuts=cost.cuts(tree, assignment),
        tree=tree,
        profiled_by=profiled_by,
        decided=digest(assignment),
    )


def is_contiguous(tree: Module, assignment: dict[str, int]) -> bool:
    """Whether the devices of the modules with parameters, in order of execution, only go up."""
    where = cost.devices_of(tree, assignment)
    order = [where[module.name] for module in tree.walk() if not module.children and module.parameter_bytes]
    return order == sorted(order)


def busiest(tree: Module, assignment: dict[str, int], devices: int, scale: cost.Scale) -> float:
    """Return what the partitioner minimises: the cost of the device that costs most."""
    return max(load.cost(scale) for load in cost.loads(tree, assignment, devices))


def used(tree: Module, assignment: dict[str, int]) -> set[int]:
    """Return the devices that hold parameters under *assignment*."""
    where = cost.devices_of(tree, assignment)
    return {where[module.name] for module in tree.walk() if cost.own(module).parameter_bytes}


def best_split(tree: Module, devices: int, memory_weight: float, source: str) -> tuple[dict[str, int], cost.Scale]:
    """Return the best contiguous split, every device with a part, and the scale of its costs.

    The time of the scale is the whole model's computing plus the transfers of the split that is best without them: a
    small model's time is mostly transfers, and they must not outweigh its memory.
    """
    fine = units_of(tree, devices)
    if len(fine.names) < devices:
        raise ContractError(
            f"expected a model with at least {devices} modules that have parameters of their own, one for each "
            f"partition, found {len(fine.names)}",
            where=source,
            hint="Lower partitions, or divide the model into more modules.",
        )
    memory = float(sum(fine.memory_bytes))
    plain = cost.Scale(memory, sum(fine.compute_s), memory_weight)
    first = fine.assignment(_cut(fine, devices, plain, with_transfers=False))
    crossing_s = sum(load.transfer_s for load in cost.loads(tree, first, devices)) / 2
    scale = cost.Scale(memory, sum(fine.compute_s) + crossing_s, memory_weight)
    found = [fine.assignment(_cut(fine, devices, scale))]
    chain = links_of(tree)
    if chain is not None and len(chain.names) >= devices:
        found.append(chain.assignment(_cut(chain, devices, scale)))
    return min(found, key=lambda assignment: busiest(tree, assignment, devices, scale)), scale


def _cut(units: Units, devices: int, scale: cost.Scale, *, with_transfers: bool = True) -> list[int]:
    """Return the first unit of each device's run, such that the busiest partition costs least."""
    count = len(units.names)
    costs = units.costs_of_runs(scale, with_transfers=with_transfers)
    # best[end]: (cost of the busiest device, sum of squares) of the units before `end`, and where the last run begins.
    worst = (float("inf"), 0.0)
    best: list[tuple[tuple[float, float], int]] = [((0.0, 0.0), 0)] + [(worst, 0)] * count
    begins = []
    for device in range(devices):
        now: list[tuple[tuple[float, float], int]] = [(worst, 0)] * (count + 1)
        for start in range(device, count):
            (before, squares), _ = best[start]
            if before == worst[0]:
                continue
            for end, here in enumerate(costs[start], start + 1):
                found = (before if before > here else here, squares + here * here)
                if found < now[end][0]:
                    now[end] = (found, start)
        begins.append([begin for _, begin in now])
        best = now
    cut, end = [], count
    for row in reversed(begins):
        end = row[end]
        cut.append(end)
    return cut[::-1]


def by_tree(tree: Module, devices: int, memory_weight: float) -> dict[str, int]:
    """Return the assignment of the published tree method.

    Breadth first from the root, which has all devices: a module runs on the first of its devices; its children are
    cut into as many contiguous segments as it has devices, the costliest segment as cheap as can be; the segments
    get devices by D'Hondt's quotients, those without one the parent's first.
    """
    tied = ties(tree)
    carries = with_parameters(tree, tied)
    costs = _inclusive(tree, tied, memory_weight)
    where: dict[str, int] = {}
    queue: deque[tuple[Module, Sequence[int]]] = deque([(tree, range(devices))])
    while queue:
        module, given = queue.popleft()
        where[module.name] = given[0]
        children = [child for child in module.children if child.name in carries and child.name not in tied]
        queue.extend(_deal(children, [costs[child.name] for child in children], given, given[0]))
        pinned = [child for child in module.children if child.name in tied]
        queue.extend((child, given[:1]) for child in pinned)
    where |= {name: where[first] for name, first in tied.items()}
    return compact(tree, complete(tree, where))


def _inclusive(tree: Module, tied: dict[str, str], memory_weight: float) -> dict[str, float]:
    """Return the cost of each module with all below it; what a tied module costs counts where its first is."""
    memory = {module.name: 0.0 for module in tree.walk()}
    time_s = dict(memory)
    for module in tree.walk():
        first = tied.get(module.name, module.name)
        alone = cost.own(module)
        memory[first] += alone.memory_bytes
        time_s[first] += alone.compute_s
    scale = cost.Scale(sum(memory.values()), sum(time_s.values()), memory_weight)
    found: dict[str, float] = {}

    def add(module: Module) -> float:
        alone = scale.cost(memory[module.name], time_s[module.name])
        found[module.name] = alone + sum(add(child) for child in module.children)
        return found[module.name]

    add(tree)
    return found


def _deal(
    modules: Sequence[Module], costs: Sequence[float], given: Sequence[int], fallback: int
) -> list[tuple[Module, Sequence[int]]]:
    """Return each of *modules*, siblings in order, with the devices out of *given* that it gets."""
    if len(given) == 1 or len(modules) <= 1:
        return [(module, given) for module in modules]
    begins = segments(costs, min(len(given), len(modules)))
    ends = [*begins[1:], len(modules)]
    shares = quotients([sum(costs[begin:end]) for begin, end in zip(begins, ends, strict=True)], len(given))
    found: list[tuple[Module, Sequence[int]]] = []
    taken = 0
    for begin, end, share in zip(begins, ends, shares, strict=True):
        devices = given[taken : taken + share] or [fallback]
        taken += share
        found += _deal(modules[begin:end], costs[begin:end], devices, fallback)
    return found


def segments(costs: Sequence[float], count: int) -> list[int]:
    """Return where each of *count* contiguous, non-empty segments of *costs* begins; the costliest is least."""
    sums = [0.0]
    for each in costs:
        sums.append(sums[-1] + each)
    size = len(costs)
    best = [[float("inf")] * (size + 1) for _ in range(count + 1)]
    begin = [[0] * (size + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for number in range(1, count + 1):
        for end in range(number, size + 1):
            for start in range(number - 1, end):
                found = max(best[number - 1][start], sums[end] - sums[start])
                if found < best[number][end]:
                    best[number][end], begin[number][end] = found, start
    found_begins, end = [], size
    for number in range(count, 0, -1):
        end = begin[number][end]
        found_begins.append(end)
    return found_begins[::-1]


def quotients(costs: Sequence[float], devices: int) -> list[int]:
    """Return how many of *devices* devices each segment gets: one after another to the highest cost / (had + 1)."""
    given = [0] * len(costs)
    for _ in range(devices):
        highest = max(range(len(costs)), key=lambda at: (costs[at] / (given[at] + 1), -at))
        given[highest] += 1
    return given
