"""Builds the section "memory" from traces: copies between host and GPU, memsets, allocations."""

from toolkit.commands.report.model import Block, Table, Words, make_table
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.traced import TracedJob
from toolkit.traces.figures import TraceFigures, compute_figures

MISSING = (
    "No trace holds memory operations. Traces of a GPU hold copies and memsets; allocations are in traces of "
    "torch.profiler with profile_memory=True. The memory of hosts and GPUs over time is under System."
)


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "memory"."""
    return build_trace_blocks(material.traced)


def build_trace_blocks(traced: TracedJob) -> list[Block]:
    """Return the blocks of *traced*."""
    all_figures = [compute_figures(trace) for trace in traced.traces]
    blocks: list[Block] = []
    if any(rank.copies for rank in all_figures):
        blocks.append(_build_copies_table(all_figures))
    if any(rank.memory for rank in all_figures):
        blocks.append(_build_allocations_table(all_figures))
    return blocks or [Words(text=MISSING)]


def _build_copies_table(ran: list[TraceFigures]) -> Table:
    rows = tuple(
        (
            rank_figures.rank or 0,
            copies.name,
            copies.count,
            copies.bytes,
            copies.total_s * 1e3,
            copies.bytes / copies.total_s if copies.total_s else None,
        )
        for rank_figures in ran
        for copies in rank_figures.copies
    )
    columns = (
        "rank",
        "operation",
        "times",
        ("bytes", "bytes"),
        ("time", "ms", "sum of its times on the GPU"),
        ("rate", "bytes/s", "bytes / time"),
    )
    note = "Copies from pageable memory are slower than from pinned memory: DataLoader(pin_memory=True)."
    pageable = any("Pageable" in copies.name for rank_figures in ran for copies in rank_figures.copies)
    title = "Memory operations on the GPU"
    return make_table("memory-operations", title, columns, rows, note=note if pageable else "")


def _build_allocations_table(ran: list[TraceFigures]) -> Table:
    rows = tuple(
        (
            rank_figures.rank or 0,
            memory.device,
            memory.allocations,
            memory.allocated_bytes,
            memory.allocated_bytes - memory.freed_bytes,
            memory.peak_bytes,
        )
        for rank_figures in ran
        for memory in rank_figures.memory
    )
    columns = (
        "rank",
        "device",
        "allocations",
        ("allocated", "bytes", "sum of all allocations in the window"),
        ("not freed", "bytes", "allocated less freed in the window"),
        ("peak", "bytes", "the most that torch's allocator had in use"),
    )
    return make_table("memory-allocations", "Allocations", columns, rows)
