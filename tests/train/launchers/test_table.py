import re
from typing import get_args

import msgspec
import pytest

from tests.train.launchers.jobs import SCRATCH, job_of, script_of
from toolkit.job.machine import Mpi
from toolkit.job.strategy import StrategyName
from toolkit.settings import Settings
from toolkit.train.launchers import table

MPI = {"mpi": Mpi(kind="openmpi4", version="4.1.8", path="/usr/bin/mpirun")}
TWO = ("algo-1", "algo-2")
PORT = re.compile(r":([0-9]{1,5})\b")


@pytest.mark.parametrize(
    ("strategy", "launcher"), [("script", "script"), ("pytorchddp", "torchrun"), ("torch_distributed", "torchrun")]
)
def test_a_strategy_means_its_launcher(strategy: StrategyName, launcher: str) -> None:
    plan = table.plan(job_of(strategy, hosts=TWO), SCRATCH)

    assert plan.launcher == launcher


@pytest.mark.parametrize("strategy", get_args(StrategyName))
@pytest.mark.parametrize("taking_part", [TWO, ("algo-2",)])
def test_the_world_size_is_known_before_the_plan_and_is_the_plans(
    strategy: StrategyName, taking_part: tuple[str, ...]
) -> None:
    job = job_of(strategy, hosts=TWO, taking_part=taking_part, per_host=4, machine=MPI)

    assert table.world_size(job) == table.plan(job, SCRATCH).world_size, "see table.world_size, or set Plan.world_size"


@pytest.mark.parametrize("strategy", get_args(StrategyName))
def test_no_launcher_gives_a_job_of_one_host_a_port_of_its_own_invention(strategy: StrategyName) -> None:
    """Another job of the machine may have it: the only port is the one that `train` found free; 0 is chosen later."""
    job = msgspec.structs.replace(job_of(strategy, per_host=2, machine=MPI), port=23456)

    main = table.plan(job, SCRATCH).phase.main

    environ = {**main.environ, **main.launcher_environ}
    variables = {name: value for name, value in environ.items() if not name.startswith("SM_")}
    ports = {
        name: port
        for name, value in variables.items()
        for port in PORT.findall(f":{value}" if "PORT" in name else value)
    }
    assert variables["MASTER_PORT"] == "23456"
    assert set(ports.values()) <= {"23456", "0"}, ports
    assert not {"29500", "7777", "8890", "2222"} & set(main.argv)


@pytest.mark.parametrize("strategy", [name for name in get_args(StrategyName) if name != "script"])
def test_a_host_outside_the_distribution_runs_alone_whatever_the_others_do(strategy: StrategyName) -> None:
    """Contract point 37."""
    plan = table.plan(job_of(strategy, hosts=TWO, taking_part=("algo-2",)), SCRATCH)

    assert (plan.launcher, plan.role, plan.world_size, plan.modules) == ("script", "alone", 1, ())


@pytest.mark.parametrize("strategy", get_args(StrategyName))
def test_a_plug_in_starts_its_ranks_itself(strategy: StrategyName) -> None:
    """Contract point 38."""
    job = job_of(strategy, hosts=TWO, plugin="framework:main", script=script_of("framework:main", "plugin"))

    plan = table.plan(job, SCRATCH)

    assert plan.launcher == "script"
    assert plan.phase.main.argv[-2:] == ("framework", "main")


@pytest.mark.parametrize(("strategy", "noted"), [("script", True), ("multi_worker_mirrored", True), ("mpi", False)])
def test_processes_per_host_that_a_launcher_does_not_start_are_noted(strategy: StrategyName, noted: bool) -> None:
    job = job_of(strategy, hosts=TWO, per_host=2, machine=MPI, settings=Settings(processes_per_host=2))

    notes = [note for note in table.plan(job, SCRATCH).notes if "TOOLKIT_PROCESSES_PER_HOST=2 has no effect" in note]

    assert bool(notes) is noted
