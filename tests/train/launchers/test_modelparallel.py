"""Plans of jobs of the model parallel library; AWS's own under mpirun as from sagemaker-training 5.1.4 (its mpi.py)."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.train.launchers.jobs import PYTHON, SCRATCH, job_of
from toolkit.errors import ContractError
from toolkit.job.job import Job
from toolkit.job.machine import Mpi
from toolkit.job.plan import ProcessSpec
from toolkit.job.strategy import StrategyName
from toolkit.settings import Settings
from toolkit.train.launchers import table

MPI = Mpi(kind="openmpi4", version="4.1.8", path="/usr/bin/mpirun")
TWO = {"partitions": 2}


def job(parameters: Any = TWO, *, programs: tuple[str, ...] = ("smddpmprun",), **environ: str) -> Job:
    hyperparameters = {} if parameters is None else {"mp_parameters": parameters}
    machine = {"mpi": MPI, "programs": programs}
    return job_of("mpi", machine=machine, hyperparameters=hyperparameters, environ=environ, per_host=2)


def main(of: Job) -> ProcessSpec:
    return table.plan(of, SCRATCH).phase.main


@pytest.mark.parametrize(
    ("job", "wrapped"),
    [
        (job(), True),
        (job(TWO | {"ddp_dist_backend": "auto"}), True),
        (job(TWO | {"ddp_dist_backend": "nccl"}), False),
        (job({}), False),
        (job(None), False),
        (job(programs=()), False),
    ],
)
def test_smddpmprun_starts_the_ranks_where_it_is_installed_and_not_switched_off(job: Job, wrapped: bool) -> None:
    argv = main(job).argv

    index = argv.index("-", argv.index("-S"))  # The rank's command follows the rank shim.
    start = argv[index + 1 : index + 6]
    assert start == (
        ("smddpmprun", "-i", "local", "--allow-bypass", PYTHON) if wrapped else argv[index + 1 : index + 6]
    )
    assert ("smddpmprun" in argv) is wrapped


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (job(SM_DLC_TORCH_VERSION="2.5.1+cu124"), ("simple", "ring")),
        (job(SM_DLC_TORCH_VERSION="1.13.1"), ("simple", None)),
        (job(), (None, None)),
        (job(None, SM_DLC_TORCH_VERSION="2.5.1"), (None, None)),
        (job(SM_DLC_TORCH_VERSION="2.5.1", NCCL_PROTO="LL128"), ("LL128", "ring")),
    ],
)
def test_nccl_is_told_of_the_library_where_the_image_has_awss_pytorch(
    job: Job, expected: tuple[str | None, str | None]
) -> None:
    environ = main(job).environ

    assert (environ.get("NCCL_PROTO"), environ.get("NCCL_ALGO")) == expected


@pytest.mark.parametrize("strategy", ["mpi", "torch_distributed", "pytorchddp"])
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"partitions": 2, "microbatch": 4}, "found 'microbatch'. Did you mean microbatches?"),
        (
            {"partitions": 2, "pipeline": "fast"},
            "mp_parameters: expected interleaved or simple for pipeline, found 'fast'",
        ),
        ({"partitions": 3}, "expected a number of ranks that 3 divides"),
        (
            {"partitions": 2, "tensor_parallel_degree": 2, "placement_strategy": "DP"},
            "an order of the letters D, P",
        ),
        ("partitions=2", "expected a JSON object of the model parallel library's parameters, found 'partitions=2'"),
    ],
)
def test_wrong_parameters_are_refused_before_the_start(strategy: StrategyName, parameters: Any, message: str) -> None:
    """Two hosts of two ranks."""
    two: dict[str, Any] = {"hosts": ("algo-1", "algo-2"), "per_host": 2, "machine": {"mpi": MPI}}

    with pytest.raises(ContractError) as refused:
        table.plan(job_of(strategy, hyperparameters={"mp_parameters": parameters}, **two), SCRATCH)

    assert refused.value.exit_code == 78
    assert message in str(refused.value)
    assert refused.value.where == "mp_parameters"


def test_parameters_are_not_checked_where_another_library_takes_them() -> None:
    unknown = {"mp_parameters": {"partitions": 2, "of_a_later_release": True}}

    table.plan(job(unknown["mp_parameters"]), SCRATCH)  # AWS's helper is installed.
    table.plan(job_of("torch_distributed", settings=Settings(compat="off"), hyperparameters=unknown), SCRATCH)


def test_one_process_may_profile_a_model_for_several_partitions() -> None:
    environ = {"TOOLKIT_SMP_PROFILE": "1"}

    table.plan(job_of("torch_distributed", hyperparameters={"mp_parameters": TWO}, environ=environ), SCRATCH)


def test_a_partition_file_is_checked_before_the_start(tmp_path: Path) -> None:
    file = tmp_path / "partition.json"
    for document, message in (
        (None, "expected a partition decision, found no readable file"),
        ("{}", "fingerprint"),
        (three(), "expected a decision for 2 partitions, found one for 3"),
    ):
        if document is not None:
            file.write_text(document)
        parameters = {"mp_parameters": TWO | {"partition_file": str(file)}}
        with pytest.raises(ContractError) as refused:
            table.plan(job_of("torch_distributed", hyperparameters=parameters, per_host=2), SCRATCH)
        assert refused.value.exit_code == 78
        assert message in str(refused.value) and str(file) in str(refused.value)


def three() -> str:
    decision = {
        "fingerprint": "f",
        "devices": 3,
        "memory_weight": 0.8,
        "method": "manual",
        "reason": "",
        "assignment": {},
    }
    return json.dumps(decision)


RELEASE_2 = {"hybrid_shard_degree": 2, "tensor_parallel_degree": 2}


@pytest.mark.parametrize(
    "parameters",
    [
        RELEASE_2,
        {"tensor_parallel_degree": 2},
        {"activation_loading_horizon": 2, "tensor_parallel_degree": 2},
        {"context_parallel_degree": 2, "unheard_of": 1},
        {"expert_parallel_degree": 2},
        {"random_seed": 1},
    ],
)
def test_parameters_of_release_2_are_called_so_where_the_image_does_not_hold_it(parameters: dict[str, Any]) -> None:
    job = job_of("torch_distributed", hyperparameters={"mp_parameters": parameters}, per_host=2)

    with pytest.raises(ContractError) as caught:
        table.plan(job, SCRATCH)

    error_text = str(caught.value)
    words = ("mp_parameters: expected", "release 1", "release 2", "torch.sagemaker", "FSDP2", "tp_plan")
    assert [word for word in words if word not in error_text] == []


@pytest.mark.parametrize("strategy", ["torch_distributed", "pytorchddp"])
def test_a_job_of_release_2_starts_as_any_other_where_the_image_holds_it(strategy: StrategyName) -> None:
    held = {"torch_sagemaker": True}
    job = job_of(strategy, hyperparameters={"mp_parameters": RELEASE_2}, per_host=2, machine=held)

    planned = table.plan(job, SCRATCH)

    assert planned.launcher == "torchrun"
    assert "TOOLKIT_COMPAT_PATH" not in planned.phase.main.environ
    assert planned.phase.main.environ["NCCL_PROTO"] == "simple"
    assert json.loads(planned.phase.main.environ["SM_HP_MP_PARAMETERS"]) == RELEASE_2


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"ddp": True}, "expected partitions"),
        ({"partitons": 2}, "found 'partitons'"),
        ({"partitions": 2, "hybrid_shard_degree": 2}, "found 'hybrid_shard_degree'"),
    ],
)
def test_parameters_of_release_1_stay_so(parameters: dict[str, Any], words: str) -> None:
    held = {"torch_sagemaker": True}
    job = job_of("torch_distributed", hyperparameters={"mp_parameters": parameters}, per_host=2, machine=held)

    with pytest.raises(ContractError, match=words):
        table.plan(job, SCRATCH)
