"""Both of TensorFlow's launchers (checklist 49); whole plans are in the goldens."""

import json
from typing import Any

import pytest

from tests.train.launchers.jobs import SCRATCH, job_of, script_of
from toolkit.job.job import Job
from toolkit.train.launchers import multi_worker_mirrored, parameter_server

TWO = ("algo-2", "algo-1")
THREE = ("algo-1", "algo-2", "algo-3")
PLAYED: dict[str, Any] = {"addresses": dict.fromkeys(THREE, "127.0.0.1"), "environ": {"MASTER_PORT": "20001"}}


def config(job: Job) -> Any:
    launcher = multi_worker_mirrored if job.strategy.name == "multi_worker_mirrored" else parameter_server
    return json.loads(launcher.plan(job, SCRATCH).phase.main.environ["TF_CONFIG"])


def test_workers_are_the_distributions_hosts_in_the_documents_order_by_the_addresses_given() -> None:
    job = job_of("multi_worker_mirrored", hosts=TWO, current="algo-1", addresses={"algo-2": "10.0.0.2"})

    configuration = config(job)

    assert configuration["cluster"] == {"worker": ["10.0.0.2:8890", "algo-1:8890"]}
    assert configuration["task"] == {"type": "worker", "index": 1}


@pytest.mark.parametrize(
    ("current", "task", "served"),
    [("algo-1", ("master", 0), 0), ("algo-2", ("worker", 0), 1), ("algo-3", ("worker", 1), 2)],
)
def test_the_first_host_is_the_master_the_others_workers_and_each_has_a_server(
    current: str, task: tuple[str, int], served: int
) -> None:
    job = job_of("parameter_server", hosts=THREE, current=current)

    configuration = config(job)
    (service,) = parameter_server.plan(job, SCRATCH).phase.services

    assert (configuration["task"]["type"], configuration["task"]["index"]) == task
    assert json.loads(service.environ["TF_CONFIG"])["task"] == {"type": "ps", "index": served}
    assert service.environ["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_no_two_servers_of_hosts_on_one_machine_have_one_port(strategy: Any) -> None:
    cluster = config(job_of(strategy, hosts=THREE, **PLAYED))["cluster"]

    ports = [address.rpartition(":")[2] for tasks in cluster.values() for address in tasks]
    assert sorted(ports) == [str(20001 + index) for index in range(len(ports))]


def test_every_host_is_told_of_the_same_cluster() -> None:
    jobs = [job_of("parameter_server", hosts=THREE, current=host) for host in THREE]

    assert len({json.dumps(config(job)["cluster"]) for job in jobs}) == 1


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_one_process_a_host_whatever_devices_it_has(strategy: Any) -> None:
    job = job_of(strategy, hosts=TWO, current="algo-1", gpus=8, per_host=8)
    launcher = multi_worker_mirrored if strategy == "multi_worker_mirrored" else parameter_server

    planned = launcher.plan(job, SCRATCH)

    assert (planned.world_size, planned.phase.main.rank, planned.phase.main.starts_ranks) == (2, 1, ())


def test_a_command_need_not_have_tensorflow_in_trains_own_interpreter() -> None:
    job = job_of("multi_worker_mirrored", script=script_of("bin/run", "command"))

    assert multi_worker_mirrored.plan(job, SCRATCH).modules == ()
    assert multi_worker_mirrored.plan(job_of("multi_worker_mirrored"), SCRATCH).modules == ("tensorflow",)
