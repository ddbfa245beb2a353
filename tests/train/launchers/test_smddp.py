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


def smddp(options: str = "", **given: object) -> Job:
    job = job_of("smddp", **given)  # type: ignore[arg-type]
    return msgspec.structs.replace(job, strategy=msgspec.structs.replace(job.strategy, mpirun_options=options))


def environ(made: Plan) -> dict[str, str]:
    return made.phase.main.environ


def test_without_awss_library_ranks_run_as_under_torchrun_and_one_line_says_so() -> None:
    made = plan(smddp(hosts=TWO, gpus=2), SCRATCH)

    theirs = torchrun.plan(job_of("torch_distributed", hosts=TWO, gpus=2), SCRATCH)
    assert made.phase.main.argv == theirs.phase.main.argv
    assert (made.launcher, made.role, made.world_size, made.modules) == ("smddp", "leader", 4, ("torch",))
    said = "smddp: AWS's library is not installed (no smddprun on PATH); torchrun starts the open backend"
    assert (made.choice, made.notes) == (said, ())


def test_ranks_find_the_old_names_and_what_awss_launcher_told_them() -> None:
    """1.11: several hosts are HOMOGENEOUS with a server's address, one host is SINGLENODE."""
    several, alone = environ(plan(smddp(hosts=TWO), SCRATCH)), environ(plan(smddp(), SCRATCH))

    assert several["TOOLKIT_COMPAT_PATH"] == alone["TOOLKIT_COMPAT_PATH"] == str(FOLDER / "smddp")
    told = {name: value for name, value in several.items() if name.startswith("SMDATA")}
    assert told == {
        "SMDATAPARALLEL_USE_HOMOGENEOUS": "1",
        "SMDATAPARALLEL_SERVER_ADDR": "algo-1",
        "SMDATAPARALLEL_SERVER_PORT": "7592",
    }
    assert {name: value for name, value in alone.items() if name.startswith("SMDATA")} == {
        "SMDATAPARALLEL_USE_SINGLENODE": "1"
    }


@pytest.mark.parametrize(
    ("options", "given", "rest"),
    [
        ("", {}, ()),
        ("-verbose -x NCCL_DEBUG=VERSION", {"NCCL_DEBUG": "VERSION"}, ("-verbose",)),
        ("--NCCL_DEBUG WARN -x A=b=c -x PATH", {"NCCL_DEBUG": "WARN", "A": "b=c"}, ()),
        ("-mca pml ob1 -x", {}, ("-mca", "pml", "ob1", "-x")),
    ],
)
def test_of_mpiruns_options_torchruns_ranks_get_the_variables(
    options: str, given: dict[str, str], rest: tuple[str, ...]
) -> None:
    assert exported(options) == (given, rest)


@pytest.mark.parametrize("name", ["pytorchddp", "torch_distributed", "pytorchxla"])
def test_other_jobs_under_torchrun_get_the_variables_too(name: StrategyName) -> None:
    job = job_of(name, per_host=2)
    options = "-verbose -x NCCL_DEBUG=INFO -x LIST=a:b --NCCL_DEBUG WARN --mca btl tcp"
    job = msgspec.structs.replace(job, strategy=msgspec.structs.replace(job.strategy, mpirun_options=options))

    made = table.plan(job, SCRATCH)

    assert (environ(made)["NCCL_DEBUG"], environ(made)["LIST"]) == ("WARN", "a:b")
    assert made.notes == (
        "custom_mpi_options that are mpirun's alone are ignored under torchrun: -verbose --mca btl tcp",
    )


def test_ranks_under_torchrun_have_mpis_names_for_their_places_in_a_job_for_smddp_alone() -> None:
    theirs, others = plan(smddp(gpus=2), SCRATCH), torchrun.plan(job_of("pytorchddp", gpus=2), SCRATCH)

    assert theirs.phase.main.rank_aliases["OMPI_COMM_WORLD_LOCAL_SIZE"] == "LOCAL_WORLD_SIZE"
    assert others.phase.main.rank_aliases == {}


def test_the_jobs_own_options_win_over_the_images_environment_and_ignored_ones_are_named() -> None:
    made = plan(smddp("-verbose -x NCCL_DEBUG=INFO", environ={"NCCL_DEBUG": "WARN"}), SCRATCH)

    assert environ(made)["NCCL_DEBUG"] == "INFO"
    assert made.notes == ("custom_mpi_options that are mpirun's alone are ignored under torchrun: -verbose",)


@pytest.mark.parametrize("settings", [Settings(compat="off"), Settings(rank_hook="off")])
def test_where_the_names_are_kept_out_that_is_said(settings: Settings) -> None:
    made = plan(smddp(settings=settings), SCRATCH)

    (note,) = made.notes
    assert "smdistributed cannot be imported" in note


OPEN_MPI = {"mpi": Mpi(kind="openmpi4", version="4.1.8", path="/usr/bin/mpirun")}


def test_with_awss_library_mpirun_starts_smddprun_as_the_original_does() -> None:
    """1.11: `smddprun python -m mpi4py train.py ARGS` after mpirun's options, which include the job's own."""
    job = smddp("-verbose -x NCCL_DEBUG=VERSION", hosts=TWO, gpus=8, machine={**OPEN_MPI, "programs": ("smddprun",)})

    made = plan(job, SCRATCH)

    argv = made.phase.main.argv
    at = argv.index("smddprun")
    assert argv[at + 1 :] == ("/usr/bin/python3", "-m", "mpi4py", "train.py", "--epochs", "3", "--name", "two words")
    assert "-verbose" in argv[:at]
    assert environ(made)["SMDATAPARALLEL_SERVER_PORT"] == "7592"
    assert (made.launcher, made.role, made.world_size) == ("smddp", "leader", 16)
    assert made.choice == "smddp: AWS's library is installed; mpirun starts smddprun"


def test_mpirun_can_be_asked_for_with_the_open_backend() -> None:
    asked = Settings(smddp_launcher="mpirun")

    made = plan(smddp(per_host=2, settings=asked, machine=OPEN_MPI), SCRATCH)

    theirs = mpi.plan(job_of("mpi", per_host=2, machine=OPEN_MPI), SCRATCH)
    assert made.phase.main.argv == theirs.phase.main.argv
    assert environ(made)["TOOLKIT_COMPAT_PATH"] == str(FOLDER / "smddp")
    assert made.choice == "smddp: AWS's library is not installed (no smddprun on PATH); mpirun starts the open backend"
