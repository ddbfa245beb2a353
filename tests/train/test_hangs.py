"""A hang of real ranks names the rank for which the others wait (docs/hangs.md)."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.train.base import SEES, Base
from tests.train.test_together import Hosts

DUMPS = Path(__file__).parents[1] / "data" / "flight_recorder"
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

    done = base.train(TOOLKIT_STALL_S="6")  # Longer than importing torch reads from the disk without a sign of work.

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


LEAVES_A_COLLECTIVE = """
import time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group('gloo')
total = torch.ones(4)
def step():
    dist.all_reduce(total)
def save():
    time.sleep(600)
step()
if dist.get_rank() == dist.get_world_size() - 1:
    save()
step()
"""
# A rank whose collectives are those of a file, which it writes on request as rank/flight_recorder does.
ANSWERS = """
import os, shutil, sys, threading, time
def answer():
    file = os.path.join(os.environ["TOOLKIT_COLLECTIVES"], str(os.getpid()))
    os.mkfifo(file + ".request")
    while True:
        open(file + ".request").close()
        shutil.copy(sys.argv[1], file + ".part")
        os.rename(file + ".part", file + ".json")
def {function}():
    time.sleep(600)
threading.Thread(target=answer, daemon=True).start()
{function}()
"""


@pytest.mark.long
@pytest.mark.torch
@needs_torch
def test_the_collective_that_a_real_rank_never_reached_is_named_on_all_hosts(hosts: Hosts) -> None:
    for base in hosts.bases.values():
        base.hyperparameters({"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "1"})
        base.program(LEAVES_A_COLLECTIVE)

    # The import of torch must not look like a hang on a busy machine.
    with hosts.start(TOOLKIT_STALL_S="15") as running:
        done = {name: host.end(deadline_s=300) for name, host in running.items()}

    for host in done.values():
        assert host.status == 124
        assert host.outcome["cause"]["message"].partition("; ")[2] == (
            "rank 1 (host algo-2) is in save (train.py:9) and never reached all_reduce #2 of the default group,"
            " in which rank 0 waits (train.py:7)"
        )


def test_the_collective_that_a_rank_never_reached_is_named_on_all_hosts(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, ("algo-1", "algo-2", "algo-3"))
    for rank, base in enumerate(hosts.bases.values()):
        base.hyperparameters(
            {"sagemaker_program": "train.sh", "sagemaker_multi_worker_mirrored_strategy_enabled": "true"}
        )
        # A shell starts Python, so that no launcher asks for TensorFlow.
        base.program(f"exec {sys.executable} rank.py {DUMPS}/torch-2.13.0-rank-{rank}.json\n", name="train.sh")
        (base.code / "rank.py").write_text(ANSWERS.format(function="save" if rank == 2 else "wait"))

    done = hosts.run(TOOLKIT_STALL_S="2")

    for name, host in done.items():
        assert host.status == 124
        assert host.outcome["cause"]["message"].partition("; ")[2] == (
            "rank 2 (host algo-3) is in save (rank.py:11) and never reached all_reduce #3 of the default group,"
            " in which ranks 0-1 wait (train.py:10)"
        )
        assert "never reached all_reduce #3" in str(host.failure)
        assert host.outcome["cause_host"] == "algo-3"
        default, pair = host.outcome["collectives"]
        assert (default["state"], default["number"], default["blamed"]) == ("missing", 3, [2])
        assert (default["common_number"], default["common_operation"]) == (2, "all_reduce")
        assert (pair["group"], pair["state"]) == ("group 1 (pair)", "idle")
        assert [rank["function"] for rank in host.outcome["stuck_ranks"]] == ["save" if name == "algo-3" else "wait"]


@pytest.mark.parametrize(
    ("variables", "recorder"),
    [
        ({"TOOLKIT_STALL_S": "600"}, ("2000", True)),
        ({"TOOLKIT_STALL_S": "600", "TORCH_FR_BUFFER_SIZE": "50"}, ("50", True)),
        ({"TOOLKIT_STALL_S": "600", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, (None, True)),
        ({"TOOLKIT_STALL_S": "600", "TOOLKIT_FLIGHT": "off"}, (None, False)),
        ({}, (None, False)),
    ],
)
def test_the_recorder_is_on_where_a_hang_is_looked_for_unless_the_user_has_set_it(
    base: Base, variables: dict[str, Any], recorder: tuple[str | None, bool]
) -> None:
    base.program(SEES)

    done = base.train(**variables)

    assert (done.environ.get("TORCH_FR_BUFFER_SIZE"), "TOOLKIT_COLLECTIVES" in done.environ) == recorder
