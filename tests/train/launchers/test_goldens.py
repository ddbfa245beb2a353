"""Whole plans as text, one file each in tests/data/plans; `python -m tests.train.launchers.test_goldens` writes them
again.

They show the variables that the launcher adds to the job's own environment and the contract's variables (which have
their own goldens); `everything` shows the whole environment once.
"""

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.train.launchers.jobs import ENVIRON, SCRATCH, job_of, script_of
from toolkit.job.cluster import Group
from toolkit.job.job import Job
from toolkit.job.machine import Mpi
from toolkit.job.variables import variables
from toolkit.settings import Settings
from toolkit.train.launchers import table
from toolkit.train.launchers.environment import HOOK, tokens

FOLDER = Path(__file__).parents[2] / "data/plans"
RUN = SCRATCH / "run-1"
TWO = ("algo-1", "algo-2")
# As the platform writes them: the lists of hosts and of the groups' hosts are unsorted, and algo-1 is not the leader.
HETERO: dict[str, Any] = {
    "hosts": ("algo-1", "algo-10", "algo-2", "algo-3"),
    "groups": (
        Group(name="cpu", instance_type="ml.c5.xlarge", hosts=("algo-1",)),
        Group(name="gpu", instance_type="ml.p4d.24xlarge", hosts=("algo-3", "algo-10", "algo-2")),
    ),
    "taking_part": ("algo-3", "algo-10", "algo-2"),
}
EFA = {"fabric": "efa"}
OFF = Settings(rank_hook="off", rank_shim="off")

MPIS: dict[str, Mpi] = {
    "openmpi4": Mpi(kind="openmpi4", version="4.1.8", path="/usr/bin/mpirun"),
    "openmpi5": Mpi(kind="openmpi5", version="5.0.11", path="/usr/bin/mpirun"),
    "mpich": Mpi(kind="mpich", version="5.0.2", path="/usr/bin/mpirun"),
}


def mpi_job(
    kind: str, options: str = "-verbose -x FOO=bar --NCCL_DEBUG INFO", processes: int | None = None, **more: Any
) -> Job:
    """Return a job under this kind of mpirun, with custom options as the SDK sends them."""
    job = job_of("mpi", machine={"mpi": MPIS[kind], **more.pop("machine", {})}, **more)
    strategy = msgspec.structs.replace(job.strategy, processes=processes, mpirun_options=options)
    return msgspec.structs.replace(job, strategy=strategy)


JOBS: dict[str, Job] = {
    "everything": job_of("torch_distributed", hosts=TWO, gpus=2, hyperparameters={"api_key": "of nobody's business"}),
    "script_one_host": job_of(),
    "script_two_hosts": job_of(hosts=TWO, current="algo-2"),
    "script_module": job_of(script=script_of("pkg.main", "module")),
    "script_package": job_of(script=script_of("train", "package")),
    "script_package_file": job_of(script=script_of("src/train.py", "package")),
    "script_command": job_of(script=script_of("bin/run", "command")),
    "script_shell_without_a_first_line": job_of(script=script_of("run.sh", "command", through=("/bin/sh",))),
    "script_plugin": job_of(plugin="framework:main", script=script_of("framework:main", "plugin")),
    "script_outside_the_distribution": job_of("script", current="algo-1", **HETERO),
    "script_hook_off": job_of(settings=OFF),
    **{f"mpi_{kind}_one_host": mpi_job(kind, gpus=8) for kind in MPIS},
    **{f"mpi_{kind}_leader": mpi_job(kind, hosts=TWO, per_host=8) for kind in MPIS},
    **{f"mpi_{kind}_shim_off": mpi_job(kind, hosts=TWO, settings=OFF) for kind in MPIS},
    "mpi_follower": mpi_job("openmpi4", hosts=TWO, current="algo-2", per_host=8),
    "mpi_efa_hetero_leader": mpi_job("openmpi4", current="algo-3", gpus=8, machine=EFA, **HETERO),
    "mpi_processes": mpi_job("openmpi4", processes=3, hosts=TWO, per_host=2),
    "mpi_module": mpi_job("openmpi4", script=script_of("pkg.main", "module")),
    "mpi_command": mpi_job("openmpi4", script=script_of("run.sh", "command", through=("/bin/sh",))),
    "mpi_ssh_follower": mpi_job("openmpi4", hosts=TWO, current="algo-2", settings=Settings(mpi_agent="ssh")),
    "mpi_one_machine": mpi_job(
        "openmpi4", hosts=TWO, addresses={"algo-1": "127.0.0.1", "algo-2": "127.0.0.1"}, interface="lo"
    ),
    "torchrun_one_host": job_of("pytorchddp", gpus=8),
    "torchrun_leader": job_of("torch_distributed", hosts=TWO),
    "torchrun_follower": job_of("torch_distributed", hosts=TWO, current="algo-2", per_host=4),
    "torchrun_follower_link_off": job_of(
        "torch_distributed", hosts=TWO, current="algo-2", settings=Settings(link="off")
    ),
    "torchrun_hetero_leader": job_of("torch_distributed", current="algo-3", gpus=8, machine=EFA, **HETERO),
    "torchrun_hetero_follower": job_of("torch_distributed", current="algo-2", gpus=8, machine=EFA, **HETERO),
    "torchrun_module": job_of("pytorchddp", script=script_of("pkg.main", "module")),
    "torchrun_package": job_of("pytorchddp", script=script_of("train", "package")),
    "torchrun_command": job_of("pytorchddp", script=script_of("run.sh", "command", through=("/bin/sh",))),
    "torchrun_command_shim_off": job_of("pytorchddp", script=script_of("bin/run", "command"), settings=OFF),
    "torchrun_shim_off": job_of("torch_distributed", hosts=TWO, settings=OFF),
    "torchrun_neuron": job_of("torch_distributed", hosts=TWO, neurons=32, environ={"RUN_NEURON_PARALLEL_COMPILE": "1"}),
    "torchrun_own_rendezvous": job_of(
        "torch_distributed", hosts=TWO, current="algo-2", environ={"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "1234"}
    ),
    "torchrun_addresses": job_of(
        "torch_distributed",
        hosts=TWO,
        current="algo-2",
        addresses={"algo-1": "127.0.0.1", "algo-2": "127.0.0.2"},
        interface="lo",
    ),
    "torchrun_unknown_interface": job_of("torch_distributed", hosts=TWO, interface="ethwe"),
    "torchrun_users_own": job_of(
        "torch_distributed",
        hosts=TWO,
        machine=EFA,
        environ={
            "NCCL_SOCKET_IFNAME": "^docker0",
            "FI_PROVIDER": "tcp",
            "PYTHONUNBUFFERED": "",
            "PYTHONPATH": "/my/modules",
            "PYTHON_EXEC": "/opt/conda/bin/python",
            "PET_SHUTDOWN_TIMEOUT": "7",
        },
    ),
    "smddp_one_host": job_of("smddp", gpus=8),
    "smddp_follower": job_of("smddp", hosts=TWO, current="algo-2"),
    "smddp_awss_library": job_of(
        "smddp",
        hosts=TWO,
        gpus=8,
        machine={
            **EFA,
            "programs": ("smddprun",),
            "mpi": Mpi(kind="openmpi4", version="4.1.8", path="/opt/amazon/openmpi/bin/mpirun"),
        },
    ),
    "xla_one_host": job_of("pytorchxla", per_host=2),
    "xla_follower": job_of("pytorchxla", hosts=TWO, current="algo-2"),
    "xla_module": job_of("pytorchxla", script=script_of("pkg.main", "module")),
    "xla_command": job_of("pytorchxla", script=script_of("bin/run", "command")),
    "xla_neuron": job_of("pytorchxla", hosts=TWO, neurons=32),
    "xla_tpu": job_of("pytorchxla", hosts=TWO, current="algo-2", environ={"PJRT_DEVICE": "TPU"}),
    "jax_one_host": job_of("jax", gpus=2),
    "jax_leader": job_of("jax", hosts=TWO),
    "jax_follower": job_of("jax", hosts=TWO, current="algo-2", gpus=4, per_host=2),
    "jax_module_shim_off": job_of("jax", hosts=TWO, script=script_of("pkg.main", "module"), settings=OFF),
    "jax_command": job_of("jax", hosts=TWO, script=script_of("bin/run", "command")),
    "jax_users_own": job_of(
        "jax",
        hosts=TWO,
        current="algo-2",
        per_host=2,
        gpus=8,
        environ={
            "JAX_COORDINATOR_ADDRESS": "10.0.0.9:1234",
            "JAX_LOCAL_DEVICE_IDS": "3",
            "JAX_ENABLE_PREEMPTION_SERVICE": "1",
            "JAX_NUM_PROCESSES": "77",
            "PYTHON_EXEC": "/opt/conda/bin/python",
        },
    ),
    "jax_one_machine": job_of(
        "jax",
        hosts=TWO,
        current="algo-2",
        addresses={"algo-1": "127.0.0.1", "algo-2": "127.0.0.1"},
        environ={"MASTER_PORT": "20001"},
        interface="lo",
    ),
    "multi_worker_one_host": job_of("multi_worker_mirrored", gpus=8),
    "multi_worker_follower": job_of("multi_worker_mirrored", hosts=TWO, current="algo-2", gpus=8),
    "multi_worker_own_config": job_of(
        "multi_worker_mirrored", hosts=TWO, environ={"TF_CONFIG": "{}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ),
    "multi_worker_simulated": job_of(
        "multi_worker_mirrored",
        hosts=TWO,
        current="algo-2",
        addresses={"algo-1": "127.0.0.1", "algo-2": "127.0.0.1"},
        environ={"MASTER_PORT": "20001"},
        interface="lo",
    ),
    "parameter_server_one_host": job_of("parameter_server"),
    "parameter_server_leader": job_of("parameter_server", hosts=TWO, gpus=8),
    "parameter_server_worker": job_of("parameter_server", current="algo-2", **HETERO),
    "parameter_server_link_off": job_of("parameter_server", hosts=TWO, current="algo-2", settings=Settings(link="off")),
    "parameter_server_own_config": job_of("parameter_server", hosts=TWO, environ={"TF_CONFIG": "{}"}),
    "xla_shim_on_gpus": job_of("pytorchxla", gpus=8, settings=Settings(compat="torch_xla")),
}


def text(name: str) -> str:
    """Return the plan of a job in the goldens' format."""
    job = JOBS[name]
    arguments = () if name == "everything" else tokens(job)
    environ = {**job.environ} if name == "everything" else {**job.environ, **variables(job, arguments)}
    text = table.plan(job, RUN).text({k: v for k, v in environ.items() if k != "PYTHONPATH"})
    return text.replace(str(HOOK), "@HOOK@").replace(str(HOOK.parents[2]), "@TOOLKIT@")


@pytest.mark.parametrize("name", sorted(JOBS))
def test_the_plan_is_its_golden(name: str) -> None:
    assert text(name) == (FOLDER / f"{name}.txt").read_text()


def test_every_golden_belongs_to_a_job() -> None:
    assert {file.stem for file in FOLDER.glob("*.txt")} == set(JOBS)


@pytest.mark.parametrize("name", sorted(JOBS))
def test_a_plan_is_made_of_the_job_alone(name: str) -> None:
    """Two plans are equal, the job does not change, and the job's own environment is in the plan."""
    job = JOBS[name]
    original = copy.deepcopy(job)

    plan = table.plan(job, RUN)

    assert plan == table.plan(job, RUN)
    assert job == original
    assert {k: plan.phase.main.environ[k] for k in ENVIRON} == ENVIRON


def write() -> None:
    """Write every golden."""
    FOLDER.mkdir(exist_ok=True)
    for name in JOBS:
        (FOLDER / f"{name}.txt").write_text(text(name))


if __name__ == "__main__":
    write()
