"""The section of a model parallel job, from files as its ranks write them."""

from pathlib import Path

import msgspec

from tests.commands.report.test_kernels import job
from toolkit.commands.report.model import Block, Boxes, Table, Words
from toolkit.commands.report.sections import modelparallel
from toolkit.commands.report.sections.material import Material
from toolkit.parallelism import decision, timeline
from toolkit.parallelism.decision import Cut, PartitionDecision
from toolkit.parallelism.timeline import RankStep, Span

MS = 1_000_000


def rank_step(rank: int, spans: list[tuple[str, int, int, int]], *, step: int = 2, clock_ns: int = 0) -> RankStep:
    """*spans*: (kind, microbatch, begin and end in ms of the wall clock); *clock_ns*: where its own clock begins."""
    return RankStep(
        rank=rank,
        pp_rank=rank,
        rdp_rank=0,
        step=step,
        path="server",
        pipeline="interleaved",
        microbatches=2,
        begin_ns=0,
        end_ns=10 * MS,
        monotonic_ns=0,
        wall_ns=clock_ns,
        parameter_bytes=100 * (rank + 1),
        peak_activation_bytes=10 * step,
        server_reason="the model has hooks" if rank == 0 else "",
        spans=tuple(
            Span(kind=kind, microbatch=number, begin_ns=begin * MS - clock_ns, end_ns=end * MS - clock_ns)  # type: ignore[arg-type]
            for kind, number, begin, end in spans
        ),
    )


def blocks_of(folder: Path, *steps: RankStep, half_line: bool = False) -> list[Block]:
    data = folder / "data"
    (data / timeline.FOLDER).mkdir(parents=True)
    decided = PartitionDecision(
        fingerprint="f",
        devices=2,
        memory_weight=0.8,
        method="tree",
        reason="The published method's split.",
        assignment={"": 0, "conv": 0, "dense": 1},
        cuts=(Cut(source=0, target=1, bytes=4096, calls=1),),
    )
    decision.write(decided, data / decision.FILE)
    for step in steps:
        with (data / timeline.FOLDER / f"{timeline.PREFIX}{step.rank}.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(step) + b"\n")
    if half_line:
        with (data / timeline.FOLDER / f"{timeline.PREFIX}0.jsonl").open("ab") as file:
            file.write(b'{"rank": 0, "pp_')
    return modelparallel.build_blocks(Material(job(folder), now_s=2e9))


FIRST = [("forward", 0, 0, 1), ("forward", 1, 1, 2), ("backward", 0, 3, 4), ("backward", 1, 4, 5)]
SECOND = [("forward", 0, 1, 2), ("backward", 0, 2, 3), ("forward", 1, 3, 4), ("backward", 1, 4, 5)]


def test_the_page_shows_modules_memory_and_the_bubble_of_the_last_step_that_all_ranks_recorded(tmp_path: Path) -> None:
    reason, modules, drawn, memory = blocks_of(
        tmp_path,
        rank_step(0, FIRST, clock_ns=7 * MS),
        rank_step(1, SECOND, clock_ns=-3 * MS),
        rank_step(0, FIRST, step=3),
        half_line=True,
    )
    assert isinstance(reason, Words) and reason.text == "The published method's split."
    assert isinstance(modules, Table) and modules.rows == ((0, "(root), conv", 4096), (1, "dense", 0))
    assert isinstance(drawn, Boxes) and "step 2" in drawn.title
    # On one axis, whatever each host's own clock says.
    assert [(round(box.start * 1e3), round(box.end * 1e3)) for box in drawn.boxes if box.row == 0] == [
        (0, 1),
        (1, 2),
        (3, 4),
        (4, 5),
    ]
    assert [round(box.start * 1e3) for box in drawn.boxes if box.row == 1] == [1, 2, 3, 4]
    assert "".join(box.mark for box in drawn.boxes if box.row == 1) == "0a1b"
    # 8 ms of 2 x 5 ms are busy; (2 - 1) / (2 + 2 - 1) is the least.
    assert "(bubble): 20 %; 33 % is the least for 2 equal partitions and 2 microbatches" in drawn.note
    assert drawn.note.endswith("The step ran in the module server, not on torch's schedules: the model has hooks.")
    assert isinstance(memory, Table) and memory.rows == ((0, 0, 0, 100, 30), (1, 1, 0, 200, 20))


def test_spans_that_overlap_count_once(tmp_path: Path) -> None:
    """Rank 0 computes for 4 of 5 ms, in two of them for both microbatches; rank 1 for all."""
    first = [("forward", 0, 0, 3), ("forward", 1, 1, 4)]

    uncounted = msgspec.structs.replace(rank_step(1, [("forward", 0, 0, 5)]), peak_activation_bytes=None)

    drawn, memory = blocks_of(tmp_path, rank_step(0, first), uncounted)[2:]

    assert isinstance(memory, Table) and [row[4] for row in memory.rows] == [20, None]
    assert isinstance(drawn, Boxes) and "(bubble): 10 %" in drawn.note


def test_another_job_has_no_blocks(tmp_path: Path) -> None:
    assert modelparallel.build_blocks(Material(job(tmp_path), now_s=2e9)) == []


def test_a_damaged_decision_is_named_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / decision.FILE).write_text('{"version": 1}')
    (words,) = modelparallel.build_blocks(Material(job(tmp_path), now_s=2e9))
    assert isinstance(words, Words) and words.tone == "warn" and "fingerprint" in words.text
