"""The comparison names the rank for which others wait, and what it does more than a healthy one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.traces import made
from toolkit.traces import chrome
from toolkit.traces.chrome import ChromeTrace
from toolkit.traces.difference import IDLE, OUTSIDE, WAITING, compare_traces
from toolkit.traces.rank_comparison import compare_ranks

MS = 1e-3

SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
options = dict(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=4, repeat=1))
name = f"{sys.argv[1]}/rank{rank}.json.gz"
with profile(**options, on_trace_ready=lambda ready: ready.export_chrome_trace(name)) as profiler:
    for _ in range(6):
        loss = model(torch.ones(4, 256)).sum()
        if rank == 1:
            time.sleep(0.2)
        loss.backward()
        profiler.step()
dist.destroy_process_group()
"""


def gpu_rank(rank: int, late: float, *, host: str = "algo-1", clock: float = 0) -> ChromeTrace:
    """Return two steps of 10 ms: a kernel of 4 ms + *late*, then an all-reduce that ends at 9 ms on every rank."""
    events: list[dict[str, Any]] = []
    for number in range(2):
        start = 20_000 + 10_000 * number + clock
        events += [
            made.step(number, start, 10_000),
            *made.kernel("sgemm", start, 4000 + late),
            *made.kernel(made.REDUCE, start + 4000 + late, 5000 - late, stream=9),
            *made.kernel("sgemm", start + 8500, 1000),
        ]
    return made.trace(events, rank=rank, host=host)


@pytest.mark.parametrize("clock", [0, 7_000_000], ids=["one host", "two hosts whose clocks differ by seven seconds"])
def test_the_rank_that_comes_last_is_named(clock: float) -> None:
    host = "algo-2" if clock else "algo-1"
    comparison = compare_ranks([gpu_rank(0, 0), gpu_rank(1, 3000, host=host, clock=clock)])

    assert comparison.straggler == 1
    assert comparison.clocks == ("aligned" if clock else "same host")
    assert [(collective.name, collective.step, collective.last) for collective in comparison.collectives] == [
        ("AllReduce", 0, 1),
        ("AllReduce", 1, 1),
    ]
    assert [collective.spread_s for collective in comparison.collectives] == pytest.approx(
        [3 * MS, 3 * MS], abs=0.1 * MS
    )
    assert [item.waited_s for item in comparison.ranks] == pytest.approx([6 * MS, 0], abs=0.1 * MS)
    assert [item.last for item in comparison.ranks] == [0, 2]


def test_a_rank_that_waits_in_two_collectives_at_once_waits_once() -> None:
    """As DDP's buckets under gloo: both are under way when the last rank comes."""

    def rank(number: int, late: float) -> ChromeTrace:
        waits = [
            made.event("user_annotation", "gloo:all_reduce", late + offset, 9000 - late, tid=90 + offset)
            for offset in (0, 1)
        ]
        return made.trace([made.step(0, 0, 10_000), made.event("cpu_op", "aten::mm", 0, 10), *waits], rank=number)

    comparison = compare_ranks([rank(0, 0), rank(1, 6000)])

    assert [item.waited_s for item in comparison.ranks] == pytest.approx([6 * MS, 0], abs=0.01 * MS)
    assert comparison.straggler == 1


def test_overlap_is_communication_during_computation() -> None:
    first = compare_ranks([gpu_rank(0, 0), gpu_rank(1, 3000)]).ranks[0]

    assert first.communication_s == pytest.approx(10 * MS)
    assert first.overlapped_s == pytest.approx(1 * MS)
    assert first.computation_s == pytest.approx(10 * MS)


def test_ranks_that_come_together_have_no_straggler() -> None:
    assert compare_ranks([gpu_rank(0, 10), gpu_rank(1, 0)]).straggler is None
    assert compare_ranks([gpu_rank(0, 0)]).straggler is None
    assert compare_ranks([]).ranks == ()


def test_a_difference_is_by_kernel_and_step() -> None:
    comparison = compare_traces(gpu_rank(1, 3000), gpu_rank(0, 0))

    assert [comparison.first_step_s, comparison.second_step_s] == pytest.approx([10 * MS, 10 * MS])
    more = {change.name: round(change.more_s / MS, 3) for change in comparison.changes}
    assert more == {"sgemm": 3.0, "ncclDevKernel_AllReduce_Sum_f32_RING_LL": -3.0, IDLE: 0.0}
    assert {change.name: change.first_calls for change in comparison.changes}["sgemm"] == 2


def test_a_kernel_that_only_one_trace_has_is_a_change() -> None:
    comparison = compare_traces(
        made.trace(made.gpu_step()), made.trace([made.step(0, 0, 1000), *made.kernel("other", 0, 700)])
    )

    changes = {change.name: (change.first_calls, change.second_calls) for change in comparison.changes}
    assert changes["other"] == (0, 1)
    assert changes[made.GEMM] == (2, 0)


@pytest.mark.torch
def test_real_ranks_tell_who_sleeps_and_who_waits(tmp_path: Path) -> None:
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = (*launch, "script.py", str(tmp_path))
    (tmp_path / "script.py").write_text(SCRIPT)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr

    healthy, slow = (chrome.read(tmp_path / f"rank{rank}.json.gz") for rank in (0, 1))
    comparison = compare_ranks([slow, healthy])
    changes = {change.name: change.more_s for change in compare_traces(slow, healthy).changes}

    assert (comparison.straggler, [item.rank for item in comparison.ranks]) == (1, [0, 1])
    assert comparison.ranks[0].waited_s > 4 * 0.1
    assert changes[OUTSIDE] > 0.1
    assert changes[WAITING] < -0.1
