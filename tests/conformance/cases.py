"""The cases of the comparison: one thing to look at in one job each, by the points of docs/contract.md."""

import json
import os
import re
from collections.abc import Callable
from typing import Any

from tests.conformance.jobs import JOBS, VALUES
from tests.conformance.running import ROOT, Seen
from tests.conformance.table import Case

__all__ = ["CASES", "JOBS", "RECORDED"]
RECORDED = ROOT / "tests/data/conformance.json"
CASES: list[Case] = []
See = Callable[[Seen], Any]


def case(
    point: int, title: str, job: str, see: See, right: Any = None, row: int | None = None, later: bool = False
) -> None:
    """Add a case; *right* may be the right value itself, or what tells it."""
    tells = right if right is None or callable(right) else (lambda actual, value=right: actual == value)
    CASES.append(Case(point, title, job, see, tells, row, later))


def status(result: Seen) -> int:
    return result.status


def see_end(result: Seen) -> list[Any]:
    return [result.status, result.success]


def says(*texts: str) -> See:
    return lambda result: all(text in result.log for text in texts)


def blames(*texts: str) -> See:
    """Tell whether the first 1,024 characters of the failure file have these texts."""
    return lambda result: all(text in result.failure[:1024] for text in texts)


def variable(name: str) -> See:
    return lambda result: result.environ.get(name)


def argument(name: str) -> See:
    return lambda result: dict(zip(result.argv[::2], result.argv[1::2], strict=False)).get(name)


def failed(result: Seen) -> bool:
    return result.status not in (0, 999)


def fails_by(text: str) -> See:
    return lambda result: failed(result) and text in result.failure


def see_file(path: str) -> See:
    return lambda result: path in result.files


def of_training_env(key: str) -> See:
    return lambda result: json.loads(result.environ["SM_TRAINING_ENV"])[key]


def launched(result: Seen) -> list[str]:
    return list(result.launched.get("argv", []))


def given_to_launcher(name: str) -> See:
    return lambda result: result.launched.get("environ", {}).get(name)


def rank_line(result: Seen) -> str:
    """Return the line that rank 0 printed, as the log has it."""
    return next((line for line in result.log.splitlines() if line.endswith("hello from rank 0")), "")


def has_words(*words: str) -> See:
    """Tell whether a launcher's arguments have these words one after the other."""
    return lambda result: f" {' '.join(words)} " in f" {' '.join(launched(result))} "


def imported(*path: str) -> See:
    """A value that the script printed of what it imported."""

    def see(result: Seen) -> Any:
        match = re.search(r"^IMPORTED (.*)$", result.log, re.M)
        value = json.loads(match[1]) if match else {}
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    return see


# Of Environment(); the number of CPUs is the machine's.
PROPERTIES = (
    "additional_framework_parameters",
    "channel_input_dirs",
    "current_host",
    "current_instance_group",
    "current_instance_group_hosts",
    "current_instance_type",
    "distribution_hosts",
    "distribution_instance_groups",
    "framework_module",
    "hosts",
    "hyperparameters",
    "input_config_dir",
    "input_data_config",
    "input_dir",
    "instance_groups",
    "instance_groups_dict",
    "is_hetero",
    "is_master",
    "is_modelparallel_enabled",
    "is_smddpmprun_installed",
    "is_smddprun_installed",
    "job_name",
    "log_level",
    "master_hostname",
    "model_dir",
    "module_dir",
    "module_name",
    "network_interface_name",
    "num_gpus",
    "num_neurons",
    "output_data_dir",
    "output_dir",
    "output_intermediate_dir",
    "resource_config",
    "topology",
    "user_entry_point",
)

# Process and folders
case(1, "`train` as a child of bash, success", "as a child of bash", see_end, [0, True])
case(1, "`train` as a child of bash, failure", "fails as a child of bash", status, 5)
case(1, "`train` as PID 1", "as PID 1", see_end, [0, True])
case(1, "`train` with arguments that mean nothing", "with words", see_end, [0, True])
for name in ("SM_MODEL_DIR", "SM_INPUT_DIR", "SM_INPUT_CONFIG_DIR", "SM_OUTPUT_DIR"):
    case(2, f"{name} is below SAGEMAKER_BASE_DIR", "values", variable(name))
case(3, "no folder and no documents: status", "no folder at all", failed, True)
case(
    3,
    "no folder and no documents: the failure says how to name a script",
    "no folder at all",
    says("TOOLKIT_PROGRAM"),
    True,
)
for folder in ("code", "model", "output", "output/data"):
    case(4, f"{folder} is made", "bare folders", see_file(folder), True)
for name in ("hyperparameters", "inputdataconfig", "resourceconfig"):
    case(
        5,
        f"no {name}.json: failure and file are named",
        f"no {name}",
        fails_by(f"{name}.json"),
        True,
    )
    case(
        5,
        f"broken {name}.json: file and position are named in 1,024 characters",
        f"broken {name}",
        blames(f"{name}.json", "line 3 column 1"),
        True,
    )
case(5, "no current_host: the key is named", "no current_host", blames("current_host"), True)
case(6, "hosts and current_host only, an unknown key", "hosts and current_host only, unknown keys", see_end, [0, True])
case(6, "Local Mode's resourceconfig.json", "Local Mode", see_end, [0, True])
case(7, "success: 0, empty output/success", "success", see_end, [0, True])
case(7, "success: the log's line", "success", says("Reporting training SUCCESS"), True)
case(8, "failure: the log's line", "raises", says("Reporting training FAILURE"), True)
case(8, "failure: no success file", "raises", lambda result: result.success, False)
for name in (
    "output is a file",
    "output is gone",
    "plug-in: OSError without errno",
    "plug-in: SystemExit",
    "plug-in: KeyboardInterrupt",
):
    case(8, f"never 0: {name}", name, failed, True)
case(
    8,
    "a failure file that the script wrote is kept",
    "writes its own failure and fails",
    lambda result: result.failure,
    "my own words",
)
for name, code in (("exit 3", 3), ("exit 255", 255), ("SIGKILL", 137), ("SIGSEGV", 139), ("raises", 1)):
    case(9, f"exit code: {name}", name, status, code)
case(10, "cause in 1,024 characters: captured", "raises, captured", blames("RuntimeError: no such shard"), True)
case(10, "cause in 1,024 characters: plain image", "raises", blames("RuntimeError: no such shard"), True)
case(
    10,
    "cause in 1,024 characters: after an early warning and 300 lines",
    "an early warning, then an error",
    blames("ValueError: loss is nan"),
    True,
)
case(10, "exit code in 1,024 characters", "exit 3", blames("ExitCode 3"), True)
case(10, "what a shell script wrote last", "shell script that fails", blames("no data"), True)
for text in ('ExecuteUserScriptError:\nExitCode 1\nErrorMessage "', '\nCommand "'):
    case(
        11,
        f"failure file has `{text.split(chr(10))[0] or text.strip()}`, in its place",
        "raises, captured",
        blames(text),
        True,
    )
case(
    12,
    "InstallRequirementsError",
    "requirements fail",
    lambda result: result.failure.startswith("InstallRequirementsError"),
    True,
)
case(12, "InstallModuleError", "package fails", lambda result: result.failure.startswith("InstallModuleError"), True)
case(12, "Framework Error", "plug-in: ValueError", lambda result: result.failure.startswith("Framework Error"), True)
case(12, "a plug-in's errno is the exit code", "plug-in: errno 2", status, 2)
case(12, "a plug-in's own error: status", "plug-in: ValueError", status, 1)
# Hyperparameters
for name in ("whole", "small", "padded", "zeros", "big", "nan"):
    case(13, f"hyperparameter `{VALUES[name]}`", "values", argument(f"--{name}"))
case(13, "a value that is no string: 5", "values", argument("--number"))
case(13, "letters beyond ASCII", "values", argument("--unicode"))
case(13, 'JSON is decoded once: `"\\"true\\""`', "values", argument("--quoted-true"))
for name in ("sagemaker_region", "sagemaker_own_key", "_tuning_objective_metric"):
    case(14, f"{name} is no argument", "values", argument(f"--{name}"))
    case(14, f"{name} is no SM_HP_*", "values", variable(f"SM_HP_{name.upper()}"))
case(14, "SM_FRAMEWORK_PARAMS holds the rest", "values", variable("SM_FRAMEWORK_PARAMS"))
case(15, "order and form of all arguments", "values", lambda result: result.argv[::2])
case(15, "`-k` for a name of one letter", "values", argument("-k"))
for name in ("on", "off", "none", "several", "mapping", "empty", "plain", "lines", "dash", "list", "quoted"):
    case(
        16,
        f"`{json.dumps(VALUES[name])[1:-1] if name == 'lines' else VALUES[name]}` as an argument",
        "values",
        argument(f"--{name}"),
    )
case(17, "no shell reads a value", "values", argument("--shell"))
case(
    17,
    "no shell reads a value of a shell script",
    "shell script",
    lambda result: [result.status, "output/data/words" in result.files],
)
case(
    18, "SM_USER_ARGS is argv", "values", lambda result: json.loads(result.environ["SM_USER_ARGS"]) == result.argv, True
)
case(18, "SM_HPS", "values", variable("SM_HPS"))
case(19, "SM_HP_LEARNING-RATE", "values", variable("SM_HP_LEARNING-RATE"))
case(19, "SM_HP_LEARNING_RATE, which a shell can read", "values", variable("SM_HP_LEARNING_RATE"), "0.1")
case(19, "SM_HP_WITH.DOT", "values", variable("SM_HP_WITH.DOT"))
case(20, "mp_parameters as an argument", "values", argument("--mp_parameters"))
case(20, "SM_HP_MP_PARAMETERS", "values", variable("SM_HP_MP_PARAMETERS"))
# Environment
for name in [
    "SM_HOSTS",
    "SM_CURRENT_HOST",
    "SM_CURRENT_INSTANCE_TYPE",
    "SM_CURRENT_INSTANCE_GROUP",
    "SM_CURRENT_INSTANCE_GROUP_HOSTS",
    "SM_INSTANCE_GROUPS",
    "SM_INSTANCE_GROUPS_DICT",
    "SM_DISTRIBUTION_INSTANCE_GROUPS",
    "SM_IS_HETERO",
    "SM_NETWORK_INTERFACE_NAME",
    "SM_LOG_LEVEL",
    "SM_USER_ENTRY_POINT",
    "SM_MODULE_NAME",
    "SM_MODULE_DIR",
    "SM_FRAMEWORK_MODULE",
    "SM_RESOURCE_CONFIG",
    "SM_INPUT_DATA_CONFIG",
    "SM_OUTPUT_DATA_DIR",
    "SM_OUTPUT_INTERMEDIATE_DIR",
]:
    case(21, name, "values", variable(name))
case(21, "SM_TRAINING_ENV: its keys", "values", lambda result: sorted(json.loads(result.environ["SM_TRAINING_ENV"])))
case(
    21,
    "SM_TRAINING_ENV: its values",
    "values",
    lambda result: {**json.loads(result.environ["SM_TRAINING_ENV"]), "num_cpus": "this machine's"},
)
case(22, "SM_CHANNELS is sorted", "values", variable("SM_CHANNELS"))
for name in ("TRAIN", "EVAL", "A-B"):
    case(22, f"SM_CHANNEL_{name}", "values", variable(f"SM_CHANNEL_{name}"))
case(22, "SM_CHANNEL_TRAIN of a Pipe channel", "Pipe channel", variable("SM_CHANNEL_TRAIN"))
for name in ("SM_NUM_GPUS", "SM_NUM_NEURONS"):
    for name_of_job in ("GPUs", "Neuron cores"):
        case(23, f"{name} of a host with {name_of_job}", name_of_job, variable(name))
case(
    23,
    "SM_NUM_CPUS is this machine's",
    "values",
    lambda result: result.environ["SM_NUM_CPUS"] == str(os.cpu_count()),
    True,
)
case(23, "SM_NUM_NEURONS of ml.trn2.48xlarge", "trn2.48xlarge", variable("SM_NUM_NEURONS"))
case(24, "SM_TOPOLOGY", "topology", variable("SM_TOPOLOGY"))
case(24, "no SM_TOPOLOGY without one", "values", variable("SM_TOPOLOGY"))
for name in ("CURRENT_HOST", "SAGEMAKER_REGION", "SAGEMAKER_JOB_NAME"):
    case(25, name, "values", variable(name))
case(
    25,
    "the code is on PYTHONPATH",
    "values",
    lambda result: "BASE/code" in result.environ["PYTHONPATH"].split(":"),
    True,
)
case(26, "SAGEMAKER_PROGRAM wins", "program by variable", variable("SM_USER_ENTRY_POINT"), "train.py")
case(27, "a variable of the user's", "framework, user's own variables", variable("MY_OWN"), "1")
for name, value in (("NCCL_DEBUG", "INFO"), ("NCCL_IB_DISABLE", "0"), ("MASTER_PORT", "1234")):
    case(27, f"the user's {name} stays", "framework, user's own variables", variable(name), value)
case(28, "MASTER_PORT", "framework", variable("MASTER_PORT"), "7777")
case(28, "MASTER_ADDR on one host", "framework", variable("MASTER_ADDR"), "127.0.0.1", row=28)
# Code
for name in ("source: a folder", "source: tar.gz", "source: one file"):
    case(29, name, name, see_end, [0, True])
case(
    29,
    "source: the submitted one wins over what is there",
    "source: there is code already",
    says("the submitted code"),
    True,
)
case(
    29,
    "source: missing, named",
    "source: missing",
    fails_by("missing.tar.gz"),
    True,
)
case(29, "source: s3:// that cannot be reached: fails", "source: s3://, unreachable", failed, True)
case(
    30,
    "archive: no member lands outside",
    "archive: reaches outside",
    see_file("escaped.txt"),
    False,
)
for name, kind, text in (
    ("reaches outside", "a member outside", "escaped.txt"),
    ("a device", "a device", "null"),
    ("a link outside", "a link outside", "passwd"),
):
    case(
        30,
        f"archive: {kind} is refused, by name (there: left out or moved inside)",
        f"archive: {name}",
        fails_by(text),
        True,
        row=30,
    )
case(30, "archive: no setuid", "archive: setuid", lambda result: "0o4000" in result.stdout, False)
for name in ("../train.py", "a b.py", "-x.py", "$(id).py", "absent.py"):
    case(31, f"entry point `{name}` is refused", f"entry point {name}", failed, True)
case(31, "an absent entry point is named in the failure", "entry point absent.py", blames("absent.py"), True)
case(31, "entry point in a folder", "entry point in a folder", see_end, [0, True])
case(32, "shell script: run in the code folder, executable", "shell script", says("BASE/code", "executable"), True)
case(32, "command without its executable bit", "command", says("command -n 1"), True)
case(32, "cwd is the code folder", "values", lambda result: result.script["cwd"], "BASE/code")
case(32, "the interpreter is train's", "values", lambda result: result.script["executable"], "PYTHON")
case(
    33,
    "requirements.txt is installed",
    "requirements",
    lambda result: [result.status, "pip" in result.files],
    [0, True],
)
case(
    33,
    "requirements.txt of a shell script",
    "requirements of a shell script",
    lambda result: "pip" in result.files,
    True,
)
case(
    33,
    "pip's own reason is in the failure",
    "requirements fail",
    blames("No matching distribution found for nosuch"),
    True,
)
case(34, "CodeArtifact, nothing to install: goes on", "CodeArtifact, nothing to install", see_end, [0, True])
case(34, "CodeArtifact cannot be asked: fails", "CodeArtifact, requirements", failed, True)
case(
    35, "package: installed, started with -m", "package", lambda result: [result.status, result.argv], [0, ["-n", "1"]]
)
case(35, "package, entry point in a folder", "package, entry point in a folder", status, 0)
case(36, "the code channel's sourcedir.tar.gz", "source: the code channel", see_end, [0, True])
# Which launcher
case(
    37,
    "torchrun goes before smddp and XLA",
    "torchrun before smddp and XLA",
    lambda result: bool(launched(result)),
    True,
)
case(
    37,
    "a host outside the distribution's groups runs alone",
    "a host outside the distribution's groups",
    lambda result: [result.status, result.argv],
    [0, ["-n", "1"]],
)
case(37, "flags that are off", "flags that are off", lambda result: [result.status, result.argv], [0, ["-n", "1"]])
case(
    38, "a plug-in runs", "plug-in", lambda result: [*see_end(result), "the plug-in ran" in result.log], [0, True, True]
)
case(38, "MPI in a plain image", "mpi in a plain image", lambda result: bool(launched(result)), True)
case(
    39, "ranks a host: GPUs", "torchrun, one host", lambda result: launched(result)[1:4], ["1", "--nproc_per_node", "2"]
)
case(39, "ranks a host: Neuron cores", "torchrun, Neuron", has_words("--nproc_per_node", "4"), True)
case(39, "ranks a host: the hyperparameter", "mpi", has_words("-np", "3"), True)
for key in (
    "master_hostname",
    "distribution_hosts",
    "is_master",
    "distribution_instance_groups",
    "current_instance_group_hosts",
    "is_hetero",
):
    case(40, f"groups: {key}", "groups", of_training_env(key))
case(
    41, "node rank is the place in the documents' order", "torchrun, three leaders", has_words("--node_rank", "0"), True
)
case(
    42,
    "torchrun's arguments, one host",
    "torchrun, one host",
    lambda result: [word for word in launched(result) if word != "--"],
)
case(
    42,
    "torchrun's arguments, second of two hosts",
    "torchrun, two hosts",
    lambda result: [word for word in launched(result.hosts[1]) if word != "--"],
)
case(42, "what Neuron jobs have in front", "torchrun, Neuron", says("in front"), True)
case(43, "torchrun with a shell script", "torchrun, shell script", lambda result: bool(launched(result)), True)
for words in ("--allow-run-as-root", "-x OWN=1", "--NCCL_DEBUG"):
    case(44, f"mpirun has `{words}`", "mpi", has_words(words))
case(44, "`--NCCL_DEBUG WARN` of the custom options reaches the ranks", "mpi", variable("NCCL_DEBUG"), "WARN")
case(
    44,
    "mpirun has `-mca btl_tcp_if_include lo` on one host",
    "mpi",
    has_words("-mca", "btl_tcp_if_include", "lo"),
    row=44,
)
case(44, "mpirun's job does not wait 30 s after its end", "mpi", lambda result: result.wall_s < 15, True)
case(45, "smddp: mpirun starts smddprun", "smddp", has_words("smddprun"), True)
case(45, "smddp: SMDATAPARALLEL_USE_SINGLENODE of the ranks", "smddp", variable("SMDATAPARALLEL_USE_SINGLENODE"), "1")
case(
    46,
    "pytorchddp: who starts the ranks",
    "pytorchddp",
    lambda result: "mpirun" if "-np" in launched(result) else "torchrun" if launched(result) else "nobody",
    "torchrun",
    row=46,
)
case(47, "XLA without torch_xla is refused", "XLA without torch_xla", failed, True)
case(
    48,
    "FI_PROVIDER=efa without a device, on an instance type that should have one",
    "torchrun, EFA instance",
    given_to_launcher("FI_PROVIDER"),
    lambda actual: actual is None,
)
case(48, "the user's NCCL_PROTO stays", "torchrun, user's NCCL_PROTO", given_to_launcher("NCCL_PROTO"), "LL")
case(
    49,
    "TF_CONFIG for MultiWorkerMirrored, without AWS's plug-in",
    "MultiWorkerMirrored in a plain image",
    lambda result: sorted(json.loads(result.environ.get("TF_CONFIG", "{}"))),
    lambda actual: {"cluster", "task"} <= set(actual),
)
case(
    50,
    "no AWS credential in mpirun's arguments",
    "mpi",
    lambda result: [bool(launched(result)), any("AKIA" in word for word in launched(result))],
    [True, False],
)
case(
    51,
    "a host that does not resolve: failed by it within 8 s (TOOLKIT_JOIN_S=2; there: 15 minutes a host)",
    "a host that does not resolve",
    fails_by("nowhere.invalid"),
    True,
)
case(51, "SM_STUDIO_LOCAL_MODE=true: no wait", "Local Mode", status, 0)
case(
    52,
    "the leader fails: the follower fails too",
    "two hosts, the leader fails",
    lambda result: failed(result.hosts[1]),
    True,
)
case(
    52,
    "the leader fails: the follower names the cause",
    "two hosts, the leader fails",
    lambda result: blames("the leader failed")(result.hosts[1]),
    True,
)
case(
    52,
    "two hosts: both succeed",
    "two hosts, each told who it is",
    lambda result: [see_end(host) for host in result.hosts],
    [[0, True], [0, True]],
)
case(53, "mpi on one host, as PID 1", "mpi", see_end, [0, True])
case(54, "hosts of any name", "names of every kind", lambda result: [result.status, result.environ.get("SM_HOSTS")])
# Output
case(55, "stdout and stderr reach the log", "both streams", says("to stdout\n", "to stderr\n"), True)
case(55, "stderr stays stderr", "both streams", lambda result: "to stderr" in result.stdout, False)
case(
    55,
    "blanks and empty lines",
    "blanks and empty lines",
    lambda result: "\n\n  indented  \n\n" in "\n" + result.stdout,
    True,
)
case(56, "mpirun's tag has its form", "mpi", lambda result: re.sub(r",[^,]*\]", ",HOST]", rank_line(result)))
case(
    56,
    "mpirun's tag names the host that the job has",
    "mpi",
    rank_line,
    "[1,mpirank:0,localhost]<stdout>:hello from rank 0",
)
case(57, "a line written in two pieces", "lines in pieces", says("loss=0.5\n"), True)
case(57, "a partial last line", "a partial last line", says("first\nlast"), True)
case(
    57,
    "bytes that are not UTF-8 arrive unaltered",
    "bytes that are not UTF-8",
    lambda result: "a\udcff\udcfeb\n" in result.stdout,
    True,
)
case(
    57,
    "a line of 300 kB",
    "a long line of two-byte letters",
    lambda result: "\u00e9" * 150000 + "\nend\n" in result.stdout,
    True,
)
case(
    57,
    "1,000 lines in blocks of 4,096 bytes",
    "blocks of 4096 bytes",
    lambda result: sum(f"step={n} loss=0.{n:04d};" in result.stdout.splitlines() for n in range(1000)),
    1000,
)
case(58, "a line is there before the script sleeps", "a line before a sleep", says("it was there"), True)
case(
    59,
    "60,000 lines after an ImportError are relayed within 8 s",
    "60,000 lines after an ImportError",
    lambda result: result.status == 0 and result.wall_s < 8,
    True,
)
case(
    60,
    "a metric's line has nothing in front",
    "a metric line",
    lambda result: "{'loss': 0.6931, 'epoch': 0.33}" in result.stdout.splitlines(),
    True,
)
# Signals
for place in ("", " as PID 1"):
    case(
        61,
        f"SIGTERM{place}: the script saves, the end is a success",
        f"SIGTERM{place}",
        lambda result: [*see_end(result), "saved" in result.log],
        [0, True, True],
    )
    case(
        61,
        f"SIGTERM{place}, without a handler: 143",
        f"SIGTERM without a handler{place}",
        lambda result: [*see_end(result), "ran to its end" in result.log],
        [143, False, False],
    )
    case(
        62,
        f"SIGINT{place} to `train` alone: the script saves",
        f"SIGINT{place}",
        lambda result: "saved" in result.log,
        True,
    )
    case(
        63,
        f"a second SIGTERM{place} ends a script that ignores it",
        f"SIGTERM twice, ignored{place}",
        lambda result: [failed(result), result.wall_s < 5],
        [True, True],
    )
case(64, "PID 1 reaps orphans", "orphans as PID 1", says("zombies: 0"), True)
# Other
case(
    65,
    "sagemaker_s3_output=file://, where nothing can be uploaded: ends well",
    "sagemaker_s3_output",
    see_end,
    [0, True],
)
case(66, "a Pipe channel's FIFO is not opened", "Pipe channel", see_end, [0, True])
IMPORTED = "import sagemaker_training"
case(67, "`import sagemaker_training` in a script", IMPORTED, status, 0)
for _property in PROPERTIES:
    case(67, f"Environment().{_property}", IMPORTED, imported("properties", _property))
case(67, "Environment(): how many properties", IMPORTED, imported("count"))
case(67, "Environment().to_cmd_args()", IMPORTED, imported("arguments"))
for _name in (
    "SM_HPS",
    "SM_HP_MAPPING",
    "SM_CHANNEL_TRAIN",
    "SM_USER_ARGS",
    "SM_FRAMEWORK_PARAMS",
    "SM_RESOURCE_CONFIG",
):
    case(67, f"Environment().to_env_vars()['{_name}']", IMPORTED, imported("variables", _name))
case(67, "Environment() of given documents", IMPORTED, imported("given"))
case(67, "Environment() of given documents: to_cmd_args()", IMPORTED, imported("given arguments"))
case(67, "environment.read_hyperparameters()", IMPORTED, imported("hyperparameters"))
case(67, "environment.code_dir", IMPORTED, imported("code"))
case(67, "entry_point.run: the script's arguments", "a plug-in runs its script", lambda result: result.argv)
case(67, "entry_point.run: SM_HPS of the script", "a plug-in runs its script", variable("SM_HPS"))
case(67, "entry_point.run: the plug-in goes on", "a plug-in runs its script", says("after the script"), True)
case(67, "entry_point.run: success", "a plug-in runs its script", see_end, [0, True])
case(67, "entry_point.run: the script's exit code", "a plug-in's script exits with 3", status, 3)
case(
    67, "entry_point.run: the cause", "a plug-in's script raises", blames('ErrorMessage "ValueError: loss is nan'), True
)
case(
    67,
    "entry_point.run, TorchDistributed: torchrun's arguments",
    "a plug-in runs torchrun",
    has_words("--nnodes", "1", "--nproc_per_node", "1"),
    True,
)
case(67, "`python -m sagemaker_training.cli.train`", "python -m sagemaker_training.cli.train", see_end, [0, True])
case(68, "Local Mode: SM_HOSTS", "Local Mode", variable("SM_HOSTS"))
case(68, "Local Mode: SM_CURRENT_INSTANCE_TYPE", "Local Mode", variable("SM_CURRENT_INSTANCE_TYPE"))
case(68, "Local Mode: SM_INSTANCE_GROUPS", "Local Mode", variable("SM_INSTANCE_GROUPS"))
case(69, "`bash` starts `train`, as ModelTrainer's script does", "as a child of bash", says("fine"), True)
case(
    70,
    "a secret is not in the log",
    "a secret",
    lambda result: [result.status, "hunter2hunter2" in result.log],
    [0, False],
)
case(70, "the log introduces the command", "values", says("Invoking script with the following command:"), True)
case(
    71,
    "needs no C extension (gethostname) in MPI's ranks",
    "mpi",
    lambda result: "GETHOSTNAME" in " ".join(launched(result)),
    False,
)
case(72, "an image without boto3", "no boto3", see_end, [0, True])
case(
    73,
    "after a failure, the next job in the container",
    "again after a failure",
    lambda result: [*see_end(result), "output/failure" in result.files],
    [0, True, False],
)
case(
    74,
    "own failure file and 0",
    "writes its own failure and ends with 0",
    lambda result: [*see_end(result), result.failure],
    [0, True, "my own words"],
)
case(75, "SAGEMAKER_CONTAINER_LOG_LEVEL=INFO", "log level INFO", see_end, [0, True])
case(75, "SAGEMAKER_CONTAINER_LOG_LEVEL=30", "log level 30", see_end, [0, True])
case(75, 'sagemaker_container_log_level="ERROR"', "log level ERROR by hyperparameter", see_end, [0, True])
case(
    76,
    "NCCL tells hosts apart: NCCL_HOSTID",
    "two hosts, each told who it is",
    lambda result: len({host.environ.get("NCCL_HOSTID") for host in result.hosts}) == 2,
    True,
)
case(
    77,
    "an interface that is not there is not handed to NCCL",
    "an interface that is not there",
    lambda result: [result.status, result.environ.get("NCCL_SOCKET_IFNAME") == "ethwe"],
    [0, False],
)
case(
    78,
    "a tuning job's model_dir is rewritten, without AWS's plug-in",
    "tuning job with a model_dir",
    argument("--model_dir"),
    "s3://bucket/models/job-1/model",
)
case(
    79,
    "an argument too large for the kernel: fails and names it",
    "140 kB of one hyperparameter",
    blames("large"),
    True,
)
case(79, "60 kB of one hyperparameter", "60 kB of one hyperparameter", see_end, [0, True])
case(
    80,
    "a grandchild holds the pipe: `train` ends",
    "a grandchild holds the pipe",
    lambda result: result.status == 0 and result.wall_s < 5,
    True,
)
