from typing import Any

import pytest

from tests.train.launchers.jobs import PYTHON, SCRATCH, job_of, script_of
from toolkit.errors import UserError
from toolkit.job.job import Job
from toolkit.settings import Settings
from toolkit.train.launchers.environment import environment
from toolkit.train.launchers.pytorchxla import RANK, plan
from toolkit.train.launchers.torchrun import plan as under_torchrun

TWO = ("algo-1", "algo-2")


def environ(job: Job) -> dict[str, str]:
    return plan(job, SCRATCH).phase.main.environ


def argv(job: Job) -> tuple[str, ...]:
    return plan(job, SCRATCH).phase.main.argv


def test_ranks_are_torchruns_and_begin_with_the_rank_program() -> None:
    """Contract point 47. RANK is one file, started by its path: the rank's interpreter need not have the toolkit."""
    job = job_of("pytorchxla", hosts=TWO, current="algo-2", per_host=2, hyperparameters={"lr": 0.1})

    planned, theirs = plan(job, SCRATCH), under_torchrun(job, SCRATCH)

    main_spec, torchruns = planned.phase.main, theirs.phase.main
    assert main_spec.argv == (*torchruns.argv[:-3], str(RANK), "train.py", "--lr", "0.1")
    assert (main_spec.starts_ranks, main_spec.has_rank_shim, main_spec.stop) == ((2, 3), True, torchruns.stop)
    assert (planned.launcher, planned.role, planned.world_size) == ("pytorchxla", "follower", 4)
    assert planned.phase.needs == theirs.phase.needs
    assert RANK.is_file()


@pytest.mark.parametrize(
    ("kind", "entry", "tail"),
    [
        ("program", "src/train.py", ("--", str(RANK), "src/train.py")),
        ("module", "pkg.main", ("--", str(RANK), "-m", "pkg.main")),
        ("package", "train", ("--", str(RANK), "-m", "train")),
        ("command", "run", ("--no-python", "--", f"{SCRATCH}/rank", "./run")),
    ],
)
def test_every_kind_of_script_can_be_a_rank(kind: str, entry: str, tail: tuple[str, ...]) -> None:
    job = job_of("pytorchxla", hyperparameters={}, script=script_of(entry, kind))

    assert argv(job)[7:] == tail


@pytest.mark.parametrize(
    ("values", "device"),
    [
        ({}, "CPU"),
        ({"neurons": 32}, "NEURON"),
        ({"environ": {"PJRT_DEVICE": "TPU"}}, "TPU"),
        ({"neurons": 32, "environ": {"PJRT_DEVICE": "CPU"}}, "CPU"),
        ({"gpus": 8, "environ": {"PJRT_DEVICE": "CPU"}}, "CPU"),
    ],
)
def test_the_device_is_the_machines_unless_the_user_names_one(values: dict[str, Any], device: str) -> None:
    variables = environ(job_of("pytorchxla", **values))

    assert (variables["PJRT_DEVICE"], variables["TOOLKIT_XLA"]) == (device, "on")


def test_nothing_of_xrt_is_set() -> None:
    """Nothing reads XRT's variables since torch_xla 2; NCCL's and EFA's belong to GPUs that it does not drive."""
    names = set(environ(job_of("pytorchxla", hosts=TWO))) - set(environment(job_of("torch_distributed", hosts=TWO), ()))

    assert not {name for name in names if name.startswith(("XRT_", "GPU_", "NCCL_", "FI_", "OFI_"))}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"gpus": 1}, "found 1 NVIDIA GPU:"),
        ({"gpus": 8, "hosts": TWO}, "found 8 NVIDIA GPUs:"),
        ({"environ": {"PJRT_DEVICE": "CUDA"}}, "found PJRT_DEVICE=CUDA:"),
        ({"gpus": 8, "script": script_of("run.sh", "command")}, "found 8 NVIDIA GPUs:"),
    ],
)
def test_gpus_are_refused_before_anything_is_started_with_what_to_do_instead(
    values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError) as refused:
        plan(job_of("pytorchxla", **values), SCRATCH)

    assert refused.value.exit_code == 78
    assert reason in str(refused.value)
    for way in ("torch_distributed", "torch.compile", "TOOLKIT_COMPAT=torch_xla", "PJRT_DEVICE=CPU"):
        assert way in str(refused.value)


def test_torch_xla_is_what_the_interpreter_must_have() -> None:
    assert plan(job_of("pytorchxla"), SCRATCH).modules == ("torch", "torch_xla")


def test_with_the_shim_gpus_are_torchs_own() -> None:
    planned = plan(job_of("pytorchxla", gpus=8, settings=Settings(compat="torch_xla")), SCRATCH)

    main = planned.phase.main
    assert planned.modules == ("torch",)
    assert main.starts_ranks == tuple(range(8))
    assert main.environ["TOOLKIT_COMPAT_PATH"].endswith("/compat/torch_xla")
    assert not {"PJRT_DEVICE", "TOOLKIT_XLA"} & set(main.environ)


def test_a_command_without_the_rank_hook_would_leave_its_ranks_alone_and_is_refused() -> None:
    off = Settings(rank_hook="off")

    with pytest.raises(UserError, match="TOOLKIT_RANK_HOOK"):
        plan(job_of("pytorchxla", script=script_of("run", "command"), settings=off), SCRATCH)

    assert argv(job_of("pytorchxla", settings=off))[8] == str(RANK)


def test_a_host_of_tpus_is_one_process_and_torch_xla_starts_the_chips() -> None:
    tpu = {"PJRT_DEVICE": "TPU"}
    planned = plan(job_of("pytorchxla", hosts=TWO, current="algo-2", environ=tpu, hyperparameters={}), SCRATCH)

    main = planned.phase.main
    assert main.argv == (PYTHON, str(RANK), "train.py")
    assert (main.rank, main.starts_ranks, planned.world_size, planned.role) == (1, (), 2, "follower")
    with pytest.raises(UserError, match="one process on each host"):
        plan(job_of("pytorchxla", environ=tpu, per_host=4), SCRATCH)
