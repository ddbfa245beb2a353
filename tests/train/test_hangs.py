"""A hang of real ranks names the rank for which the others wait (docs/hangs.md)."""

import sys
import time
from pathlib import Path

import pytest

from tests.train.base import Base
from tests.train.test_together import Hosts

needs_torch = pytest.mark.skipif(
    not any((Path(folder) / "torch").is_dir() for folder in sys.path), reason="torch is not installed"
)
REDUCES = """
import os, signal, torch, torch.distributed as dist
torch.set_num_threads(1)
import smdistributed.dataparallel.torch.torch_smddp
dist.init_process_group('smddp')
gradients = torch.ones(1 << 22)
dist.all_reduce(gradients)
if dist.get_rank() == dist.get_world_size() - 1:
    {here}
dist.all_reduce(gradients)
"""
WAIT_FOR_EACH_OTHER = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group('gloo')
def step():
    dist.recv(torch.ones(4), src=1)
def evaluate():
    dist.barrier()
step() if dist.get_rank() == 0 else evaluate()
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize(
    ("ranks", "inserted", "cause"),
    [
        pytest.param(2, "os.kill(os.getpid(), signal.SIGSTOP)", "rank 1 is stopped (SIGSTOP)", marks=pytest.mark.long),
        (2, "import ctypes; ctypes.PyDLL(None).sleep(600)", "rank 1 is in <module> ({code}/train.py:9)"),
    ],
    ids=["one is stopped", "one holds the GIL"],
)
def test_ranks_that_wait_in_a_reduction_of_ours_are_not_the_cause(
    base: Base, ranks: int, inserted: str, cause: str
) -> None:
    base.hyperparameters(
        {"sagemaker_distributed_dataparallel_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": str(ranks)}
    )
    base.program(REDUCES.replace("{here}", inserted))

    done = base.train(TOOLKIT_STALL_S="2")

    assert done.status == 124
    assert done.outcome["cause"]["message"].partition("; ")[2] == cause.format(code=base.code)
    assert [rank["activity"] for rank in done.outcome["stuck_ranks"]].count("waits") == ranks - 1


@pytest.mark.torch
@needs_torch
def test_where_all_ranks_wait_for_each_other_their_lines_are_told_and_no_host_is_accused(hosts: Hosts) -> None:
    for base in hosts.bases.values():
        base.hyperparameters({"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "1"})
        base.program(WAIT_FOR_EACH_OTHER)

    done = hosts.run(TOOLKIT_STALL_S="2")

    for host in done.values():
        assert host.status == 124
        places = "rank 0 at train.py:6 in step (recv); rank 1 at train.py:8 in evaluate (barrier)"
        assert f"; the ranks wait in different calls: {places}" in str(host.failure)
        assert "host algo" not in str(host.failure)
        assert host.outcome["cause_host"] == ""
        assert time.time() - host.outcome["cause"]["failed_ns"] / 1e9 < 300


def test_a_script_that_hangs_alone_is_told_by_its_line(base: Base) -> None:
    base.program("import threading\ndef load():\n    threading.Event().wait()\nload()\n")

    done = base.train(TOOLKIT_STALL_S="1")

    assert done.status == 124
    assert "(TOOLKIT_STALL_S); script at train.py:3 in load" in str(done.failure)
    assert "host " not in str(done.failure)


def test_a_hang_of_two_hosts_that_is_only_reported_ends_nothing(hosts: Hosts) -> None:
    go = hosts.folder / "go"
    for name in hosts.bases:
        hosts.program(
            name,
            f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.2)\nprint('woke up', flush=True)\n",
        )

    with hosts.start(TOOLKIT_STALL_S="1", TOOLKIT_STALL_ACTION="report") as running:
        for item in running.values():
            item.until(b"no rank has written or computed anything for")
        go.touch()
        done = [host.end() for host in running.values()]

    for host in done:
        assert (host.status, host.stdout) == (0, b"woke up\n")
        assert "no rank has written or computed anything for" in host.log


def test_a_host_that_waited_in_silence_for_another_ones_work_is_no_hang_when_that_is_done(hosts: Hosts) -> None:
    end_file = hosts.folder / "ended"
    # Ends later than the other host: the seconds of silence before that host's end must not count.
    waits = (
        f"while not os.path.exists({str(end_file)!r}): time.sleep(0.2)\ntime.sleep(0.5)\nprint('done', flush=True)\n"
    )
    hosts.program("algo-1", f"import os, time\n{waits}")
    works = "for _ in range(40):\n    print('works', flush=True)\n    time.sleep(0.1)\n"
    hosts.program("algo-2", f"import time\n{works}open({str(end_file)!r}, 'w')\n")

    done = hosts.run(TOOLKIT_STALL_S="3")

    assert {name: host.status for name, host in done.items()} == {"algo-1": 0, "algo-2": 0}
