"""Builds the section "modelparallel": the device of each module, the timeline of microbatches, memory by device."""

from pathlib import Path

import msgspec

from toolkit import files, folders
from toolkit.commands.report.model import Axis, Block, Box, Boxes, Cell, Table, Words, make_table
from toolkit.commands.report.sections import partition
from toolkit.commands.report.sections.material import Material
from toolkit.errors import ToolkitError
from toolkit.parallelism import decision as decisions
from toolkit.parallelism import timeline
from toolkit.parallelism.timeline import RankStep

KINDS = ("forward", "backward", "recompute")
KEY = "Digits: forward of that microbatch (its last digit); letters: backward (a is microbatch 0); +: recomputing."
BUBBLE = (
    "Idle time: from the first span to the last of any partition of this replica, less the partition's own spans. "
    "Recorded by the ranks themselves (output/data/modelparallel); spans of different hosts are placed by their wall "
    "clocks."
)


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "modelparallel"; none if the job was not model parallel."""
    blocks: list[Block] = []
    for host in material.job.hosts:
        blocks += _read_decision(host.output / "data" / decisions.FILE)
        if blocks:
            break  # Every host follows the same decision.
    steps = [step for host in material.job.hosts for step in _read_steps(host.output / "data" / timeline.FOLDER)]
    return blocks + (_build_timeline(steps) if steps else [])


def _read_decision(path: Path) -> list[Block]:
    if not folders.may_exist(path):
        return []
    try:
        decided = decisions.read(path)
    except ToolkitError as error:
        return [Words(text=str(error), tone="warn")]
    way = "edited" if decided.is_edited else decided.method
    name = f"Partition ({way}, {decided.devices} partitions)"
    return [Words(name=name, text=partition.explain_decision(decided)), *partition.build_blocks(decided)]


def _read_steps(folder: Path) -> list[RankStep]:
    """Return the recorded steps in *folder*; a line that a killed rank did not finish is left out."""
    steps = []
    for path in folders.matching(folder, f"{timeline.PREFIX}*.jsonl", folders.named_elsewhere):
        try:
            lines = files.read(path, files.RECORDS_BYTES).splitlines()
        except OSError:
            continue  # A note of the job names it.
        for line in lines:
            try:
                steps.append(msgspec.json.decode(line, type=RankStep))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
    return steps


def _build_timeline(steps: list[RankStep]) -> list[Block]:
    """Return the last step that every rank of the first replica recorded, and the memory of all ranks."""
    first_replica = [step for step in steps if step.rdp_rank == min(recorded.rdp_rank for recorded in steps)]
    ranks = {step.rank for step in first_replica}
    whole_steps = [
        number
        for number in sorted({step.step for step in first_replica})
        if {step.rank for step in first_replica if step.step == number} == ranks
    ]
    blocks: list[Block] = []
    if whole_steps:
        drawn = sorted(
            (step for step in first_replica if step.step == whole_steps[-1]), key=lambda step: (step.pp_rank, step.rank)
        )
        blocks.append(_build_schedule(drawn))
    return [*blocks, _build_memory_table(steps)]


def _build_schedule(steps: list[RankStep]) -> Boxes:
    boxes = []
    for row, step in enumerate(steps):
        shift_ns = step.wall_ns - step.monotonic_ns
        boxes += [
            Box(
                row=row,
                start=(span.begin_ns + shift_ns) / 1e9,
                end=(span.end_ns + shift_ns) / 1e9,
                kind=KINDS.index(span.kind),
                mark=_choose_mark(span.kind, span.microbatch),
                label=str(span.microbatch),
                text=f"{span.kind} of microbatch {span.microbatch}, {(span.end_ns - span.begin_ns) / 1e6:.3g} ms",
            )
            for span in step.spans
        ]
    low = min((box.start for box in boxes), default=0.0)
    boxes = [msgspec.structs.replace(box, start=box.start - low, end=box.end - low) for box in boxes]
    step = steps[0]
    whole_s = max((box.end for box in boxes), default=0.0)
    busy_s = sum(_sum_covered_s([box for box in boxes if box.row == row]) for row in range(len(steps)))
    bubble = 1 - busy_s / (whole_s * len(steps)) if whole_s else 0.0
    stages = len({rank_step.pp_rank for rank_step in steps})
    ideal = (stages - 1) / (step.microbatches + stages - 1)
    return Boxes(
        id="microbatches",
        title=f"Microbatches by partition in step {step.step} ({step.pipeline}, {step.path})",
        x=Axis(name="time", unit="s"),
        rows=tuple(f"partition {rank_step.pp_rank} (rank {rank_step.rank})" for rank_step in steps),
        boxes=tuple(boxes),
        kinds=KINDS if any(box.kind == 2 for box in boxes) else KINDS[:2],
        key=KEY,
        note=f"Idle share of all partitions (bubble): {100 * bubble:.0f} %; {100 * ideal:.0f} % is the least for "
        f"{stages} equal partitions and {step.microbatches} microbatches.{_explain_fallback(steps)}",
        formula=BUBBLE,
    )


def _explain_fallback(steps: list[RankStep]) -> str:
    reason = next((step.server_reason for step in steps if step.server_reason), "")
    return f" The step ran in the module server, not on torch's schedules: {reason}." if reason else ""


def _sum_covered_s(boxes: list[Box]) -> float:
    """Return the time that *boxes* of one device cover: in the module server two may overlap."""
    covered = end = 0.0
    for box in sorted(boxes, key=lambda box: box.start):
        covered += max(0.0, box.end - max(end, box.start))
        end = max(end, box.end)
    return covered


def _choose_mark(kind: str, microbatch: int) -> str:
    return {"forward": str(microbatch % 10), "backward": chr(ord("a") + microbatch % 26)}.get(kind, "+")


def _build_memory_table(steps: list[RankStep]) -> Table:
    last = {step.rank: step for step in sorted(steps, key=lambda step: step.step)}
    peak: dict[int, int] = {}
    for step in steps:
        if step.peak_activation_bytes is not None:
            peak[step.rank] = max(step.peak_activation_bytes, peak.get(step.rank, 0))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (rank, step.pp_rank, step.rdp_rank, step.parameter_bytes, peak.get(rank)) for rank, step in sorted(last.items())
    )
    return make_table(
        "modelparallel-memory",
        "Memory by rank",
        (
            "rank",
            ("partition", "", "The rank's number in the pipeline (pp rank)."),
            ("replica", "", "The rank's number among the copies of the model (rdp rank)."),
            ("parameters", "bytes", "Of the modules on this rank."),
            (
                "activations",
                "bytes",
                "What autograd had saved for the backward pass at once, at most, in recorded steps (PyTorch).",
            ),
        ),
        rows,
    )
