"""The data parallel library's launcher: the processes, the ranks' variables, the notes (checklist 45)."""

import msgspec
import pytest

from tests.train.launchers.jobs import SCRATCH, job_of
from toolkit.job.job import Job
from toolkit.job.machine import Mpi
from toolkit.job.plan import Plan
from toolkit.job.strategy import StrategyName
from toolkit.settings import Settings
from toolkit.train.launchers import mpi, table, torchrun
from toolkit.train.launchers.compat import FOLDER
from toolkit.train.launchers.smddp import plan
from toolkit.train.launchers.torchrun import exported

TWO = ("algo-1", "algo-2")


def smddp(options: str = "", **keywords: object) -> Job:
    job = job_of("smddp", **keywords)  # type: ignore[arg-type]
    return msgspec.structs.replace(job, strategy=msgspec.structs.replace(job.strategy, mpirun_options=options))


def environ(planned: Plan) -> dict[str, str]:
    return planned.phase.main.environ


def test_without_awss_library_ranks_run_as_under_torchrun_and_one_line_says_so() -> None:
    planned = plan(smddp(hosts=TWO, gpus=2), SCRATCH)

    theirs = torchrun.plan(job_of("torch_distributed", hosts=TWO, gpus=2), SCRATCH)
    assert planned.phase.main.argv == theirs.phase.main.argv
    assert (planned.launcher, planned.role, planned.world_size, planned.modules) == ("smddp", "leader", 4, ("torch",))
    choice = "smddp: AWS's library is not installed (no smddprun on PATH); torchrun starts the open backend"
    assert (planned.choice, planned.notes) == (choice, ())


def test_ranks_find_the_old_names_and_what_awss_launcher_told_them() -> None:
    """Contract point 1.11: several hosts are HOMOGENEOUS with a server's address, one host is SINGLENODE."""
    several, alone = environ(plan(smddp(hosts=TWO), SCRATCH)), environ(plan(smddp(), SCRATCH))

    assert several["TOOLKIT_COMPAT_PATH"] == alone["TOOLKIT_COMPAT_PATH"] == str(FOLDER / "smddp")
    exported_variables = {name: value for name, value in several.items() if name.startswith("SMDATA")}
    assert exported_variables == {
        "SMDATAPARALLEL_USE_HOMOGENEOUS": "1",
        "SMDATAPARALLEL_SERVER_ADDR": "algo-1",
        "SMDATAPARALLEL_SERVER_PORT": "7592",
    }
    assert {name: value for name, value in alone.items() if name.startswith("SMDATA")} == {
        "SMDATAPARALLEL_USE_SINGLENODE": "1"
    }


@pytest.mark.parametrize(
    ("options", "variables", "rest"),
    [
        ("", {}, ()),
        ("-verbose -x NCCL_DEBUG=VERSION", {"NCCL_DEBUG": "VERSION"}, ("-verbose",)),
        ("--NCCL_DEBUG WARN -x A=b=c -x PATH", {"NCCL_DEBUG": "WARN", "A": "b=c"}, ()),
        ("-mca pml ob1 -x", {}, ("-mca", "pml", "ob1", "-x")),
    ],
)
def test_of_mpiruns_options_torchruns_ranks_get_the_variables(
    options: str, variables: dict[str, str], rest: tuple[str, ...]
) -> None:
    assert exported(options) == (variables, rest)


@pytest.mark.parametrize("name", ["pytorchddp", "torch_distributed", "pytorchxla"])
def test_other_jobs_under_torchrun_get_the_variables_too(name: StrategyName) -> None:
    job = job_of(name, per_host=2)
    options = "-verbose -x NCCL_DEBUG=INFO -x LIST=a:b --NCCL_DEBUG WARN --mca btl tcp"
    job = msgspec.structs.replace(job, strategy=msgspec.structs.replace(job.strategy, mpirun_options=options))

    planned = table.plan(job, SCRATCH)

    assert (environ(planned)["NCCL_DEBUG"], environ(planned)["LIST"]) == ("WARN", "a:b")
    assert planned.notes == (
        "custom_mpi_options that are mpirun's alone are ignored under torchrun: -verbose --mca btl tcp",
    )


def test_ranks_under_torchrun_have_mpis_names_for_their_places_in_a_job_for_smddp_alone() -> None:
    theirs, others = plan(smddp(gpus=2), SCRATCH), torchrun.plan(job_of("pytorchddp", gpus=2), SCRATCH)

    assert theirs.phase.main.rank_aliases["OMPI_COMM_WORLD_LOCAL_SIZE"] == "LOCAL_WORLD_SIZE"
    assert others.phase.main.rank_aliases == {}


def test_the_jobs_own_options_win_over_the_images_environment_and_ignored_ones_are_named() -> None:
    planned = plan(smddp("-verbose -x NCCL_DEBUG=INFO", environ={"NCCL_DEBUG": "WARN"}), SCRATCH)

    assert environ(planned)["NCCL_DEBUG"] == "INFO"
    assert planned.notes == ("custom_mpi_options that are mpirun's alone are ignored under torchrun: -verbose",)


@pytest.mark.parametrize("settings", [Settings(compat="off"), Settings(rank_hook="off")])
def test_where_the_names_are_kept_out_that_is_said(settings: Settings) -> None:
    planned = plan(smddp(settings=settings), SCRATCH)

    (note,) = planned.notes
    assert "smdistributed cannot be imported" in note


OPEN_MPI = {"mpi": Mpi(kind="openmpi4", version="4.1.8", path="/usr/bin/mpirun")}


def test_with_awss_library_mpirun_starts_smddprun_as_the_original_does() -> None:
    """Contract 1.11: `smddprun python -m mpi4py train.py ARGS` after mpirun's options, which include the job's own."""
    job = smddp("-verbose -x NCCL_DEBUG=VERSION", hosts=TWO, gpus=8, machine={**OPEN_MPI, "programs": ("smddprun",)})

    planned = plan(job, SCRATCH)

    argv = planned.phase.main.argv
    index = argv.index("smddprun")
    assert argv[index + 1 :] == ("/usr/bin/python3", "-m", "mpi4py", "train.py", "--epochs", "3", "--name", "two words")
    assert "-verbose" in argv[:index]
    assert environ(planned)["SMDATAPARALLEL_SERVER_PORT"] == "7592"
    assert (planned.launcher, planned.role, planned.world_size) == ("smddp", "leader", 16)
    assert planned.choice == "smddp: AWS's library is installed; mpirun starts smddprun"


def test_mpirun_can_be_asked_for_with_the_open_backend() -> None:
    job = Settings(smddp_launcher="mpirun")

    planned = plan(smddp(per_host=2, settings=job, machine=OPEN_MPI), SCRATCH)

    theirs = mpi.plan(job_of("mpi", per_host=2, machine=OPEN_MPI), SCRATCH)
    assert planned.phase.main.argv == theirs.phase.main.argv
    assert environ(planned)["TOOLKIT_COMPAT_PATH"] == str(FOLDER / "smddp")
    assert (
        planned.choice == "smddp: AWS's library is not installed (no smddprun on PATH); mpirun starts the open backend"
    )
