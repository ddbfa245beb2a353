"""A rank writes its collectives on request while its main thread waits, and runs on where torch has no recorder."""

import os
import signal
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.forking import Fork
from tests.ports import free_port
from toolkit.collectives.comparison import compare
from toolkit.collectives.records import RankCalls
from toolkit.train.launchers.environment import HOOK
from toolkit.train.supervise.collective_dumps import CollectiveDumps

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="not installed: torch"),
]
WITHIN_S = 240
WAITS = """
import threading, torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1], group_desc="pair")

def step():
    dist.all_reduce(torch.ones(4))

def evaluate():
    threading.Event().wait()

step()
if rank == 1:
    evaluate()
if rank == 0:
    dist.broadcast(torch.ones(2), 0, group=pair)
step()
"""
WITHOUT_RECORDER = """
import torch, torch.distributed as dist

del torch._C._distributed_c10d._dump_fr_trace
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("trained", flush=True)
"""


def start(folder: Path, text: str, size: int) -> list[Fork]:
    program = folder / "train.py"
    program.write_text(text)
    (folder / "collectives").mkdir(exist_ok=True)
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TOOLKIT_", "SM", "TORCH_"))},
        "PYTHONPATH": str(HOOK),
        "TOOLKIT_COLLECTIVES": str(folder / "collectives"),
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
    }
    return [Fork(program, environ={**environ, "RANK": str(rank)}) for rank in range(size)]


def ask(ranks: list[Fork], folder: Path, is_done: Callable[[tuple[RankCalls, ...]], bool]) -> tuple[RankCalls, ...]:
    """Ask until the answers are as awaited: ranks need a moment to reach their collectives."""
    ends_s = time.monotonic() + WITHIN_S
    calls: tuple[RankCalls, ...] = ()
    while time.monotonic() < ends_s:
        dumps = CollectiveDumps(
            {f"rank {number}": rank.pid for number, rank in enumerate(ranks)}, folder / "collectives"
        )
        time.sleep(0.5)
        calls = dumps.collect()
        if is_done(calls):
            return calls
    for rank in ranks:
        rank.kill()
    outputs = [rank.communicate(timeout=WITHIN_S) for rank in ranks]
    raise AssertionError(f"not in {WITHIN_S} s; the last answers: {calls}; the ranks wrote: {outputs}")


def count_waiting(calls: tuple[RankCalls, ...]) -> int:
    return sum(not group.calls[-1].is_complete for one in calls for group in one.groups)


def test_ranks_that_wait_in_a_collective_answer_and_a_stopped_one_does_not(tmp_path: Path) -> None:
    ranks = start(tmp_path, WAITS, 3)
    try:
        calls = ask(ranks, tmp_path, lambda calls: count_waiting(calls) == 2)

        default, pair = sorted(compare(calls), key=lambda one: one.group)[::-1]
        assert (default.group, pair.group) == ("the default group", "group 1 (pair)")
        # gloo's rank 0 sends a broadcast to its peers, and goes on only when they take it.
        assert (pair.state, pair.number, pair.absent, pair.blamed) == ("missing", 1, (1,), (1,))
        assert (default.state, default.number, default.blamed) == ("missing", default.common_number + 1, (1,))
        assert default.absent == (0, 1)
        (place,) = default.places
        assert (place.ranks, place.operation, place.payload) == ((2,), "all_reduce", "4 Float")
        assert (place.file, place.line, place.function) == (str(tmp_path / "train.py"), 9, "step")

        os.kill(ranks[1].pid, signal.SIGSTOP)
        others = ask(ranks, tmp_path, lambda calls: len(calls) == 2)
        assert [one.rank for one in others] == [0, 2]
        assert {one.group: one.unread for one in compare(others)} == {"the default group": (1,), "group 1 (pair)": (1,)}
    finally:
        for rank in ranks:
            rank.kill()
            if rank.returncode is None:
                rank.communicate(timeout=WITHIN_S)


def test_a_torch_without_a_recorder_draws_one_line_and_trains(tmp_path: Path) -> None:
    (rank,) = start(tmp_path, WITHOUT_RECORDER, 1)

    out, err = rank.communicate(timeout=WITHIN_S)

    assert (rank.wait(), out) == (0, "trained\n")
    assert err.count("[toolkit]") == 1
    assert "has no _C._distributed_c10d._dump_fr_trace: a hang is explained by stacks alone" in err
