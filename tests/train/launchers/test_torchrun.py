from typing import Any

import pytest

from tests.train.launchers.jobs import PYTHON, SCRATCH, job_of, script_of
from toolkit.job.job import Job, Script
from toolkit.job.plan import Listens, Plan, Resolves
from toolkit.settings import Settings
from toolkit.train.launchers.environment import tokens
from toolkit.train.launchers.torchrun import plan

HOSTS = ("algo-2", "algo-10", "algo-1")


def argv(job: Job) -> tuple[str, ...]:
    return plan(job, SCRATCH).phase.main.argv


def environ(job: Job) -> dict[str, str]:
    return plan(job, SCRATCH).phase.main.environ


def test_one_host_has_no_rendezvous_in_its_command_and_no_needs() -> None:
    """Contract point 42."""
    job = job_of("pytorchddp", gpus=2, hyperparameters={"lr": 0.1})

    planned = plan(job, SCRATCH)

    assert planned.phase.main.argv == (
        PYTHON,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "1",
        "--nproc_per_node",
        "2",
        "--",
        "train.py",
        "--lr",
        "0.1",
    )
    assert (planned.role, planned.phase.needs) == ("alone", ())


@pytest.mark.parametrize(("current", "rank"), [("algo-2", 0), ("algo-10", 1), ("algo-1", 2)])
def test_every_host_names_the_same_leader_and_its_own_place_in_the_documents_order(current: str, rank: int) -> None:
    """Contract 40, 41, 42: the documents' first host leads, not the alphabet's; places are the documents' order."""
    planned = plan(job_of("torch_distributed", hosts=HOSTS, current=current, per_host=2), SCRATCH)

    assert planned.phase.main.argv[3:13] == (
        "--nnodes",
        "3",
        "--nproc_per_node",
        "2",
        "--master_addr",
        "algo-2",
        "--master_port",
        "7777",
        "--node_rank",
        str(rank),
    )
    assert planned.role == ("leader" if rank == 0 else "follower")
    assert planned.world_size == 6
    assert planned.phase.main.starts_ranks == (2 * rank, 2 * rank + 1)


@pytest.mark.parametrize("current", HOSTS)
def test_every_host_waits_for_every_name(current: str) -> None:
    """Contract point 51. With the link all hosts start together, so no host waits for a port."""
    job = job_of("torch_distributed", hosts=HOSTS, current=current, settings=Settings(join_s=60))

    phase = plan(job, SCRATCH).phase

    assert phase.needs == tuple(Resolves(host=host, within_s=60) for host in HOSTS)
    assert phase.together


def test_without_the_link_a_follower_waits_for_the_leaders_port_too() -> None:
    off = Settings(join_s=60, link="off")
    job = job_of("torch_distributed", hosts=HOSTS, current="algo-1", settings=off)

    assert plan(job, SCRATCH).phase.needs == (
        *(Resolves(host=host, within_s=60) for host in HOSTS),
        Listens(host="algo-2", address="algo-2", port=7777, within_s=60),
    )


def test_without_the_link_the_leader_waits_for_no_port() -> None:
    off = Settings(link="off")
    needs = plan(job_of("torch_distributed", hosts=HOSTS, current="algo-2", settings=off), SCRATCH).phase.needs

    assert [type(need) for need in needs] == [Resolves] * 3


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"per_host": 3, "settings": Settings(processes_per_host=5), "gpus": 8}, 3),
        ({"settings": Settings(processes_per_host=5), "gpus": 8}, 5),
        ({"gpus": 8}, 8),
        ({"neurons": 32}, 32),
        ({}, 1),
    ],
)
def test_processes_per_host_are_those_asked_for_else_the_accelerators_else_one(
    options: dict[str, Any], count: int
) -> None:
    """Contract point 39."""
    job = job_of("torch_distributed", hosts=HOSTS, current="algo-1", **options)

    planned = plan(job, SCRATCH)

    assert planned.phase.main.argv[5:7] == ("--nproc_per_node", str(count))
    assert planned.world_size == 3 * count


@pytest.mark.parametrize(
    ("kind", "entry", "tail"),
    [
        ("program", "src/train.py", ("--", "src/train.py")),
        ("module", "pkg.main", ("-m", "--", "pkg.main")),
        ("package", "train", ("-m", "--", "train")),
        ("package", "src/train.py", ("--", "src/train.py")),
        ("command", "run", ("--no-python", "--", f"{SCRATCH}/rank", "./run")),
    ],
)
def test_every_kind_of_script_can_be_a_rank(kind: str, entry: str, tail: tuple[str, ...]) -> None:
    """Contract point 43, extended to packages and commands."""
    job = job_of("pytorchddp", hyperparameters={}, script=script_of(entry, kind))

    assert argv(job)[7:] == tail


def test_a_command_without_a_first_line_goes_through_the_shell() -> None:
    job = job_of("pytorchddp", hyperparameters={}, script=script_of("run.sh", "command", through=("/bin/sh",)))

    assert argv(job)[7:] == ("--no-python", "--", f"{SCRATCH}/rank", "/bin/sh", "./run.sh")


def test_arguments_that_look_like_torchruns_own_come_behind_the_script() -> None:
    job = job_of("pytorchddp", hyperparameters={"nnodes": "9", "help": "", "x": "$(touch /tmp/x); 'q'"})

    assert argv(job)[7:] == ("--", "train.py", "--help", "", "--nnodes", "9", "-x", "$(touch /tmp/x); 'q'")


def test_neuron_parallel_compile_stands_in_front_only_if_asked_for() -> None:
    """Contract point 42."""
    job = job_of("torch_distributed", environ={"RUN_NEURON_PARALLEL_COMPILE": "1"})

    assert argv(job)[:2] == ("neuron_parallel_compile", PYTHON)
    assert argv(job_of("torch_distributed", environ={"RUN_NEURON_PARALLEL_COMPILE": "0"}))[0] == PYTHON


def test_the_users_rendezvous_wins_in_the_command_the_environment_and_what_is_waited_for() -> None:
    variables = {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "1234"}
    off = Settings(link="off")
    job = job_of("torch_distributed", hosts=HOSTS, current="algo-1", environ=variables, settings=off)

    planned = plan(job, SCRATCH)

    assert planned.phase.main.argv[7:11] == ("--master_addr", "10.0.0.9", "--master_port", "1234")
    assert {name: planned.phase.main.environ[name] for name in variables} == variables
    assert planned.phase.needs[-1] == Listens(host="algo-2", address="10.0.0.9", port=1234, within_s=900)


def test_ranks_come_back_through_the_rank_shim_and_know_the_users_interpreter() -> None:
    main_spec = plan(job_of("pytorchddp"), SCRATCH).phase.main
    main = plan(job_of("pytorchddp", environ={"PYTHON_EXEC": "/opt/conda/bin/python"}), SCRATCH).phase.main

    assert (main_spec.environ["PYTHON_EXEC"], main_spec.rank_python) == (f"{SCRATCH}/rank", PYTHON)
    assert "TOOLKIT_PYTHON_EXEC" not in main_spec.environ
    assert main.environ["PYTHON_EXEC"] == f"{SCRATCH}/rank"
    assert main.rank_python == main.environ["TOOLKIT_PYTHON_EXEC"] == "/opt/conda/bin/python"


def test_without_the_rank_shim_the_launcher_starts_its_ranks_as_ever() -> None:
    off = Settings(rank_shim="off")
    program, command = (
        job_of("pytorchddp", settings=off, hyperparameters={}, script=script)
        for script in (script_of(), script_of("run", "command"))
    )

    assert not {name for name in environ(program) if name.endswith("PYTHON_EXEC")}
    assert not plan(program, SCRATCH).phase.main.rank_python
    assert not plan(program, SCRATCH).phase.main.has_rank_shim
    assert argv(command)[7:] == ("--no-python", "--", "./run")
    assert environ(job_of("pytorchddp", settings=off, environ={"PYTHON_EXEC": "/p"}))["PYTHON_EXEC"] == "/p"


@pytest.mark.parametrize(("grace_s", "timeout"), [(None, "140"), (20.0, "50")])
def test_torchruns_own_deadline_lies_behind_ours(grace_s: float | None, timeout: str) -> None:
    job = job_of("pytorchddp", settings=Settings(grace_s=grace_s))

    assert plan(job, SCRATCH).phase.main.launcher_environ["PET_SHUTDOWN_TIMEOUT"] == timeout


def test_torch_is_what_the_interpreter_must_have() -> None:
    planned: Plan = plan(job_of("pytorchddp"), SCRATCH)

    assert planned.modules == ("torch",)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (script_of(), ("train.py",)),
        (script_of("pkg.mod", "module"), ("pkg.mod",)),
        (script_of("run.sh", "command"), (str(SCRATCH / "rank"), "./run.sh")),
    ],
)
def test_torchruns_own_parser_leaves_every_argument_to_the_script(script: Script, words: tuple[str, ...]) -> None:
    """Contract 42: "--log" is a prefix of two of torchrun's options, "--nnodes" and "-m" are options of torchrun."""
    run = pytest.importorskip("torch.distributed.run")
    hyperparameters = {
        "log": 1,
        "n": 2,
        "m": "--",
        "nnodes": 3,
        "master_addr": "x",
        "help": "--no-python",
        "rdzv": "--",
    }
    job = job_of("torch_distributed", hosts=HOSTS, current="algo-1", hyperparameters=hyperparameters, script=script)

    argv = plan(job, SCRATCH).phase.main.argv
    parsed = run.get_args_parser().parse_args(argv[3:])

    assert (parsed.training_script, *parsed.training_script_args) == (*words, *tokens(job))
    assert (parsed.nnodes, parsed.master_addr, parsed.node_rank) == ("3", "algo-2", 2)
    assert (parsed.module, parsed.no_python) == (script.kind == "module", script.kind == "command")
