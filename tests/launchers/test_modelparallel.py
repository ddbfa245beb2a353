"""What AWS's model parallel library gets under mpirun, as from sagemaker-training 5.1.4 (its mpi.py)."""

from typing import Any

import pytest

from tests.launchers.jobs import PYTHON, SCRATCH, job_of
from toolkit.job.job import Job
from toolkit.job.machine import Mpi
from toolkit.job.plan import ProcessSpec
from toolkit.launchers import table

MPI = Mpi(kind="openmpi4", version="4.1.8", path="/usr/bin/mpirun")
TWO = {"partitions": 2}


def job(parameters: Any = TWO, *, programs: tuple[str, ...] = ("smddpmprun",), **environ: str) -> Job:
    given = {} if parameters is None else {"mp_parameters": parameters}
    return job_of("mpi", machine={"mpi": MPI, "programs": programs}, hyperparameters=given, environ=environ)


def main(of: Job) -> ProcessSpec:
    return table.plan(of, SCRATCH).phase.main


@pytest.mark.parametrize(
    ("asked", "wrapped"),
    [
        (job(), True),
        (job(TWO | {"ddp_dist_backend": "auto"}), True),
        (job(TWO | {"ddp_dist_backend": "nccl"}), False),
        (job({}), False),
        (job(None), False),
        (job(programs=()), False),
    ],
)
def test_smddpmprun_starts_the_ranks_where_it_is_installed_and_not_switched_off(asked: Job, wrapped: bool) -> None:
    argv = main(asked).argv

    at = argv.index("-", argv.index("-S"))  # The rank's command follows the rank shim.
    start = argv[at + 1 : at + 6]
    assert start == (("smddpmprun", "-i", "local", "--allow-bypass", PYTHON) if wrapped else argv[at + 1 : at + 6])
    assert ("smddpmprun" in argv) is wrapped


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (job(SM_DLC_TORCH_VERSION="2.5.1+cu124"), ("simple", "ring")),
        (job(SM_DLC_TORCH_VERSION="1.13.1"), ("simple", None)),
        (job(), (None, None)),
        (job(None, SM_DLC_TORCH_VERSION="2.5.1"), (None, None)),
        (job(SM_DLC_TORCH_VERSION="2.5.1", NCCL_PROTO="LL128"), ("LL128", "ring")),
    ],
)
def test_nccl_is_told_of_the_library_where_the_image_has_awss_pytorch(
    asked: Job, found: tuple[str | None, str | None]
) -> None:
    environ = main(asked).environ

    assert (environ.get("NCCL_PROTO"), environ.get("NCCL_ALGO")) == found
