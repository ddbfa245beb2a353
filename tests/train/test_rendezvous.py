"""The port at which ranks meet, on machines where other jobs have ports too."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.job.test_variables import a_job
from tests.ports import free_port
from tests.train.base import SEES, Base
from tests.train.live import live
from tests.train.test_together import Hosts
from toolkit.job.cause import Cause
from toolkit.job.cluster import Cluster
from toolkit.job.job import Script
from toolkit.job.outcome import Outcome
from toolkit.job.strategy import Strategy
from toolkit.log import Log
from toolkit.train.probe.port import OwnPort
from toolkit.train.rendezvous import Rendezvous
from toolkit.train.verdict.advice import find_advice

MEETS = """
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print(f"met at {os.environ['MASTER_PORT']} of {dist.get_world_size()}", flush=True)
"""


@contextlib.contextmanager
def taken(port: int) -> Iterator[None]:
    """Hold *port*; another program of this machine may hold it already."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            held.enter_context(socket.create_server(("", port)))
        yield


def test_a_job_of_one_host_gets_another_port_where_7777_is_taken(base: Base) -> None:
    base.program(SEES)

    with taken(7777):
        done = base.train()

    assert done.environ["MASTER_ADDR"] == "127.0.0.1"
    assert int(done.environ["MASTER_PORT"]) in range(20_000, 30_000)


@pytest.mark.parametrize("port", ["", "0"])
def test_a_port_that_is_none_is_chosen(base: Base, port: str) -> None:
    base.program(SEES)

    assert base.train(MASTER_PORT=port).environ["MASTER_PORT"] not in ("", "0")


def test_a_port_that_cannot_be_one_is_refused_on_one_host(base: Base) -> None:
    base.program(SEES)

    done = base.train(MASTER_PORT="70000")

    assert done.status == 78
    assert "MASTER_PORT: expected a port, 1 to 65535, at which the job's ranks meet, found '70000'" in (
        done.failure or ""
    )


def test_the_users_own_port_stays_and_its_holder_is_named(base: Base) -> None:
    base.program(SEES)

    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
        done = base.train(MASTER_PORT=port)

    assert done.environ["MASTER_PORT"] == port
    assert f"MASTER_PORT {port}: expected a free port" in done.log
    assert f"process {os.getpid()} (" in done.log


@pytest.mark.parametrize("strategy", ["pytorch_ddp", pytest.param("pytorch_xla_multi_worker", marks=pytest.mark.long)])
def test_two_jobs_under_torchrun_run_at_the_same_time_on_one_machine(tmp_path: Path, strategy: str) -> None:
    """Each torchrun listens on its job's port, also where the user's MASTER_PORT stays out of it."""
    pytest.importorskip("torch")
    first, second = Base(tmp_path / "a"), Base(tmp_path / "b")
    flags = {f"sagemaker_{strategy}_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
    for base in (first, second):
        base.hyperparameters(flags)
        base.program(MEETS)
    first.program(MEETS + "import sys; print('waits', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n")
    more = {"TOOLKIT_COMPAT": "torch_xla"} if "xla" in strategy else {}

    with live(first, **more) as job:
        job.until(b"waits", count=2)
        other = second.train(more)
        (first.code / "go").touch()
        done = job.end()

    assert (done.status, other.status) == (0, 0), (done, other)
    ports = [{line.split()[-3] for line in item.log.splitlines() if "met at" in line} for item in (done, other)]
    assert [len(port) for port in ports] == [1, 1]
    assert ports[0] != ports[1]


def test_a_leader_whose_port_another_job_has_names_it_and_ends_with_75(tmp_path: Path) -> None:
    """The followers hear of it."""
    pytest.importorskip("torch")
    hosts = Hosts(tmp_path)
    for base in hosts.bases.values():
        base.hyperparameters({"sagemaker_torch_distributed_enabled": "true"})
        base.program("print('trains')\n")

    with socket.create_server(("", free_port())) as server:
        port = str(server.getsockname()[1])
        done = hosts.run(MASTER_PORT=port)

    leader, follower = done["algo-1"], done["algo-2"]
    assert leader.status == 75, leader
    assert leader.failure is not None
    assert f"MASTER_PORT {port}: expected a free port for the job's ranks to meet at" in leader.failure
    assert f"process {os.getpid()} (" in leader.failure
    assert "Set MASTER_PORT to a free port, the same on every host." in leader.failure
    assert follower.status == 75, follower
    assert b"trains" not in leader.stdout + follower.stdout


@contextlib.contextmanager
def rendezvous(folder: Path, **environ: str) -> Iterator[tuple[Rendezvous, int]]:
    """Give the rendezvous of a job under torchrun, just before the start of its ranks, and its port."""
    made = Rendezvous(folder, Log())
    job = a_job(
        cluster=Cluster(current="a", hosts=("a",), taking_part=("a",)),
        environ=environ,
        script=Script(entry="train.py", kind="program", folder=folder),
    )
    job = msgspec.structs.replace(job, strategy=Strategy(name="torch_distributed"))
    try:
        phase = made.phase(made.plan(job).phase)
        yield made, int(environ.get("MASTER_PORT") or phase.main.environ["MASTER_PORT"])
    finally:
        made.close()


def test_a_job_of_one_host_leaves_the_port_of_a_leader_whose_ranks_do_not_listen_yet(tmp_path: Path) -> None:
    """torchrun imports torch first, which takes seconds."""
    with rendezvous(tmp_path, MASTER_PORT=str(free_port())) as (_, port):
        other = OwnPort()
        chosen = other.take(port)
        other.close()

    assert chosen != port


def test_a_leader_does_not_mind_a_job_that_has_its_port_and_may_never_listen(tmp_path: Path) -> None:
    """As a script of one process: each job of one host has a port."""
    other, port = OwnPort(), free_port()
    assert other.take(port) == port

    with rendezvous(tmp_path, MASTER_PORT=str(port)) as (_, same_port):
        assert same_port == port
    other.close()


@pytest.mark.parametrize(("is_set", "how"), [(True, "Unset MASTER_PORT"), (False, "Run the job again")])
def test_a_program_that_takes_the_port_after_the_check_is_named(tmp_path: Path, is_set: bool, how: str) -> None:
    advice = find_advice("DistNetworkError: name: EADDRINUSE")
    failed = Outcome(status="failed", exit_code=1, cause=Cause(message="EADDRINUSE", advice=advice))

    with rendezvous(tmp_path, **({"MASTER_PORT": str(free_port())} if is_set else {})) as (made, port):
        before = made.with_holder(failed)
        with socket.create_server(("", port)):
            after = made.with_holder(failed)

    assert before == failed
    assert f"process {os.getpid()} (" in after.cause.advice
    assert f"MASTER_PORT {port}: it took the port after train had found it free. {how}" in after.cause.advice


def test_a_leader_whose_script_may_not_need_the_port_goes_on_with_a_warning(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    for base in hosts.bases.values():
        base.program("print('trains')\n")

    with socket.create_server(("", free_port())) as server:
        done = hosts.run(MASTER_PORT=str(server.getsockname()[1]))

    assert {item.status for item in done.values()} == {0}
    assert "expected a free port" in done["algo-1"].log
    assert "expected a free port" not in done["algo-2"].log
