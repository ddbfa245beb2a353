"""The report shows traces: of GPUs, of CPUs, of several ranks, and of none."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces import made
from tests.traces.test_rank_comparison import gpu_rank
from toolkit.commands.jobs.data import HostData, JobData
from toolkit.commands.report.model import Block, Chart, Shares, Table, Words
from toolkit.commands.report.sections import kernels, memory, traced
from toolkit.commands.report.sections.traced import TracedJob, TracePair

GPU = TracedJob(traces=(made.trace(made.gpu_step()),), window="steps-1-1", ranks=1)


def by_id(blocks: list[Block]) -> dict[str, Any]:
    return {block.id: block for block in blocks if not isinstance(block, Words)}


def words(blocks: list[Block]) -> str:
    return "\n".join(f"{block.name}: {block.text}" for block in blocks if isinstance(block, Words))


def job(folder: Path) -> JobData:
    host = HostData(name="algo-1", output=folder, status="succeeded")
    return JobData(name="job", folder=folder, status="succeeded", hosts=(host,))


def put(
    folder: Path,
    window: str,
    rank: int,
    *,
    request: int | None = None,
    late: float = 0,
    start_s: float = 5.0,
    host: str = "algo-1",
) -> None:
    """Write a trace of *rank* and its listing, as the profiler does."""
    framework = folder / "profiler/framework"
    file = f"{window}/{host}_rank-{rank}.pt.trace.json.gz"
    events = [event for step in range(2) for event in rank_step(step, late)]
    (framework / window).mkdir(parents=True, exist_ok=True)
    (framework / file).write_bytes(gzip.compress(made.document(events, rank=rank)))
    path = framework / f"{host}_rank-{rank}.json"
    listing: dict[str, Any] = {"version": 1, "host": host, "rank": rank, "windows": []}
    if path.exists():
        listing = json.loads(path.read_text())
    listing |= {"world_size": 4, "framework": "torch", "steps_run": 240, "steps_traced": 2, "share": 2 / 240}
    listing["windows"].append({"file": file, "request": request, "first_step": 10, "steps": 2, "start_s": start_s})
    path.write_text(json.dumps(listing))


def rank_step(number: int, late: float) -> list[dict[str, Any]]:
    start = 10_000 * number
    return [
        made.step(number, start, 10_000),
        made.event("cpu_op", "aten::mm", start, 2000 + late),
        made.event("user_annotation", "gloo:all_reduce", start + 2000 + late, 7000 - late, tid=99),
    ]


def test_a_gpu_has_tables_of_kernels_by_time_and_by_launches() -> None:
    blocks = by_id(kernels.build_trace_blocks(GPU))

    by_time = blocks["kernels-by-time"]
    assert by_time.rows[0][0] == f"{made.GEMM[:25]}...{made.GEMM[-12:]}"
    assert blocks["full-names"].lines == (made.GEMM, made.REDUCE, made.ADD)
    assert by_time.rows[0][1:4] == pytest.approx((57.14, 0.4, 2), rel=1e-3)
    assert [row[-1] for row in by_time.rows] == ["bf16", "fp32", "fp32"]
    assert by_time.total[2] == pytest.approx(0.7)
    assert by_time.note.startswith("29% of this time is communication")
    assert "guess" in by_time.columns[-1].name
    assert [row[1] for row in blocks["kernels-by-calls"].rows] == [2, 1, 1]
    assert "From the launching call to the kernel's start: 1e-05 s" in blocks["kernels-by-calls"].note


def test_parts_of_a_gpu_s_time_add_up() -> None:
    blocks = by_id(kernels.build_trace_blocks(GPU))

    for name in ("gpu-activity", "kernel-precision"):
        shares = blocks[name]
        assert isinstance(shares, Shares)
        assert sum(part.value for part in shares.parts) == pytest.approx(shares.total)
    assert blocks["gpu-activity"].total == pytest.approx(1)
    active = blocks["device-active"]
    assert isinstance(active, Chart)
    assert active.title == "GPU active during the window: rank 0 71%"


def test_memory_operations_have_a_table() -> None:
    (table,) = memory.build_trace_blocks(GPU)

    assert isinstance(table, Table)
    assert table.rows[0][1:4] == ("Memcpy HtoD (Pinned -> Device)", 2, 5_000_000)
    assert table.rows[0][4:] == pytest.approx((0.15, 5_000_000 / 150e-6))
    assert table.note == ""


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    blocks = kernels.build_trace_blocks(TracedJob(traces=(gpu_rank(0, 0), gpu_rank(1, 3000)), ranks=2))

    assert "Straggler: The others wait for rank 1: it came last to 2 of 2 collectives" in words(blocks)
    rows = by_id(blocks)["ranks-traced"].rows
    assert [(row[0], row[-1]) for row in rows] == [(0, 0), (1, 2)]


def test_the_share_of_the_run_stands_on_the_section(tmp_path: Path) -> None:
    for rank in (0, 1, 2, 3):
        put(tmp_path, "steps-10-11", rank)

    traces = traced.read_traces(job(tmp_path))
    text = words(kernels.build_trace_blocks(traces))

    assert len(traces.traces) == 4
    assert "2 of 240 steps of the run were traced: 0.83%." in text
    assert "2 of 400 steps of the run were traced: 0.50%." in words(kernels.build_trace_blocks(traces, {0: 400})), (
        "the monitor's"
    )
    assert "Sampled: The tables are of rank 0, 0.02 s with 2 steps (window steps-10-11)." in text


def test_two_ranks_that_were_asked_for_are_shown_side_by_side(tmp_path: Path) -> None:
    for rank in (0, 1, 2, 3):
        put(tmp_path, "steps-10-11", rank)
    put(tmp_path, "steps-40-41", 2, request=1, late=4000, start_s=9.0)
    put(tmp_path, "steps-40-41", 3, request=1, start_s=9.0)

    blocks = by_id(kernels.build_trace_blocks(traced.read_traces(job(tmp_path))))

    table = blocks["difference-steps-40-41"]
    assert table.title == "What rank 2 does more than rank 3, a step (steps-40-41)"
    assert {row[0]: round(row[1], 3) for row in table.rows} == {
        "aten::mm": 4.0,
        "(waiting for other ranks)": -4.0,
        "(outside operators)": 0.0,
    }


def test_two_ranks_that_began_one_step_apart_are_one_request(tmp_path: Path) -> None:
    put(tmp_path, "steps-40-41", 2, request=1, late=4000)
    put(tmp_path, "steps-41-42", 3, request=1)
    put(tmp_path, "steps-70-71", 3, request=2, start_s=20.0)

    (pair,) = traced.read_traces(job(tmp_path)).pairs

    assert (pair.window, pair.first_rank, pair.second_rank) == ("steps-40-41", 2, 3)
    assert (pair.first_host, pair.second_host) == ("algo-1", "algo-1")


def test_two_ranks_of_different_hosts_are_a_pair_only_if_one_request_asked_for_both(tmp_path: Path) -> None:
    outputs = [tmp_path / "algo-1", tmp_path / "algo-2"]
    put(outputs[0], "steps-40-41", 0, request=-1)
    put(outputs[1], "steps-41-42", 1, request=-1, late=4000, host="algo-2")
    # Each host counts requests of its own from 1: these are two.
    put(outputs[0], "steps-60-61", 0, request=2)
    put(outputs[1], "steps-60-61", 1, request=2, host="algo-2")
    hosts = tuple(HostData(name=output.name, output=output, status="succeeded") for output in outputs)

    (pair,) = traced.read_traces(JobData(name="job", folder=tmp_path, status="succeeded", hosts=hosts)).pairs

    assert (pair.first_host, pair.first_rank, pair.second_host, pair.second_rank) == ("algo-1", 0, "algo-2", 1)
    slow = pair.of(1, "algo-2")
    assert slow is not None and (slow[0] is pair.second, slow[2]) == (True, 0)
    assert pair.of(1, "algo-1") is None


def test_a_window_that_the_job_asked_for_is_shown_before_a_later_one_of_a_slow_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        put(tmp_path, "steps-10-11", rank)
        put(tmp_path, "steps-40-41", rank, request=1, start_s=9.0)

    assert traced.read_traces(job(tmp_path)).window == "steps-10-11"


def test_no_trace_says_what_would_make_one(tmp_path: Path) -> None:
    traces = traced.read_traces(job(tmp_path))

    assert words(kernels.build_trace_blocks(traces)) == f": {kernels.MISSING}"
    assert words(memory.build_trace_blocks(traces)) == f": {memory.MISSING}"


def test_a_broken_trace_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    for rank in (0, 1):
        put(tmp_path, "steps-10-11", rank)
    broken = tmp_path / "profiler/framework/steps-10-11/algo-1_rank-1.pt.trace.json.gz"
    broken.write_bytes(broken.read_bytes()[:100])

    blocks = kernels.build_trace_blocks(traced.read_traces(job(tmp_path)))

    assert f"Trace not read: {broken}: the gzip data end too early" in words(blocks)
    assert "operators-by-time" in by_id(blocks)


def test_a_trace_that_nobody_listed_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "profiler/framework"
    folder.mkdir(parents=True)
    (folder / "mine.json").write_bytes(made.document(made.gpu_step()))

    assert "kernels-by-time" in by_id(kernels.build_trace_blocks(traced.read_traces(job(tmp_path))))


def test_ids_of_blocks_are_unique() -> None:
    both = gpu_rank(0, 0), gpu_rank(1, 9)
    pair = TracePair(
        window="w",
        first=both[0],
        second=both[1],
        first_rank=0,
        second_rank=1,
        first_host="algo-1",
        second_host="algo-1",
    )
    traced_job = TracedJob(traces=(gpu_rank(0, 0), gpu_rank(1, 3000)), ranks=2, pairs=(pair,))
    blocks = [
        block
        for make in (kernels, memory)
        for block in make.build_trace_blocks(traced_job)
        if not isinstance(block, Words)
    ]

    assert len({block.id for block in blocks}) == len(blocks)
