"""Builds the page of a partition decision: the load of each device, its modules, and the transfers between devices."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from toolkit import __version__
from toolkit.commands.report.model import Axis, Block, Box, Boxes, Cell, Page, Section, Table, Words, make_table
from toolkit.commands.report.sections.words import count_words
from toolkit.parallelism import cost
from toolkit.parallelism.decision import PartitionDecision
from toolkit.parallelism.tree import Module

LEAST = 0.05  # Percent: narrower boxes are left out.
LEVELS = 4  # Of modules in the drawing, below the row of devices.
KINDS = 7  # Colours.
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
ROOT = "(model)"
SHARE = "Weight x share of the model's memory + (1 - weight) x share of its time, transfers included at both ends."


def build_page(decision: PartitionDecision, title: str, *, now_s: float) -> Page:
    """Return the page of `toolkit partition show`. *now_s*: seconds since the epoch."""
    tree = decision.tree
    rows = [] if tree is None else _build_module_rows(tree, decision)
    sections = (
        ("outcome", "Decision", (*_build_facts(decision), *build_blocks(decision))),
        ("modules", "Modules", (_build_modules_table(rows),) if rows else ()),
    )
    return Page(
        title=title,
        status="edited" if decision.is_edited else decision.method,
        tone="plain",
        summary=f"{count_words(decision.devices, 'partition')}. {explain_decision(decision)}",
        sections=tuple(
            Section(id=name, title=head, blocks=section_blocks)
            for name, head, section_blocks in sections
            if section_blocks
        ),
        made_by=f"toolkit {__version__}",
        made_at_s=now_s,
    )


def build_blocks(decision: PartitionDecision) -> tuple[Block, ...]:
    """Return the drawing of *decision* and its tables of devices and transfers."""
    tree = decision.tree
    if tree is None:
        return (_build_assignment_table(decision),)
    blocks: list[Block] = [_build_devices_table(decision, tree), _build_drawing(decision, tree)]
    if decision.cuts:
        blocks.append(_build_cuts_table(decision))
    return tuple(blocks)


def _build_facts(decision: PartitionDecision) -> tuple[Words, ...]:
    facts = (
        ("Method", f"{decision.method}: {METHODS.get(decision.method, 'unknown')}{EDITED * decision.is_edited}"),
        ("Weight of memory", f"{decision.memory_weight:g} (1: memory alone, 0: time alone)"),
        ("Measured by", decision.profiled_by),
        ("Fingerprint", decision.fingerprint),
    )
    return tuple(Words(name=name, text=text) for name, text in facts if text)


EDITED = "; the assignment was edited afterwards"
METHODS = {
    "tree": "the published tree method",
    "contiguous": "the best cut of the modules in order of execution",
    "manual": "the script's own",
}


def explain_decision(decision: PartitionDecision) -> str:
    """Return the reason of the decision, in a sentence or two."""
    if not decision.is_edited:
        return decision.reason
    edited = f"The assignment was edited: it is no longer that of the {decision.method} method."
    if decision.tree is None:
        return edited
    loads = cost.compute_loads(decision.tree, decision.assignment, decision.devices)
    share = max(load.cost(measure_scale(decision, decision.tree)) for load in loads)
    return f"{edited} Its busiest partition costs {share:.3f} of the model."


def measure_scale(decision: PartitionDecision, tree: Module) -> cost.CostScale:
    """Return the whole of which costs are shares: the model's memory, and its computing and transfers."""
    loads = cost.compute_loads(tree, decision.assignment, decision.devices)
    memory = sum(load.parameter_bytes + load.activation_bytes for load in loads)
    time_s = sum(load.compute_s + load.transfer_s / 2 for load in loads)
    is_timed = any(load.compute_s for load in loads)
    return cost.CostScale(memory, time_s, decision.memory_weight if is_timed else 1.0)


def _build_devices_table(decision: PartitionDecision, tree: Module) -> Table:
    loads = cost.compute_loads(tree, decision.assignment, decision.devices)
    scale = measure_scale(decision, tree)
    device_of = cost.resolve_devices(tree, decision.assignment)
    owners = [device_of[module.name] for module in tree.walk() if cost.exclusive_cost(module).parameter_bytes]
    shares = [load.cost(scale) for load in loads]
    mean = sum(shares) / len(shares)
    balance = f"The busiest partition has {max(shares) / mean:.2f} times the mean. " if mean else ""
    return make_table(
        "devices",
        "Load of each partition, one microbatch",
        (
            "partition",
            ("modules", "", "Modules with parameters of their own."),
            ("parameters", "bytes"),
            ("activations", "bytes", "What the backward pass needs saved."),
            ("computing", "s", "Forward and backward."),
            ("transfers", "s", f"{cost.MESSAGE_S * 1e6:g} us a message, 1 s a GB, both ways."),
            ("cost", "percent", SHARE),
        ),
        (
            (
                load.device,
                owners.count(load.device),
                load.parameter_bytes,
                load.activation_bytes,
                load.compute_s,
                load.transfer_s,
                100 * share,
            )
            for load, share in zip(loads, shares, strict=True)
        ),
        note=f"{balance}Cost: share of the whole model's.",
    )


def _build_drawing(decision: PartitionDecision, tree: Module) -> Boxes:
    """Return the tree as boxes in rows, each as wide as its cost; the first row has the devices."""
    device_of = cost.resolve_devices(tree, decision.assignment)
    scale = measure_scale(decision, tree)
    levels: list[list[Box]] = [[] for _ in range(LEVELS + 1)]

    def visit(module: Module, level: int, start: float) -> float:
        """Add the boxes of *module*, which begins at *start*; return its end."""
        alone = cost.exclusive_cost(module)
        end = start + 100 * scale.cost(alone.memory_bytes, alone.compute_s)
        _extend_devices_row(levels[0], device_of[module.name], start, end)
        for child in module.children:
            end = visit(child, level + 1, end)
        if 1 <= level <= LEVELS and end - start >= LEAST:
            levels[level].append(_build_box(module, level, device_of[module.name], start, end))
        return end

    visit(tree, 0, 0.0)
    rows = [row for row in levels if row]
    boxes = [box for number, row in enumerate(rows) for box in _set_row(row, number)]
    return Boxes(
        id="partition",
        title="Modules by partition, in order of execution, as wide as their cost",
        x=Axis(name="cost", unit="percent"),
        rows=("partition", *(f"level {number}" for number in range(1, len(rows)))),
        boxes=tuple(boxes),
        kinds=tuple(f"partition {device}" for device in range(min(decision.devices, KINDS))),
        key="The characters are the numbers of partitions.",
        formula=SHARE,
    )


def _build_box(module: Module, level: int, device: int, start: float, end: float) -> Box:
    return Box(
        row=level,
        start=start,
        end=end,
        kind=device % KINDS,
        mark=DIGITS[device % len(DIGITS)],
        label=module.name.rpartition(".")[2],
        text=f"{module.name} ({module.kind}), partition {device}: {end - start:.1f} %",
    )


def _extend_devices_row(row: list[Box], device: int, start: float, end: float) -> None:
    """Add what lies from *start* to *end* on *device* to the row of devices; neighbours on one device are one box."""
    if end <= start:
        return
    kind = device % KINDS
    begin = row.pop().start if row and row[-1].label == str(device) else start
    row.append(
        Box(
            row=0,
            start=begin,
            end=end,
            kind=kind,
            mark=DIGITS[device % len(DIGITS)],
            label=str(device),
            text=f"partition {device}: {end - begin:.1f} %",
        )
    )


def _set_row(row: Sequence[Box], number: int) -> Iterator[Box]:
    import msgspec

    return (msgspec.structs.replace(box, row=number) for box in row)


def _build_module_rows(tree: Module, decision: PartitionDecision) -> list[tuple[Cell, ...]]:
    """Return the rows of the table of modules: a module whole on one device is one row, and so are siblings in a row
    of one class on one device."""
    device_of = cost.resolve_devices(tree, decision.assignment)
    rows: list[tuple[Cell, ...]] = []

    def is_whole(module: Module) -> bool:
        return all(device_of[submodule.name] == device_of[module.name] for submodule in module.walk())

    def visit(module: Module, depth: int) -> None:
        rows.append(_build_module_row([module], depth, str(device_of[module.name])))
        if is_whole(module):
            return
        for (kind, is_run_whole, device), run in groupby(
            module.children, key=lambda child: (child.kind, is_whole(child), device_of[child.name])
        ):
            siblings = list(run)
            if is_run_whole and len(siblings) > 1 and kind:
                rows.append(_build_module_row(siblings, depth + 1, str(device)))
            else:
                for child in siblings:
                    visit(child, depth + 1)

    visit(tree, 0)
    return rows


def _build_module_row(siblings: list[Module], depth: int, device: str) -> tuple[Cell, ...]:
    first, last = siblings[0].name, siblings[-1].name.rpartition(".")[2]
    name = first or ROOT if len(siblings) == 1 else f"{first} to {last}"
    return (
        f"{'· ' * depth}{name}",
        siblings[0].kind,
        device,
        sum(module.parameter_bytes for module in siblings),
        sum(module.activation_bytes for module in siblings),
        sum(module.compute_s for module in siblings),
    )


def _build_modules_table(rows: list[tuple[Cell, ...]]) -> Table:
    return make_table(
        "tree",
        "The tree, down to what is whole in one partition",
        (
            "module",
            "class",
            "partition",
            ("parameters", "bytes", "With everything below; a shared one where it is first."),
            ("activations", "bytes", "With everything below."),
            ("computing", "s", "Forward and backward, with everything below."),
        ),
        rows,
        note="A module without parameters runs with the one that calls it.",
    )


def _build_cuts_table(decision: PartitionDecision) -> Table:
    return make_table(
        "cuts",
        "What crosses in one forward pass of one microbatch",
        (
            "from partition",
            "to partition",
            ("size", "bytes", "The backward pass sends as much back."),
            "messages",
        ),
        ((cut.source, cut.target, cut.bytes, cut.calls) for cut in decision.cuts),
    )


def _build_assignment_table(decided: PartitionDecision) -> Table:
    """Return the assignment alone, for a decision without a tree."""
    rows: list[tuple[Cell, ...]] = []
    for device in range(decided.devices):
        names = [name or "(root)" for name, assigned in decided.assignment.items() if assigned == device]
        crossing = sum(cut.bytes for cut in decided.cuts if cut.source == device)
        rows.append((device, _shorten_names(names), crossing if decided.cuts else None))
    return make_table(
        "partition",
        "Modules by partition",
        (
            "partition",
            "modules",
            ("sent to others", "bytes", "In one forward pass of one microbatch."),
        ),
        rows,
        note="What is not named is in the partition of the module that holds it.",
    )


def _shorten_names(names: list[str], most: int = 6) -> str:
    if len(names) <= most:
        return ", ".join(names) or "(none)"
    return f"{', '.join(names[: most - 1])}, ... {names[-1]} ({len(names)} in all)"
