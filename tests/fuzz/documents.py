"""Documents, variables and job files: whatever is in them, they are a job that can start, or an error of 75 or 78."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from tests.fuzz.places import fresh
from tests.fuzz.target import target
from toolkit import settings
from toolkit.errors import ToolkitError
from toolkit.job.file.job_file import check_job_file
from toolkit.job.file.options import Options, Origin, from_file
from toolkit.job.job import Job
from toolkit.job.machine import Machine
from toolkit.log import Log
from toolkit.train.launchers import table as launchers
from toolkit.train.platforms import table as platforms
from toolkit.train.source import classify

MACHINE = Machine(cpus=2, cpus_total=2, memory_bytes=1 << 30, interfaces=("lo", "eth0"), route_interface="eth0")
WITHIN_S = 5.0
ODD_NUMBERS = (0, -1, 1, 2, 65, 10**6, 10**19, 10**400, -(10**400), 0.1, 1e308, -0.0)
ODD_TEXTS = (
    "",
    " ",
    "true",
    "false",
    "null",
    "NaN",
    "1",
    "1" + "0" * 400,
    "[]",
    "{}",
    '"',
    "'",
    "\\",
    "$(id)",
    "`id`",
    "a b",
    "-",
    "--",
    "--log",
    "\0",
    "a\0b",
    "\ud800",
    "é",
    "日本",
    "\n",
    "\r\n",
    "../x",
    "/etc/passwd",
    ".",
    "..",
    "~",
    "%s",
    "train.py",
    "pkg.mod",
    "run.sh",
    "algo-1",
    "algo-2",
    "s3://b/k",
    "file:///x",
    "1e400",
    "=",
    "a=b",
    "x" * 300,
)
texts = st.sampled_from(ODD_TEXTS) | st.text(st.characters(), max_size=8)
numbers = st.sampled_from(ODD_NUMBERS) | st.integers(-5, 70) | st.floats()
leaves = st.none() | st.booleans() | numbers | texts
values: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
ENCODED = values.map(json.dumps)

HYPERPARAMETERS = (
    "sagemaker_program",
    "sagemaker_submit_directory",
    "sagemaker_container_log_level",
    "sagemaker_job_name",
    "sagemaker_mpi_enabled",
    "sagemaker_mpi_num_of_processes_per_host",
    "sagemaker_mpi_custom_mpi_options",
    "sagemaker_mpi_num_processes",
    "sagemaker_torch_distributed_enabled",
    "sagemaker_pytorch_ddp_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_parameter_server_enabled",
    "sagemaker_multi_worker_mirrored_strategy_enabled",
    "sagemaker_distribution_instance_groups",
    "sagemaker_region",
    "sagemaker_s3_output",
    "lr",
    "b",
    "a b",
    "mp_parameters",
)
RESOURCES = (
    "hosts",
    "current_host",
    "current_instance_type",
    "current_group_name",
    "instance_groups",
    "network_interface_name",
    "topology",
    "job_name",
)
VARIABLES = (
    *(f"TOOLKIT_{field.name.upper()}" for field in msgspec.structs.fields(settings.Settings)),
    "TOOLKIT_PROGRAM",
    "TOOLKIT_HOSTS",
    "TOOLKIT_HOST",
    "TOOLKIT_PLATFORM",
    "TOOLKIT_GRACE",
    "SAGEMAKER_PROGRAM",
    "SAGEMAKER_SUBMIT_DIRECTORY",
    "TRAINING_JOB_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "NNODES",
    "SAGEMAKER_TRAINING_MODULE",
    "CA_REPOSITORY_ARN",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_JOB_NODELIST",
    "CLUSTER_SPEC",
    "AZUREML_RUN_ID",
    "KUBERNETES_SERVICE_HOST",
    "PET_NNODES",
    "PET_NODE_RANK",
    "WORLD_SIZE",
)


def _with(good: dict[str, Any], names: tuple[str, ...], changed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A good document with some keys changed or added; now and then no object at all."""
    changes = st.dictionaries(st.sampled_from(names) | texts, changed, max_size=3)
    changed_good = changes.map(lambda change: {**good, **change})
    return st.one_of(*[st.just(good)] * 3, *[changed_good] * 3, values)


def _bytes(document: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """A document as it is written; now and then cut, or with bytes that are none of JSON's."""
    encoded = document.map(lambda content: json.dumps(content).encode())
    cut = st.tuples(encoded, st.integers(0, 200)).map(lambda pair: pair[0][: pair[1]])
    return st.one_of(*[encoded] * 8, cut, st.binary(max_size=20))


FLAGS = [name for name in HYPERPARAMETERS if name.endswith("_enabled")]
distributed = st.tuples(
    st.sampled_from(FLAGS).map(lambda flag: {flag: "true"}) | st.just({}),
    st.sampled_from(("1", "2", "8", "1" + "0" * 400)).map(
        lambda count: {"sagemaker_mpi_num_of_processes_per_host": count}
    ),
    st.sampled_from(('"train.py"', '"run.sh"', '"pkg.mod"')).map(lambda program: {"sagemaker_program": program}),
).map(lambda parts: parts[0] | parts[1] | parts[2])
hyperparameters = _bytes(
    st.one_of(distributed, _with({"sagemaker_program": '"train.py"', "lr": "0.1"}, HYPERPARAMETERS, ENCODED | values))
)
resources = _bytes(_with({"hosts": ["algo-1", "algo-2"], "current_host": "algo-1"}, RESOURCES, values))
inputs = _bytes(_with({"train": {"TrainingInputMode": "File"}}, ("train", "code", "TrainingInputMode"), values))
definitions = _bytes(_with({"loss": "loss=([0-9.]+)"}, ("loss", "Name", "Regex"), values))
environments = st.dictionaries(
    st.sampled_from(VARIABLES), texts.filter(lambda text: "\0" not in text and text.isprintable()), max_size=3
)


@target(hyperparameters, resources, inputs, definitions, environments)
def documents_are_a_job_or_a_clear_error(
    hyperparameters: bytes, resources: bytes, inputs: bytes, definitions: bytes, variables: dict[str, str]
) -> None:
    base = fresh("documents")
    for folder in ("input/config", "code"):
        (base / folder).mkdir(parents=True)
    for name, content in (
        ("hyperparameters.json", hyperparameters),
        ("resourceconfig.json", resources),
        ("inputdataconfig.json", inputs),
        ("metric-definition-regex.json", definitions),
    ):
        (base / "input/config" / name).write_bytes(content)
    _write_code(base / "code")

    _takes({"PATH": "/usr/bin:/bin", "SAGEMAKER_BASE_DIR": str(base), **variables}, base)


def _write_code(folder: Path) -> None:
    (folder / "pkg").mkdir()
    for name in ("train.py", "run.sh", "pkg/__init__.py", "pkg/mod.py"):
        (folder / name).write_text("#!/bin/sh\n" if name == "run.sh" else "")


def _takes(environ: dict[str, str], base: Path) -> None:
    """Check that *environ* is a job that can be started, or an error that says what is wrong."""
    lines: list[bytes] = []
    log = Log()
    log.say_through(lines.append)
    began_s = time.monotonic()
    try:
        platform = platforms.detect(environ)
        folders = platform.folders(environ)
        job = platform.read(environ, settings.read(environ), MACHINE, log, interpreter=sys.executable)
        script = classify.classify(folders.code, job.spec.entry, job.spec.plugin, job.argument_style)
        _can_be_started(msgspec.structs.replace(job, script=script), base)
    except ToolkitError as error:
        assert error.exit_code in (75, 78), error
        assert str(error).strip(), "an error without a word"
        log.error(str(error))
    assert time.monotonic() - began_s < WITHIN_S
    assert sum(map(len, lines)) < 1 << 20


def _can_be_started(job: Job, base: Path) -> None:
    for phase in launchers.plan(job, base / "scratch").phases:
        for process in (phase.main, *phase.services):
            for text in (*process.argv, *process.environ, *process.environ.values()):
                assert b"\0" not in os.fsencode(text)


JOB = {"script": "train.py", "hosts": 1}
WORDS = tuple(field.encode_name for field in msgspec.structs.fields(Options))


@target(_bytes(_with(JOB, WORDS, values)), st.sampled_from((".json", ".yaml", ".toml")))
def job_files_are_a_job_or_a_clear_error(content: bytes, suffix: str) -> None:
    base = fresh("jobfiles")
    (base / "train.py").write_text("")
    file = base / f"job{suffix}"
    text = content.decode("utf-8", "replace")
    try:
        check_job_file(from_file(text, file), Origin(where=str(file)), folder=base, stamp="now")
    except ToolkitError as error:
        assert error.exit_code == 78, error
