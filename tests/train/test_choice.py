"""The launcher that runs a job, its number of ranks and its leading host (checklist 37-43), and plug-ins (38).

torch is a stand-in here that says what it was started with: what is asked is the choice, not torchrun's work. Each host
is asked by itself, without the link to the others.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.train.base import SEES, Base, Done

DDP = "sagemaker_pytorch_ddp_enabled"
TORCH = "sagemaker_torch_distributed_enabled"
MPI = "sagemaker_mpi_enabled"
SMDDP = "sagemaker_distributed_dataparallel_enabled"
XLA = "sagemaker_pytorch_xla_multi_worker_enabled"
MWMS = "sagemaker_multi_worker_mirrored_strategy_enabled"
SERVERS = "sagemaker_parameter_server_enabled"
PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
SAYS_ARGV = "import json, sys\nprint(json.dumps(sys.argv[1:]))\n"
ADDRESSES = {"TOOLKIT_HOST_ADDRESSES": "algo-1=127.0.0.1,algo-2=127.0.0.2,algo-3=127.0.0.3"}


@pytest.fixture
def torch(base: Base) -> Base:
    """A base whose interpreter finds a torch that only says its arguments, and whose script says "alone"."""
    folder = base.folder / "packages/torch/distributed"
    folder.mkdir(parents=True)
    for path in (folder.parent, folder):
        (path / "__init__.py").touch()
    (folder / "run.py").write_text(SAYS_ARGV)
    for name in ("torch_xla.py", "tensorflow.py"):
        (folder.parents[1] / name).touch()
    base.program("print('alone')\n")
    return base


def train(base: Base, **more: str) -> Done:
    packages = str(base.folder / "packages")
    return base.train({**ADDRESSES, "TOOLKIT_LOG_PREFIX": "off", "TOOLKIT_LINK": "off", "PYTHONPATH": packages, **more})


def group(name: str, *hosts: str) -> dict[str, object]:
    return {"instance_group_name": name, "instance_type": "ml.c5.xlarge", "hosts": list(hosts)}


@pytest.mark.parametrize(
    ("flags", "launcher"),
    [
        ((), "script"),
        ((DDP,), "torchrun"),
        ((TORCH,), "torchrun"),
        ((TORCH, SMDDP, XLA), "torchrun"),
        ((DDP, SMDDP, XLA), "torchrun"),
        ((SMDDP, XLA), "smddp"),
        ((XLA,), "pytorchxla"),
        ((XLA, MWMS, SERVERS), "pytorchxla"),
        ((MWMS, SERVERS), "multi_worker_mirrored"),
        ((SERVERS,), "script"),
    ],
)
def test_the_flags_choose_the_launcher_in_their_order(torch: Base, flags: Sequence[str], launcher: str) -> None:
    torch.hyperparameters(dict.fromkeys(flags, "true"))

    done = train(torch)

    assert done.status == 0, done
    assert f"launcher {launcher}," in done.log


def test_mpi_without_an_mpirun_is_refused_before_anything_is_started(torch: Base) -> None:
    torch.hyperparameters(dict.fromkeys((MPI, DDP, TORCH), "true"))

    done = train(torch, PATH="/nowhere")

    assert done.status == 78
    assert b"alone" not in done.stdout
    assert "expected an mpirun on PATH for distribution mpi" in (done.failure or "")


@pytest.mark.parametrize(("current", "index"), [("algo-1", 0), ("algo-2", 1)])
def test_tensorflows_workers_find_each_other_in_tf_config(torch: Base, current: str, index: int) -> None:
    """Contract point 49."""
    torch.hyperparameters({MWMS: "true"})
    torch.resources(("algo-1", "algo-2"), current=current)
    torch.program("import os\nprint(os.environ['TF_CONFIG'])\n")

    done = train(torch, TOOLKIT_HOST_ADDRESSES="algo-1=10.0.0.1,algo-2=10.0.0.2")

    document = json.loads(done.stdout)
    assert document["cluster"] == {"worker": ["10.0.0.1:8890", "10.0.0.2:8890"]}
    assert document["task"] == {"type": "worker", "index": index}


def test_a_flag_that_is_off_counts_for_nothing(torch: Base) -> None:
    torch.hyperparameters({MPI: "false", DDP: "false", SMDDP: "False"})

    assert train(torch).stdout == b"alone\n"


@pytest.mark.parametrize("flag", [DDP, MPI])
def test_a_host_outside_the_distributions_groups_runs_the_script_alone(torch: Base, flag: str) -> None:
    torch.hyperparameters({flag: "true", "sagemaker_distribution_instance_groups": json.dumps(["gpus"])})
    torch.resources(
        ("algo-1", "algo-2"),
        current="algo-2",
        current_group_name="loaders",
        instance_groups=[group("gpus", "algo-1"), group("loaders", "algo-2")],
    )

    done = train(torch)

    assert (done.status, done.stdout) == (0, b"alone\n"), done


def test_a_host_inside_them_runs_distributed_and_counts_only_its_own(torch: Base) -> None:
    torch.hyperparameters({DDP: "true", "sagemaker_distribution_instance_groups": json.dumps(["gpus"])})
    torch.resources(
        ("algo-1", "algo-2"),
        current_group_name="gpus",
        instance_groups=[group("gpus", "algo-1"), group("loaders", "algo-2")],
    )

    done = train(torch)

    assert json.loads(done.stdout) == ["--nnodes", "1", "--nproc_per_node", "1", "--", "train.py"]


NVIDIA = "#!/bin/sh\necho 'GPU 0: NVIDIA A100 (UUID: GPU-0)'\necho 'GPU 1: NVIDIA A100 (UUID: GPU-1)'\n"
NEURON = '#!/bin/sh\necho \'[{"nc_count": 2}, {"nc_count": 2}]\'\n'


@pytest.mark.parametrize(
    ("hyperparameters", "environ", "programs", "count"),
    [
        ({PER_HOST: "3"}, {"TOOLKIT_PROCESSES_PER_HOST": "5"}, {"nvidia-smi": NVIDIA}, "3"),
        ({}, {"TOOLKIT_PROCESSES_PER_HOST": "5"}, {"nvidia-smi": NVIDIA}, "5"),
        ({}, {}, {"nvidia-smi": NVIDIA, "neuron-ls": NEURON}, "2"),
        ({}, {}, {"neuron-ls": NEURON}, "4"),
        ({}, {}, {}, "1"),
    ],
    ids=["hyperparameter", "setting", "GPUs", "Neuron cores", "one"],
)
def test_ranks_per_host_are_those_asked_for_else_the_devices(
    torch: Base, hyperparameters: dict[str, str], environ: dict[str, str], programs: dict[str, str], count: str
) -> None:
    torch.hyperparameters({DDP: "true", **hyperparameters})
    for name, text in programs.items():
        torch.executable(name, text)

    done = train(torch, **environ)

    assert json.loads(done.stdout)[3] == count


@pytest.mark.parametrize(("current", "rank"), [("algo-3", "0"), ("algo-1", "1")])
@pytest.mark.parametrize("grouped", [True, False])
def test_the_first_host_of_the_documents_leads_whatever_the_alphabet_says(
    torch: Base, current: str, rank: str, grouped: bool
) -> None:
    torch.hyperparameters({TORCH: "true", "epochs": "3", "b": "it's"})
    groups: Any = [group("homogeneousCluster", "algo-3", "algo-1")] if grouped else None
    torch.resources(("algo-1", "algo-3") if grouped else ("algo-3", "algo-1"), current=current, instance_groups=groups)

    done = train(torch, TOOLKIT_JOIN_S="0.5")

    argv = ["--nnodes", "2", "--nproc_per_node", "1", "--master_addr", "127.0.0.3", "--master_port", "7777"]
    argv += ["--node_rank", rank, "--", "train.py", "-b", "it's", "--epochs", "3"]
    if rank == "0":
        assert json.loads(done.stdout) == argv
    else:
        # It waits for the leader, who is not there: what it would have started is in the log.
        assert done.status == 75
        assert "-m torch.distributed.run " + " ".join(argv).replace("it's", "'it'\"'\"'s'") in done.log


def test_the_users_address_and_port_are_those_of_the_rendezvous(torch: Base) -> None:
    torch.hyperparameters({DDP: "true"})
    torch.resources(("algo-1", "algo-2"))

    done = train(torch, MASTER_ADDR="127.0.0.9", MASTER_PORT="12345")

    argv = json.loads(done.stdout)
    assert argv[4:8] == ["--master_addr", "127.0.0.9", "--master_port", "12345"]


def test_neurons_compiler_runs_torchrun_where_it_is_asked_for(torch: Base) -> None:
    torch.hyperparameters({DDP: "true"})
    torch.executable("neuron_parallel_compile", '#!/bin/sh\necho "compiling $3"\nexec "$@"\n')

    done = train(torch, RUN_NEURON_PARALLEL_COMPILE="1")

    assert done.stdout.startswith(b"compiling torch.distributed.run\n[")


@pytest.mark.parametrize(
    ("files", "entry", "tokens"),
    [
        ({"pkg/mod.py": ""}, "pkg.mod", ["-m", "--", "pkg.mod"]),
        ({"run.sh": "#!/bin/sh\n"}, "run.sh", ["--no-python", "--", "./run.sh"]),
    ],
)
def test_what_is_no_python_file_runs_under_torchrun_too(
    torch: Base, files: dict[str, str], entry: str, tokens: list[str]
) -> None:
    torch.hyperparameters({DDP: "true"}, program=entry)
    for name, text in files.items():
        torch.program(text, name)

    done = train(torch, TOOLKIT_RANK_SHIM="off")

    assert json.loads(done.stdout)[4:] == tokens


# Plug-ins


PLUGIN = f"""
def main():
    {SEES.strip().replace(chr(10), chr(10) + "    ")}
    print(os.getpid(), os.getppid())
"""


def test_a_plug_in_runs_in_a_process_of_its_own_with_the_jobs_variables_and_no_arguments(base: Base) -> None:
    base.hyperparameters({"epochs": "3", DDP: "true"})
    base.program(PLUGIN, "framework/training.py")

    done = base.train(SAGEMAKER_TRAINING_MODULE="framework.training:main")

    assert done.status == 0, done
    assert done.argv == []
    assert done.cwd == str(base.folder)
    assert done.environ["SM_FRAMEWORK_MODULE"] == "framework.training:main"
    assert done.environ["SM_HP_EPOCHS"] == "3"
    assert len(done.stdout.split()) == 2


@pytest.mark.parametrize(("end", "status"), [("return 5", 0), ("raise SystemExit(5)", 5), ("raise SystemExit(0)", 0)])
def test_how_a_plug_in_ends_is_how_the_job_ends(base: Base, end: str, status: int) -> None:
    base.program(f"def main():\n    {end}\n", "framework.py")

    assert base.train(SAGEMAKER_TRAINING_MODULE="framework:main").status == status


def test_a_plug_in_without_a_function_is_refused(base: Base) -> None:
    base.program("")

    done = base.train(SAGEMAKER_TRAINING_MODULE="framework")

    assert done.status == 78
    assert "expected 'module:function', found 'framework'" in (done.failure or "")


# The errors that frameworks raise through sagemaker_training, by their names and what they hold.
ERRORS = """
class ClientError(Exception):
    pass
class InstallRequirementsError(ClientError):
    def __init__(self, cmd, return_code, output):
        self.cmd, self.return_code, self.output = cmd, str(return_code), output
    def __str__(self):
        words = type(self).__name__, self.return_code, self.output.decode(), self.cmd
        return '%s:\\nExitCode %s\\nErrorMessage "%s"\\nCommand "%s"' % words
class ExecuteUserScriptError(InstallRequirementsError):
    pass
"""
CLIENT = "from sagemaker_training import errors; raise errors."
TRAINING = '{kind}: \nTraceback (most recent call last):\n  File "{file}", line 2, in main\n    {line}\n'


@pytest.mark.parametrize(
    ("line", "status", "kind", "text"),
    [
        (f"{CLIENT}ClientError('no such script')", 1, "ClientError", "no such script"),
        (f"{CLIENT}InstallRequirementsError('pip', 1, b'none of it')", 1, "InstallRequirementsError",
         'InstallRequirementsError:\nExitCode 1\nErrorMessage "none of it"\nCommand "pip"'),
        (f"{CLIENT}ExecuteUserScriptError('x', 3, b'KeyError: 7')", 3, "ExecuteUserScriptError",
         'ExecuteUserScriptError:\nExitCode 3\nErrorMessage "KeyError: 7"\nCommand "x"'),
        (f"{CLIENT}ExecuteUserScriptError('x', -9, b'')", 137, "ExecuteUserScriptError",
         'ExecuteUserScriptError:\nExitCode -9\nErrorMessage ""\nCommand "x"'),
        ("raise OSError(28, 'disk')", 28, "Framework Error", TRAINING + "OSError: [Errno 28] disk\n\n[Errno 28] disk"),
        ("raise OSError('x')", 1, "Framework Error", TRAINING + "OSError: x\n\nx"),
        ("raise ValueError('torch_xla/a')", 1, "SMTrainingCompiler Error",
         TRAINING + "ValueError: torch_xla/a\n\ntorch_xla/a"),
    ],
)  # fmt: skip
def test_a_plug_ins_failure_keeps_the_kind_the_errno_and_the_text_of_sagemaker_training(
    base: Base, line: str, status: int, kind: str, text: str
) -> None:
    """Contract point 12. Seen beside sagemaker-training 5.1.4, which leaves out no line but its own trainer.py's."""
    base.program(ERRORS, "sagemaker_training/errors.py")
    base.program("", "sagemaker_training/__init__.py")
    base.program(f"def main():\n    {line}\n", "framework.py")

    done = base.train(SAGEMAKER_TRAINING_MODULE="framework:main")

    expected = text.format(kind=kind, file=base.code / "framework.py", line=line)
    failure = "\n".join(line for line in (done.failure or "").split("\n") if not re.fullmatch(r" *[~^]+", line))
    assert (done.status, failure, done.outcome["cause"]["kind"]) == (status, expected, kind), done


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ("no_such_framework:main", "ModuleNotFoundError: No module named 'no_such_framework'"),
        ("json:no_such_function", "AttributeError: module 'json' has no attribute 'no_such_function'"),
    ],
)
def test_a_plug_in_that_is_not_there_is_named_within_the_first_1024_characters(
    base: Base, plugin: str, message: str
) -> None:
    base.program("")

    done = base.train(SAGEMAKER_TRAINING_MODULE=plugin)

    assert done.status == 1
    assert (done.failure or "").startswith("Framework Error: \n")
    assert message in (done.failure or "")[:1024]


def test_a_plug_in_fetches_its_source_from_s3_itself_with_logging_at_the_jobs_level(base: Base) -> None:
    base.hyperparameters(
        {"sagemaker_submit_directory": '"s3://bucket/sourcedir.tar.gz"', "sagemaker_container_log_level": "30"}
    )
    says = "logging.info('never'), logging.warning('level %s', logging.getLogger('botocore').level)"
    base.program(f"import logging, os\ndef main():\n    print(os.environ['SM_MODULE_DIR'])\n    {says}\n", "fw.py")

    done = base.train(SAGEMAKER_TRAINING_MODULE="fw:main")

    assert (done.status, done.stdout) == (0, b"s3://bucket/sourcedir.tar.gz\n"), done
    assert re.search(r"^\d{4}-\S+ \S+ root         WARNING  level 30$", done.stderr.decode(), re.M)
    assert "never" not in done.log


def test_the_plug_in_of_aws_pytorch_images_is_replaced_and_this_is_said(torch: Base) -> None:
    torch.hyperparameters({DDP: "true", "epochs": "3"})

    done = train(torch, SAGEMAKER_TRAINING_MODULE="sagemaker_pytorch_container.training:main")

    assert json.loads(done.stdout)[-3:] == ["train.py", "--epochs", "3"]
    assert "sagemaker_pytorch_container.training:main, which AWS's images set" in done.log
