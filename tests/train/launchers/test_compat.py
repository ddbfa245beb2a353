"""A job's script gets the old import names that it needs."""

import pytest

from tests.train.launchers.jobs import SCRATCH, job_of
from toolkit.errors import ContractError
from toolkit.job.machine import Mpi
from toolkit.job.monitor import Monitor
from toolkit.job.strategy import StrategyName
from toolkit.settings import Settings
from toolkit.train.launchers import compat, table


@pytest.mark.parametrize(
    ("strategy", "setting", "names"),
    [
        ("script", "", ()),
        ("torch_distributed", "", ()),
        ("torch_distributed", "smddp", ("smddp",)),
        ("torch_distributed", " smddp, smddp ,", ("smddp",)),
        ("smddp", "", ("smddp",)),
        ("smddp", "smddp", ("smddp",)),
        ("smddp", "off", ()),
        ("torch_distributed", "smppy", ("smppy",)),
    ],
)
def test_a_script_gets_what_its_distribution_brings_and_what_is_asked_for_by_name(
    strategy: StrategyName, setting: str, names: tuple[str, ...]
) -> None:
    assert compat.names(job_of(strategy, settings=Settings(compat=setting))) == names


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({"CPUProfilingDuration": "3600"}, ("smddp", "smppy")),
        ({"SMPFileRotationSecs": "600"}, ("smddp", "smppy")),
        ({"LocalPath": "/opt/ml/output/profiler"}, ("smddp",)),
    ],
)
def test_a_document_that_asks_for_the_profiler_brings_its_names(
    parameters: dict[str, str], names: tuple[str, ...]
) -> None:
    assert compat.names(job_of("smddp", monitor=Monitor(parameters=parameters))) == names


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(ContractError) as refused:
        compat.names(job_of(settings=Settings(compat="smddp,horovod")))

    assert refused.value.exit_code == 78
    assert "TOOLKIT_COMPAT: expected off or names among smddp" in str(refused.value)
    assert "found 'horovod'" in str(refused.value)


def test_a_script_that_asks_for_nothing_is_told_nothing_also_by_a_train_around_it() -> None:
    plan = table.plan(job_of(environ={"TOOLKIT_COMPAT_PATH": "/of/another/job"}), SCRATCH)

    assert "TOOLKIT_COMPAT_PATH" not in plan.phase.main.environ


def test_every_name_has_its_folder_and_every_folder_its_name() -> None:
    folders = {path.name for path in compat.FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"}

    assert folders == set(compat.NAMES)
    assert not [name for name in folders if (compat.FOLDER / name / "__init__.py").exists()]


MODEL_PARALLEL = {"mp_parameters": {"partitions": 2, "ddp": True}}


def test_a_job_of_the_model_parallel_library_gets_its_names_and_not_those_of_the_data_parallel_one() -> None:
    mpi = Mpi(kind="openmpi4", version="4.1.8", path="/usr/bin/mpirun")
    with_smddp = Settings(compat="smddp")
    job = job_of("mpi", settings=with_smddp, hyperparameters=MODEL_PARALLEL, machine={"mpi": mpi}, per_host=2)

    plan = table.plan(job, SCRATCH)

    assert plan.phase.main.environ["TOOLKIT_COMPAT_PATH"] == str(compat.FOLDER / "smp")
    assert plan.notes == (
        "TOOLKIT_COMPAT: smddp is left out, because the job asks for smdistributed.modelparallel (mp_parameters)",
    )
    assert compat.names(job_of("mpi", settings=with_smddp)) == ("smddp",)
    assert compat.names(job_of("smddp", hyperparameters=MODEL_PARALLEL)) == ("smddp",)
    assert compat.names(job_of("script", hyperparameters=MODEL_PARALLEL)) == ()
    assert compat.names(job_of("mpi", settings=Settings(compat="off"), hyperparameters=MODEL_PARALLEL)) == ()
    for strategy in ("torch_distributed", "pytorchddp"):
        assert compat.names(job_of(strategy, hyperparameters=MODEL_PARALLEL)) == ("smp",)
