"""The jobs that both run (tests/conformance/cases.py says what is looked at)."""

import io
import json
import os
import shutil
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conformance.running import Job
from tests.train.base import SEES, Base

JOBS: dict[str, Job] = {}
READY = "import os, signal, sys, time\nopen(os.environ['READY_FILE'], 'w').close()\n"
NVIDIA = "#!/bin/sh\necho asked >> \"$HOME/opt/ml/asked\"\necho 'GPU 0: NVIDIA A100 (UUID: GPU-0)'\n"
NVIDIA += "echo 'GPU 1: NVIDIA A100 (UUID: GPU-1)'\n"
ALONE = {"TOOLKIT_LINK": "off", "SM_STUDIO_LOCAL_MODE": "true"}
# Says which arguments mpirun had, and runs rank 0 with the variables and the tag that Open MPI 4 would give it.
MPIRUN = """#!PYTHON
import json, os, subprocess, sys
if sys.argv[1:2] in (['--version'], ['-V']):
    print('mpirun (Open MPI) 4.1.8')
    sys.exit(0)
words = sys.argv[1:]
open(os.environ['ARGV_FILE'], 'w').write(json.dumps({'argv': words, 'environ': dict(os.environ)}))
begins = [at for at, word in enumerate(words[:-1]) if '/' in word and words[at + 1] in ('-m', '-I')]
start = begins[0]
ranks = {'OMPI_COMM_WORLD_' + name: value for name, value in (('RANK', '0'), ('LOCAL_RANK', '0'), ('SIZE', '3'))}
given = dict(after.split('=', 1) for word, after in zip(words, words[1:start]) if word == '-x' and '=' in after)
done = subprocess.run(words[start:], env={**os.environ, **ranks, **given}, stdout=subprocess.PIPE, text=True)
for line in done.stdout.splitlines():
    print('[1,0]<stdout>:' + line if '--tag-output' in words else line)
sys.exit(done.returncode)
"""
HELLO = SEES + "print('hello from rank 0')\n"
PIP = """import os, sys
with open(os.path.join(os.environ['HOME'], 'opt/ml/pip'), 'a') as file:
    print(*sys.argv[1:], file=file)
if os.path.exists('fails'):
    print('ERROR: No matching distribution found for nosuch==1')
    sys.exit(1)
"""


def job(name: str, **more: Any) -> Callable[[Callable[[Base], None]], Callable[[Base], None]]:
    """Add a job: the function fills its base folder, *more* are fields of Job; `environ` its variables."""

    def add(prepare: Callable[[Base], None]) -> Callable[[Base], None]:
        JOBS[name] = Job(name, prepare, more.pop("environ", {}), **more)
        return prepare

    return add


def script(name: str, text: str, **more: Any) -> None:
    """Add a job that is no more than this script."""
    job(name, **more)(lambda base: _program(base, text))


def _program(base: Base, text: str) -> None:
    base.program(text)


def _program_named(base: Base, name: str, text: str) -> None:
    base.program(text, name)


def _neuron(base: Base) -> None:
    base.executable("neuron-ls", "#!/bin/sh\necho '[{\"nc_count\": 4}]'\n")
    base.executable("neuron_parallel_compile", '#!/bin/sh\necho in front; exec "$@"\n')


def _smddprun(base: Base) -> None:
    base.executable("smddprun", '#!/bin/sh\nexec "$@"\n')


def _without_boto3(base: Base) -> None:
    (base.folder / "packages/boto3.py").write_text("raise ImportError('there is no boto3')\n")


def extend(name: str, more: Callable[[Base], None]) -> None:
    """Let a job's preparation do more."""
    original = JOBS[name].prepare

    def prepare(base: Base) -> None:
        original(base)
        more(base)

    JOBS[name].prepare = prepare


def prepare_job(base: Base, program: str | None = "train.py", **more: object) -> None:
    """Write hyperparameters.json; the code folder is the source, unless *more* says otherwise."""
    base.hyperparameters({"sagemaker_submit_directory": str(base.code), **more}, program=program)


def group(name: str, *hosts: str) -> dict[str, object]:
    return {"instance_group_name": name, "instance_type": "ml.c5.xlarge", "hosts": list(hosts)}


def archive(base: Base, *members: tuple[tarfile.TarInfo, bytes]) -> str:
    """Write a source archive outside the code folder and return its path."""
    path = base.folder / "sourcedir.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return str(path)


def member(
    name: str, text: str = "", mode: int = 0o644, kind: bytes = tarfile.REGTYPE
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode, info.type = mode, kind
    return info, text.encode()


# One job that shows arguments and variables.

VALUES: dict[str, object] = {
    "whole": "7",
    "small": "1e-5",
    "padded": "0.10",
    "zeros": "007",
    "on": "true",
    "off": "false",
    "none": "null",
    "several": '[1,"a"]',
    "mapping": '{"x":1,"y":"z"}',
    "quoted": '"text"',
    "quoted-true": '"\\"true\\""',
    "empty": '""',
    "plain": "plain text",
    "shell": "$(touch hacked); `id` | & 'x' \"y\"",
    "lines": "one\ntwo",
    "dash": "-5x",
    "nan": "NaN",
    "big": "123456789012345678901234567890",
    "k": "3",
    "learning-rate": "0.1",
    "with.dot": "1",
    "number": 5,
    "list": [1, 2],
    "unicode": '"größe"',
    "mp_parameters": '{"partitions": 2}',
    "sagemaker_region": '"eu-central-1"',
    "sagemaker_job_name": '"job-1"',
    "sagemaker_container_log_level": "20",
    "sagemaker_enable_cloudwatch_metrics": "false",
    "sagemaker_own_key": '"kept"',
    "_tuning_objective_metric": '"loss"',
}


@job("values")
def values(base: Base) -> None:
    prepare_job(base, "train.py", **VALUES)
    base.inputs("train", "eval", "a-b")
    base.program(SEES)


@job("framework", framework=True, own_network=True)
def framework(base: Base) -> None:
    base.program(SEES)


@job(
    "framework, user's own variables",
    framework=True,
    environ={"NCCL_DEBUG": "INFO", "NCCL_IB_DISABLE": "0", "MASTER_PORT": "1234", "MY_OWN": "1"},
)
def own_variables(base: Base) -> None:
    base.program(SEES)


@job("groups", environ=ALONE)
def groups(base: Base) -> None:
    prepare_job(base, sagemaker_distribution_instance_groups='["gpus", "more"]')
    base.resources(
        ["algo-1", "algo-2", "algo-3"],
        current="algo-2",
        current_group_name="more",
        instance_groups=[group("gpus", "algo-3"), group("more", "algo-2"), group("loaders", "algo-1")],
    )
    base.program(SEES)


@job("topology", environ=ALONE)
def topology(base: Base) -> None:
    base.resources(["algo-1"], topology=[{"hostName": "algo-1", "capacityUnitId": "u-1"}])
    base.program(SEES)


@job("GPUs")
def gpus(base: Base) -> None:
    base.executable("nvidia-smi", NVIDIA)
    base.program(SEES)


@job("Neuron cores")
def neuron_cores(base: Base) -> None:
    base.executable("neuron-ls", '#!/bin/sh\necho \'[{"nc_count": 2}, {"nc_count": 2}]\'\n')
    base.program(SEES)


@job("trn2.48xlarge")
def trn2(base: Base) -> None:
    base.resources(["localhost"], current_instance_type="ml.trn2.48xlarge", network_interface_name="lo")
    base.program(SEES)


@job("Local Mode", environ=ALONE)
def local_mode(base: Base) -> None:
    hosts = {"current_host": "algo-1-x7k2p", "hosts": ["algo-1-x7k2p", "algo-2-x7k2p"]}
    base.document("resourceconfig.json", {**hosts, "network_interface_name": "eth0", "current_instance_type": "local"})
    base.program(SEES)


@job("hosts and current_host only, unknown keys")
def sparse(base: Base) -> None:
    base.document("resourceconfig.json", {"current_host": "localhost", "hosts": ["localhost"], "unknown": 1})
    base.program(SEES)


@job("Pipe channel")
def pipe(base: Base) -> None:
    base.inputs("train", mode="Pipe")
    (base.root / "input/data").mkdir()
    os.mkfifo(base.root / "input/data/train_0")
    base.program(SEES)


script("program by variable", SEES, environ={"SAGEMAKER_PROGRAM": "train.py"})
extend("program by variable", lambda base: prepare_job(base, "other.py"))

# Documents that are missing or broken.


@job("no folder at all")
def nothing(base: Base) -> None:
    shutil.rmtree(base.root)


def _broken(name: str, content: bytes | None) -> Callable[[Base], None]:
    def prepare(base: Base) -> None:
        base.program(SEES)
        (base.config / name).unlink()
        if content is not None:
            base.document(name, content)

    return prepare


DOCUMENTS = ("hyperparameters", "inputdataconfig", "resourceconfig")
for _name in DOCUMENTS:
    job(f"no {_name}")(_broken(f"{_name}.json", None))
    job(f"broken {_name}")(_broken(f"{_name}.json", b'{\n  "a": \n}'))


@job("no current_host")
def no_current_host(base: Base) -> None:
    base.document("resourceconfig.json", {"hosts": ["localhost"]})
    base.program(SEES)


# Ends.

script("success", "print('fine')\n")
script("as a child of bash", "import sys\nprint('fine')\nsys.exit(0)\n", shell=True)
script("fails as a child of bash", "import sys\nsys.exit(5)\n", shell=True)
script("as PID 1", "print('fine')\n", caged=True)
script("with words", "print('fine')\n", words=("some", "words"))
script("exit 3", "import sys\nsys.exit(3)\n")
script("exit 255", "import os\nos._exit(255)\n", framework=True)
script("SIGKILL", "import os\nos.kill(os.getpid(), 9)\n")
script("SIGSEGV", "import os\nos.kill(os.getpid(), 11)\n", framework=True)
script("raises", "print('about to fail')\nraise RuntimeError('no such shard')\n")
script("raises, captured", "print('about to fail')\nraise RuntimeError('no such shard')\n", framework=True)
script(
    "an early warning, then an error",
    "print('ImportError: no flash_attn, going on without')\n"
    "for n in range(300): print('step', n, 'and all is well with this line')\n"
    "raise ValueError('loss is nan')\n",
    framework=True,
)
script(
    "writes its own failure and fails",
    "import os, sys\nopen(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('my own words')\nsys.exit(1)\n",
)
script(
    "writes its own failure and ends with 0",
    "import os\nopen(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('my own words')\n",
)


@job("output is a file")
def output_is_a_file(base: Base) -> None:
    base.program(
        "import os, shutil\nshutil.rmtree(os.environ['SM_OUTPUT_DIR'])\n"
        "open(os.environ['SM_OUTPUT_DIR'], 'w').close()\nraise SystemExit(4)\n"
    )


@job("output is gone")
def output_is_gone(base: Base) -> None:
    base.program("import os, shutil\nshutil.rmtree(os.environ['SM_OUTPUT_DIR'])\nraise SystemExit(4)\n")


def _plugin(name: str, text: str) -> None:
    @job(name, environ={"SAGEMAKER_TRAINING_MODULE": "own_plugin:main"})
    def prepare(base: Base) -> None:
        (base.folder / "packages/own_plugin.py").write_text(text)
        base.program("")


_plugin("plug-in", "def main():\n    print('the plug-in ran')\n")
_plugin("plug-in: ValueError", "def main():\n    raise ValueError('bad')\n")
_plugin("plug-in: OSError without errno", "def main():\n    raise OSError('storage is away')\n")
_plugin("plug-in: errno 2", "def main():\n    open('/nowhere/at/all')\n")
_plugin("plug-in: SystemExit", "import sys\ndef main():\n    sys.exit(3)\n")
_plugin("plug-in: KeyboardInterrupt", "def main():\n    raise KeyboardInterrupt\n")


@job("again after a failure", again=True)
def again(base: Base) -> None:
    base.program("raise SystemExit(3)\n")


# Code.


def _from(base: Base, source: str, program: str = "train.py") -> None:
    base.hyperparameters({"sagemaker_submit_directory": source}, program=program)


@job("source: a folder")
def from_folder(base: Base) -> None:
    (base.folder / "source").mkdir()
    (base.folder / "source/train.py").write_text(SEES)
    _from(base, str(base.folder / "source"))


@job("source: tar.gz")
def from_tar(base: Base) -> None:
    _from(base, archive(base, member("train.py", SEES)))


@job("source: one file")
def from_file(base: Base) -> None:
    (base.folder / "train.py").write_text(SEES)
    _from(base, str(base.folder / "train.py"))


@job("source: the code channel")
def from_channel(base: Base) -> None:
    base.inputs("code")
    Path(archive(base, member("train.py", SEES))).rename(base.root / "input/data/code/sourcedir.tar.gz")
    _from(base, str(base.root / "input/data/code/sourcedir.tar.gz"))


@job("source: there is code already")
def from_both(base: Base) -> None:
    base.program("print('the old code')\n")
    _from(base, archive(base, member("train.py", "print('the submitted code')\n")))


@job("source: missing")
def from_nowhere(base: Base) -> None:
    _from(base, str(base.folder / "missing.tar.gz"))


@job("source: s3://, unreachable", deadline_s=40, environ={"S3_ENDPOINT_URL": "http://127.0.0.1:9"})
def from_s3(base: Base) -> None:
    _from(base, "s3://bucket/sourcedir.tar.gz")


@job("bare folders")
def bare(base: Base) -> None:
    shutil.rmtree(base.output)
    shutil.rmtree(base.code, ignore_errors=True)
    _from(base, archive(base, member("train.py", "print('fine')\n")))


@job("archive: reaches outside")
def tar_outside(base: Base) -> None:
    _from(base, archive(base, member("train.py", SEES), member("../escaped.txt", "x")))


@job("archive: a device")
def tar_device(base: Base) -> None:
    _from(base, archive(base, member("train.py", SEES), member("null", kind=tarfile.CHRTYPE)))


@job("archive: setuid")
def tar_setuid(base: Base) -> None:
    text = "import os\nprint(oct(os.stat('tool').st_mode & 0o7000))\n"
    _from(base, archive(base, member("train.py", text), member("tool", "x", 0o4755)))


@job("archive: a link outside")
def tar_link(base: Base) -> None:
    link = tarfile.TarInfo("passwd")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    _from(base, archive(base, member("train.py", SEES), (link, b"")))


for _label, _entry in {
    "../train.py": "../train.py",
    "a b.py": "a b.py",
    "-x.py": "-x.py",
    "$(id).py": "$(id).py",
    "absent.py": "absent.py",
}.items():

    def _named(base: Base, entry: str = _entry) -> None:
        prepare_job(base, entry)
        base.program(SEES)

    job(f"entry point {_label}")(_named)


@job("entry point in a folder")
def in_folder(base: Base) -> None:
    prepare_job(base, "src/train.py")
    base.program(SEES, "src/train.py")


SHELL = 'printf "%s\\n" "$@" > "$SM_OUTPUT_DATA_DIR/words"; pwd; [ -x run.sh ] && echo executable; exit 0\n'


@job("shell script")
def shell(base: Base) -> None:
    prepare_job(base, "run.sh", text='it\'s $(id) "x"')
    base.program(SHELL, "run.sh").chmod(0o644)


@job("shell script that fails", framework=True)
def shell_fails(base: Base) -> None:
    prepare_job(base, "run.sh")
    base.program("echo no data >&2; exit 9\n", "run.sh")


@job("command")
def command(base: Base) -> None:
    prepare_job(base, "tool", n="1")
    base.program('#!/bin/sh\necho "command $*"\n', "tool").chmod(0o644)


def _packaged(base: Base, program: str) -> None:
    prepare_job(base, program, n="1")
    base.program("from setuptools import setup\nsetup()\n", "setup.py")
    base.program(SEES, program)
    _pip(base)


def _pip(base: Base, text: str = PIP) -> None:
    (base.folder / "packages/pip/__main__.py").write_text(text)


job("package")(lambda base: _packaged(base, "train.py"))
job("package, entry point in a folder")(lambda base: _packaged(base, "src/train.py"))


@job("requirements")
def requirements(base: Base) -> None:
    base.program("nosuch==1\n", "requirements.txt")
    base.program(SEES)
    _pip(base)


@job("requirements of a shell script")
def requirements_sh(base: Base) -> None:
    prepare_job(base, "run.sh")
    base.program("nosuch==1\n", "requirements.txt")
    base.program("echo fine\n", "run.sh")
    _pip(base)


@job("requirements fail", framework=True)
def requirements_fail(base: Base) -> None:
    base.program("nosuch==1\n", "requirements.txt")
    base.program("", "fails")
    base.program(SEES)
    _pip(base)


@job("package fails", framework=True)
def package_fails(base: Base) -> None:
    _packaged(base, "train.py")
    base.program("", "fails")


CODE_ARTIFACT = {"CA_REPOSITORY_ARN": "arn:aws:codeartifact:eu-central-1:123456789012:repository/domain/repository"}


@job("CodeArtifact, nothing to install", environ=CODE_ARTIFACT)
def code_artifact(base: Base) -> None:
    base.program(SEES)


@job("CodeArtifact, requirements", environ=CODE_ARTIFACT)
def code_artifact_requirements(base: Base) -> None:
    requirements(base)


# Launchers, in AWS's PyTorch image.

DDP, TORCH = "sagemaker_pytorch_ddp_enabled", "sagemaker_torch_distributed_enabled"
MPI, SMDDP = "sagemaker_mpi_enabled", "sagemaker_distributed_dataparallel_enabled"
XLA = "sagemaker_pytorch_xla_multi_worker_enabled"


def _flags(name: str, *flags: str, environ: dict[str, str] | None = None, **more: Any) -> None:
    gpus, mpirun = more.pop("gpus", True), more.pop("mpirun", False)
    hosts, hyperparameters = more.pop("hosts", ["localhost"]), more.pop("hyperparameters", {})
    program, current = more.pop("program", "train.py"), more.pop("current", None)
    resources = more.pop("resources", {})

    addresses = ",".join(f"{host}=127.0.0.1" for host in hosts if host != "localhost")
    alone = {**ALONE, **({"TOOLKIT_HOST_ADDRESSES": addresses} if addresses else {})}

    @job(name, framework=more.pop("framework", True), environ={**alone, **(environ or {})}, **more)
    def prepare(base: Base) -> None:
        prepare_job(base, program, **dict.fromkeys(flags, "true"), n="1", **hyperparameters)
        base.resources(hosts, current=current, network_interface_name="lo", **resources)
        base.program(SEES, program)
        if gpus:
            base.executable("nvidia-smi", NVIDIA)
        if mpirun:
            base.executable("mpirun", MPIRUN.replace("PYTHON", sys.executable))


_flags("torchrun, one host", TORCH)
_flags("torchrun, three leaders", TORCH, hosts=["algo-3", "algo-1"], current="algo-3")
_flags("torchrun, Neuron", TORCH, gpus=False, environ={"RUN_NEURON_PARALLEL_COMPILE": "1"})
extend("torchrun, Neuron", lambda base: _neuron(base))
_flags("torchrun, shell script", TORCH, program="run.sh")
extend("torchrun, shell script", lambda base: _program_named(base, "run.sh", "echo fine\n"))
_flags("torchrun before smddp and XLA", TORCH, SMDDP, XLA)
_flags("torchrun, EFA instance", TORCH, resources={"current_instance_type": "ml.p4d.24xlarge"})
_flags("torchrun, user's NCCL_PROTO", TORCH, environ={"NCCL_PROTO": "LL"})
_flags("pytorchddp", DDP, mpirun=True)
_flags(
    "a host outside the distribution's groups",
    TORCH,
    hosts=["algo-1", "algo-2"],
    current="algo-2",
    hyperparameters={"sagemaker_distribution_instance_groups": '["gpus"]'},
    resources={"current_group_name": "cpus", "instance_groups": [group("gpus", "algo-1"), group("cpus", "algo-2")]},
)
_flags("flags that are off", hyperparameters={MPI: "false", TORCH: "false"})
_flags("XLA without torch_xla", XLA)
_flags(
    "mpi",
    MPI,
    mpirun=True,
    caged=True,
    hyperparameters={
        "sagemaker_mpi_num_of_processes_per_host": "3",
        "sagemaker_mpi_custom_mpi_options": "-x OWN=1 --NCCL_DEBUG WARN",
    },
    environ={"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "0123456789" * 4},
    deadline_s=50,
)
_flags("mpi in a plain image", MPI, mpirun=True, caged=True, framework=False, deadline_s=50)
extend("mpi", lambda base: _program(base, HELLO))
_flags("smddp", SMDDP, mpirun=True, caged=True, deadline_s=50)
extend("smddp", lambda base: _smddprun(base))
_flags(
    "MultiWorkerMirrored in a plain image",
    "sagemaker_multi_worker_mirrored_strategy_enabled",
    hosts=["algo-1", "algo-2"],
    framework=False,
)
extend("MultiWorkerMirrored in a plain image", lambda base: (base.folder / "packages/tensorflow.py").touch())


@job("torchrun, two hosts", framework=True, both=True)
def torchrun_on_two(base: Base) -> None:
    prepare_job(base, sagemaker_torch_distributed_enabled="true", n="1")
    base.executable("nvidia-smi", NVIDIA)
    base.program(SEES)


@job("tuning job with a model_dir", environ=ALONE)
def tuning(base: Base) -> None:
    prepare_job(base, model_dir='"s3://bucket/models"', _tuning_objective_metric='"loss"')
    (base.folder / "packages/tensorflow.py").touch()
    base.program(SEES)


# Hosts.


@job("a host that does not resolve", deadline_s=8, environ={"TOOLKIT_JOIN_S": "2", "TOOLKIT_LINK": "off"})
def unresolved(base: Base) -> None:
    base.resources(["localhost", "nowhere.invalid"], network_interface_name="lo")
    base.program(SEES)


@job("two hosts, the leader fails", both=True, deadline_s=30)
def leader_fails(base: Base) -> None:
    base.program(
        "import os, time\nif os.environ['SM_CURRENT_HOST'] == '127.0.0.1':\n    time.sleep(1)\n"
        "    raise ValueError('the leader failed')\ntime.sleep(4)\n"
    )


@job("two hosts, each told who it is", both=True, deadline_s=30)
def two_hosts(base: Base) -> None:
    base.program(SEES)


@job(
    "names of every kind", environ={**ALONE, "TOOLKIT_HOST_ADDRESSES": "Host_A.local=127.0.0.1,algo-1-a1b2c=127.0.0.2"}
)
def odd_names(base: Base) -> None:
    base.resources(["algo-1-a1b2c", "Host_A.local"], current="Host_A.local", network_interface_name="lo")
    base.program(SEES)


@job("an interface that is not there", framework=True)
def ethwe(base: Base) -> None:
    base.resources(["localhost"], network_interface_name="ethwe")
    base.program(SEES)


# Streams.

script("both streams", "import sys\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\n", framework=True)
script(
    "lines in pieces",
    "import os, time\nfor piece in (b'loss=', b'0.5\\n'):\n    os.write(1, piece)\n    time.sleep(0.2)\n",
    framework=True,
)
script("a partial last line", "import os\nos.write(1, b'first\\nlast')\n", framework=True)
script("bytes that are not UTF-8", "import os\nos.write(1, b'a\\xff\\xfeb\\n')\n", framework=True)
script(
    "a long line of two-byte letters",
    "import os\nos.write(1, ('\\u00e9' * 150000 + '\\n').encode())\nos.write(1, b'end\\n')\n",
    framework=True,
)
script("blanks and empty lines", "import os\nos.write(1, b'\\n\\n  indented  \\n\\n')\n", framework=True)
script(
    "blocks of 4096 bytes",
    (
        "import os, time\ntext = b''.join(b'step=%d loss=0.%04d;\\n' % (n, n) for n in range(1000))\n"
        "for at in range(0, len(text), 4096):\n    os.write(1, text[at:at + 4096])\n    time.sleep(0.05)\n"
    ),
    framework=True,
)
script(
    "60,000 lines after an ImportError",
    "print('ImportError: no flash_attn')\nfor n in range(60000): print('step', n)\n",
    framework=True,
    deadline_s=40,
)
script(
    "a line before a sleep",
    (
        "import time, sys\nprint('early line')\ntime.sleep(1)\n"
        "seen = open(__import__('os').environ['HOME'] + '/stdout').read()\n"
        "print('it was there' if 'early line' in seen else 'it was not there')\n"
    ),
)
script(
    "a grandchild holds the pipe",
    "import subprocess\nsubprocess.Popen(['sleep', '8'])\nprint('done')\n",
    framework=True,
)
script("a metric line", "print(\"{'loss': 0.6931, 'epoch': 0.33}\")\n", framework=True)

# Signals. A job ends on its own after 6 s, so that one that hears nothing ends too.

SAVES = READY.replace("open(", "signal.signal(signal.{0}, lambda *_: (print('saved', flush=True), os._exit(0)))\nopen(")
SAVES += "time.sleep(6)\nprint('ran to its end')\n"
KILLED = READY + "time.sleep(6)\nprint('ran to its end')\n"
IGNORES = READY.replace("open(", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(") + "time.sleep(6)\n"
IGNORES += "open(os.environ['SM_OUTPUT_DATA_DIR'] + '/survived', 'w').close()\n"
for _place, _caged in (("", False), (" as PID 1", True)):
    script(f"SIGTERM{_place}", SAVES.format("SIGTERM"), signals=((0.3, signal.SIGTERM),), caged=_caged)
    script(f"SIGINT{_place}", SAVES.format("SIGINT"), signals=((0.3, signal.SIGINT),), caged=_caged)
    script(f"SIGTERM without a handler{_place}", KILLED, signals=((0.3, signal.SIGTERM),), caged=_caged)
    _twice = ((0.3, signal.SIGTERM), (1.3, signal.SIGTERM))
    script(f"SIGTERM twice, ignored{_place}", IGNORES, signals=_twice, caged=_caged)
script(
    "orphans as PID 1",
    "import os, subprocess, time\nsubprocess.run(['sh', '-c', 'sleep 0.2 & exit 0'])\ntime.sleep(1)\n"
    "stats = [open(f'/proc/{pid}/stat').read() for pid in os.listdir('/proc') if pid.isdigit()]\n"
    "print('zombies:', sum(stat.rsplit(')', 1)[1].split()[0] == 'Z' for stat in stats))\n",
    caged=True,
)

# Others.


@job("sagemaker_s3_output")
def s3_output(base: Base) -> None:
    prepare_job(base, sagemaker_s3_output='"file:///tmp/nowhere"')
    base.program("print('fine')\n")


IMPORTS = """
import json
from sagemaker_training import environment
env = environment.Environment()
other = environment.Environment(
    hyperparameters={"sagemaker_program": "other.py", "a": 1, "sagemaker_mpi_enabled": True},
    resource_config={"hosts": ["h2", "h1"], "current_host": "h1"}, input_data_config={"z": {}})
print("IMPORTED", json.dumps({
    "properties": {name: value for name, value in env.items() if name != "num_cpus"},
    "arguments": env.to_cmd_args(), "variables": env.to_env_vars(), "count": len(env),
    "hyperparameters": environment.read_hyperparameters(), "code": environment.code_dir,
    "given": {name: value for name, value in other.items() if name != "num_cpus"},
    "given arguments": other.to_cmd_args(),
}, sort_keys=True))
"""


@job("import sagemaker_training", imports=True, environ=ALONE)
def imports(base: Base) -> None:
    platform_keys = {
        "sagemaker_job_name": '"job-1"',
        "sagemaker_region": '"eu-central-1"',
        "sagemaker_own_key": '"kept"',
    }
    prepare_job(base, epochs="3", flag="true", none="null", mapping='{"x":1}', text="plain text", **platform_keys)
    base.inputs("train", "eval")
    base.resources(
        ["localhost"],
        current_group_name="gpus",
        network_interface_name="lo",
        instance_groups=[group("gpus", "localhost")],
    )
    base.program(IMPORTS)


RUNS = "from sagemaker_training import entry_point, environment, runner\n"
RUNS += "def main():\n    env = environment.Environment()\n"
RUNS += "    entry_point.run(env.module_dir, env.user_entry_point, env.to_cmd_args(), env.to_env_vars(), KIND)\n"
RUNS += "    print('after the script')\n"


def _runs(name: str, text: str, more: str = "capture_error=True", **flags: str) -> None:
    """Add a job whose plug-in runs the script *text* by entry_point.run."""

    @job(name, imports=True, environ={"SAGEMAKER_TRAINING_MODULE": "framework:main"})
    def prepare(base: Base) -> None:
        prepare_job(base, epochs="3", **flags)
        base.program(text)
        (base.folder / "packages/framework.py").write_text(RUNS.replace("KIND", more))


_runs("a plug-in runs its script", SEES)
_runs("a plug-in's script exits with 3", "raise SystemExit(3)\n")
_runs("a plug-in's script raises", "raise ValueError('loss is nan')\n")
_torchrun = "runner_type=runner.TorchDistributedRunnerType"
_runs("a plug-in runs torchrun", SEES, _torchrun, sagemaker_torch_distributed_enabled="true")


@job("python -m sagemaker_training.cli.train", imports=True, module=True)
def by_module(base: Base) -> None:
    prepare_job(base, epochs="3")
    base.program(SEES)


script("no boto3", "print('fine')\n")
extend("no boto3", lambda base: _without_boto3(base))


def _level_by_hyperparameter(base: Base) -> None:
    prepare_job(base, sagemaker_container_log_level='"ERROR"')
    base.program(SEES)


for _level in ("INFO", "30"):
    script(f"log level {_level}", SEES, environ={"SAGEMAKER_CONTAINER_LOG_LEVEL": _level})
job("log level ERROR by hyperparameter")(_level_by_hyperparameter)


@job("140 kB of one hyperparameter")
def too_large(base: Base) -> None:
    prepare_job(base, large=json.dumps(["x" * 200] * 700))
    base.program("print('ran')\n")


@job("60 kB of one hyperparameter")
def large(base: Base) -> None:
    prepare_job(base, large=json.dumps("x" * 60000))
    base.program(SEES)


@job("a secret")
def secret(base: Base) -> None:
    prepare_job(base, api_token='"hunter2hunter2"')
    base.program("print('ran')\n")
