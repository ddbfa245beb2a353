"""Documents and variables to a Job: every format seen in real jobs, and the errors for wrong ones."""

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.folders import unlookable
from toolkit import files
from toolkit.errors import ContractError, PlatformError, ToolkitError
from toolkit.job.documents import input_config
from toolkit.job.documents.parameters import decode_values
from toolkit.job.job import Job
from toolkit.job.machine import Machine
from toolkit.job.variables import variables
from toolkit.log import Log
from toolkit.settings import Settings
from toolkit.train.platforms.sagemaker.read_job import folders, read

ONE_HOST = {"current_host": "algo-1", "hosts": ["algo-1"]}
GROUPS = [
    {"instance_group_name": "feeders", "instance_type": "ml.c5.xlarge", "hosts": ["algo-2"]},
    {"instance_group_name": "gpus", "instance_type": "ml.g5.48xlarge", "hosts": ["algo-3", "algo-1"]},
]
HETERO = {
    "current_host": "algo-1",
    "current_group_name": "gpus",
    "hosts": ["algo-1", "algo-2", "algo-3"],
    "instance_groups": GROUPS,
}
MACHINE = Machine(cpus=1, cpus_total=1, memory_bytes=1)
TORCH = {"sagemaker_torch_distributed_enabled": "true"}


class Base:
    """A base folder with documents that a test can change, and the job that is read from it."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capture = capture
        self.config = folder / "input/config"
        self.config.mkdir(parents=True)
        self.log = Log()
        self.write(hyperparameters={}, inputdataconfig={}, resourceconfig=ONE_HOST)

    def write(self, **contents: Any) -> "Base":
        for name, content in contents.items():
            self.file(name).write_text(json.dumps(content))
        return self

    def file(self, name: str) -> Path:
        return self.config / f"{name.replace('_', '-')}.json"

    def read(
        self, environ: dict[str, str] | None = None, settings: Settings | None = None, machine: Machine = MACHINE
    ) -> Job:
        return read(
            {"SAGEMAKER_BASE_DIR": str(self.folder), **(environ or {})}, settings or Settings(), machine, self.log
        )

    def heard(self) -> str:
        """Return the log's text since the last call."""
        return self.capture.readouterr().err

    def error(self) -> str:
        with pytest.raises(ContractError) as caught:
            self.read()
        assert caught.value.exit_code == 78
        return str(caught.value)


@pytest.fixture
def base(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Base:
    return Base(tmp_path / "ml", capfd)


# Folders


def test_the_base_is_opt_ml_unless_said_otherwise() -> None:
    places = folders({"SAGEMAKER_BASE_DIR": ""})

    assert places.base == Path("/opt/ml")
    assert places.failure == Path("/opt/ml/output/failure")
    assert places.config == Path("/opt/ml/input/config")


def test_a_relative_base_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert folders({"SAGEMAKER_BASE_DIR": "here"}).code == tmp_path / "here/code"


def test_two_bases_on_one_machine_have_scratch_folders_of_their_own() -> None:
    first, two = (folders({"SAGEMAKER_BASE_DIR": base, "TMPDIR": "/scratch"}).scratch for base in ("/a", "/b"))

    assert first.parent == two.parent == Path("/scratch")
    assert first != two


# Documents that are missing or wrong


def test_a_missing_config_folder_is_named_with_two_ways_out(tmp_path: Path) -> None:
    with pytest.raises(ContractError) as caught:
        read({"SAGEMAKER_BASE_DIR": str(tmp_path)}, Settings(), MACHINE, Log())

    assert str(caught.value).startswith(
        f"{tmp_path}/input/config: expected a folder with the job's documents, found no"
    )
    assert "SAGEMAKER_BASE_DIR" in str(caught.value)
    assert "toolkit run" in str(caught.value)


@pytest.mark.parametrize("name", ["hyperparameters", "inputdataconfig", "resourceconfig"])
def test_a_missing_document_is_named(base: Base, name: str) -> None:
    base.file(name).unlink()

    assert base.error().startswith(f"{base.file(name)}: expected a JSON document, found no such file.")


@pytest.mark.parametrize("name", ["hyperparameters", "inputdataconfig", "resourceconfig"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "expected a JSON document, found an empty file"),
        (b" \n", "expected a JSON document, found an empty file"),
        (b'{"a": 1,\n "b": oops}', "expected JSON, found a mistake at line 2 column 7 (Expecting value)"),
        (b'{"a": ', "line 1 column 7"),
        (b"{\xff\xfe}", "expected JSON, found bytes that are not UTF-8, from byte 1 on (invalid start byte)"),
        (b"[" * 100_000, "expected JSON, found objects or lists nested more deeply than Python reads them"),
        (b'{"a": ' + b"9" * 5000 + b"}", "expected JSON, found a whole number of more than 4,300 digits"),
        (b"[]", "$: expected an object, found []"),
        (b"null", "$: expected an object, found null"),
    ],
)
def test_a_document_that_is_no_json_is_told_with_what_was_found(
    base: Base, name: str, content: bytes, reason: str
) -> None:
    base.file(name).write_bytes(content)

    error = base.error()

    assert error.startswith(f"{base.file(name)}: ")
    assert reason in error


def test_a_document_that_is_no_json_is_not_shown_since_it_may_hold_secrets(base: Base) -> None:
    base.file("hyperparameters").write_text('{"api_key": "hf_0123456789", oops}')

    assert "hf_" not in base.error()


def test_a_document_that_is_a_folder_is_told(base: Base) -> None:
    base.file("hyperparameters").unlink()
    base.file("hyperparameters").mkdir()

    assert "found one that cannot be read (Is a directory)" in base.error()


@pytest.mark.parametrize("name", ["hyperparameters", "inputdataconfig", "resourceconfig"])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("fifo", "found one that cannot be read (a FIFO, no regular file)"),
        ("/dev/zero", "found one that cannot be read (a device, no regular file)"),
        ("2 GB", "found one that cannot be read (it has more than 16,777,216 bytes)"),
    ],
)
def test_a_document_without_an_end_is_told_at_once(base: Base, name: str, kind: str, reason: str) -> None:
    base.file(name).unlink()
    if kind == "fifo":
        os.mkfifo(base.file(name))
    elif kind == "2 GB":
        with base.file(name).open("wb") as file:
            file.truncate(2 << 30)
    else:
        base.file(name).symlink_to(kind)

    assert reason in base.error()


@pytest.mark.parametrize("name", ["metric-definition-regex", "checkpointconfig", "profilerconfig"])
@pytest.mark.parametrize("target", ["nowhere", "itself", "/dev/zero"])
def test_an_optional_document_that_cannot_be_read_is_said(base: Base, name: str, target: str) -> None:
    base.file(name).symlink_to(base.file(name) if target == "itself" else target)

    base.read()

    assert f"warning: {base.file(name)}: expected a JSON document, found " in base.heard()


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ({"current_host": "algo-1"}, "$: expected a key 'hosts', found current_host"),
        ({"hosts": ["algo-1"]}, "$: expected a key 'current_host', found hosts"),
        ({}, "$: expected a key 'hosts', found no key at all"),
        ({**ONE_HOST, "hosts": "algo-1"}, '$.hosts: expected a list, found "algo-1"'),
        ({**ONE_HOST, "hosts": ["algo-1", 2]}, "$.hosts[1]: expected a string, found 2"),
        ({**ONE_HOST, "hosts": []}, "$.hosts: expected array of length >= 1, found []"),
        ({**ONE_HOST, "current_host": None}, "$.current_host: expected a string, found null"),
        (
            {"current_host": "algo-9", "hosts": ["algo-1", "algo-2"]},
            '$.current_host: expected one of $.hosts (algo-1, algo-2), found "algo-9"',
        ),
        ({**ONE_HOST, "instance_groups": {}}, "$.instance_groups: expected a list or null, found {}"),
        (
            {**ONE_HOST, "instance_groups": [{"hosts": ["algo-1"]}]},
            "$.instance_groups[0]: expected a key 'instance_group_name', found hosts",
        ),
        (
            {**ONE_HOST, "instance_groups": [{"instance_group_name": "g", "hosts": "algo-1"}]},
            '$.instance_groups[0].hosts: expected a list, found "algo-1"',
        ),
        ({**ONE_HOST, "network_interface_name": 0}, "$.network_interface_name: expected a string or null, found 0"),
    ],
)
def test_a_wrong_resource_config_is_told_with_key_expected_and_found(
    base: Base, resources: dict[str, Any], reason: str
) -> None:
    base.write(resourceconfig=resources)

    assert base.error() == f"{base.file('resourceconfig')}: {reason}"


@pytest.mark.parametrize(
    ("channels", "reason"),
    [
        ({"train": "File"}, '$.train: expected an object, found "File"'),
        ({"train": {"TrainingInputMode": 1}}, "$.train.TrainingInputMode: expected a string or null, found 1"),
        (
            {"my-data": {"TrainingInputMode": "file"}},
            "$.my-data.TrainingInputMode: expected one of 'File', 'FastFile', 'Pipe', found 'file'."
            " Set it in the job's InputDataConfig",
        ),
    ],
)
def test_a_wrong_channel_is_told_with_key_expected_and_found(base: Base, channels: dict[str, Any], reason: str) -> None:
    base.write(inputdataconfig=channels)

    assert base.error() == f"{base.file('inputdataconfig')}: {reason}"


@pytest.mark.parametrize(
    ("hyperparameters", "reason"),
    [
        ({"sagemaker_program": "12"}, "$.sagemaker_program: expected a string or null, found 12"),
        ({"sagemaker_submit_directory": []}, "$.sagemaker_submit_directory: expected a string or null, found []"),
        (
            {**TORCH, "sagemaker_mpi_num_of_processes_per_host": "many"},
            '$.sagemaker_mpi_num_of_processes_per_host: expected a whole number, 1 to 1,000,000, found "many"',
        ),
        (
            {**TORCH, "sagemaker_mpi_num_of_processes_per_host": "-2"},
            "$.sagemaker_mpi_num_of_processes_per_host: expected a whole number, 1 to 1,000,000, found -2",
        ),
        (
            {**TORCH, "sagemaker_distribution_instance_groups": "gpus"},
            '$.sagemaker_distribution_instance_groups: expected a list, found "gpus"',
        ),
        (
            {"a": '"x\\u0000y"'},
            "$.a: expected text that arguments and variables can hold, found a NUL or half a surrogate pair",
        ),
        (
            {"b": '"\\ud83d"'},
            "$.b: expected text that arguments and variables can hold, found a NUL or half a surrogate pair",
        ),
    ],
)
def test_a_wrong_hyperparameter_is_told_with_key_expected_and_found(
    base: Base, hyperparameters: dict[str, Any], reason: str
) -> None:
    base.write(hyperparameters=hyperparameters)

    assert base.error().startswith(f"{base.file('hyperparameters')}: {reason}")


@pytest.mark.parametrize("name", ["hyperparameters", "inputdataconfig", "resourceconfig"])
def test_a_key_that_is_no_text_is_told(base: Base, name: str) -> None:
    base.file(name).write_text('{"\\ud800": null, "hosts": ["algo-1"], "current_host": "algo-1"}')

    assert base.error().startswith(f"{base.file(name)}: ")


# Documents in all their shapes


def test_local_mode_needs_hosts_and_current_host_only(base: Base) -> None:
    job = base.read()

    assert job.cluster.hosts == ("algo-1",)
    assert (job.cluster.instance_type, job.cluster.current_group) == ("local", "homogeneousCluster")
    assert (job.cluster.interface, job.cluster.groups, job.cluster.topology) == ("eth0", (), None)
    assert job.cluster.is_leader


def test_unknown_keys_and_nulls_are_no_matter(base: Base) -> None:
    resources: dict[str, Any] = {
        **ONE_HOST,
        "topology": None,
        "instance_groups": None,
        "current_group_name": None,
        "network_interface_name": None,
        "tomorrow": [{}],
    }
    base.write(resourceconfig=resources, inputdataconfig={"train": None, "efs": {"FileSystemId": 1}})

    job = base.read()

    assert job.cluster.current_group == "homogeneousCluster"
    assert [channel.mode for channel in job.spec.channels] == ["File", "File"]
    assert job.spec.platform_values.resource_config == resources


def test_hosts_may_have_any_name(base: Base) -> None:
    base.write(resourceconfig={"current_host": "algo-2-x9k3f", "hosts": ["zebra.example", "algo-2-x9k3f"]})

    assert base.read().cluster.leader == "zebra.example"


@pytest.mark.parametrize("host", ["algo_2", "10.0.0.7", "fe80::1%eth0", "höst-1.example", "a" * 200])
def test_names_and_addresses_are_hosts(base: Base, host: str) -> None:
    base.write(resourceconfig={"current_host": host, "hosts": [host]})

    assert base.read().cluster.leader == host


ODD_HOSTS = [
    "../../..",
    "..",
    ".",
    "",
    "a/b",
    "a b",
    "a\0b",
    "a\nb",
    "-oProxyCommand=x",
    "a,b",
    "a;b",
    "a" * 300,
    "\ud800",
]


@pytest.mark.parametrize("host", ODD_HOSTS)
def test_a_host_whose_name_leads_elsewhere_is_refused(base: Base, host: str) -> None:
    base.write(resourceconfig={"current_host": "algo-1", "hosts": ["algo-1", host]})

    error = base.error()

    assert error.startswith(f"{base.file('resourceconfig')}: $.hosts: expected a host's name or address")
    assert json.dumps(host[:60])[1:-1] in error
    assert len(error) < 400


def test_channels_and_hyperparameters_that_differ_only_in_case_are_told(base: Base) -> None:
    base.write(
        hyperparameters={"lr": "1", "LR": "2"},
        inputdataconfig={name: {"TrainingInputMode": "File"} for name in ("train-a", "train-A")},
    ).read()

    output = base.heard()
    assert "hyperparameters 'lr' and 'LR' share the variable SM_HP_LR, which holds that of 'LR'. Rename" in output
    assert (
        "channels 'train-a' and 'train-A' share the variable SM_CHANNEL_TRAIN_A, which holds that of 'train-A'"
        in output
    )


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        ("algo-1=10.0.0.1,algo-4=10.0.0.4", "names algo-4: expected hosts of the job (algo-1, algo-2, algo-3)"),
        ("algo-1=10.0.0.1,algo-2=10.0.0.2,algo-3=10.0.0.3,algo-4=10.0.0.4", ""),
        ("algo-1=10.0.0.1", ""),
    ],
    ids=["misspelt", "more than the job's", "some of the job's"],
)
def test_an_address_of_no_host_is_told_where_a_host_has_none(base: Base, addresses: str, message: str) -> None:
    base.write(resourceconfig=HETERO).read(settings=Settings(host_addresses=addresses))

    output = base.heard()
    assert message in output
    assert ("TOOLKIT_HOST_ADDRESSES" in output) == bool(message)


@pytest.mark.parametrize(
    ("group_names", "is_told"),
    [('["gpu"]', True), ('["%s", "gpu"]', True), ('["%s"]', False)],
)
def test_groups_of_the_distribution_that_the_job_has_not_are_named(base: Base, group_names: str, is_told: bool) -> None:
    groups = group_names.replace("%s", str(GROUPS[0]["instance_group_name"]))
    base.write(
        hyperparameters={**TORCH, "sagemaker_distribution_instance_groups": groups}, resourceconfig=HETERO
    ).read()

    expected = "Hosts of other groups run the script alone"
    assert (expected in base.heard()) == is_told


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"current_host": "algo-1", "hosts": ["algo-1", "algo-2", "algo-1"]}, "$.hosts"),
        (
            {**HETERO, "instance_groups": [{**GROUPS[1], "hosts": [GROUPS[1]["hosts"][0]] * 2}]},
            "$.instance_groups",
        ),
    ],
)
def test_a_host_that_is_named_twice_is_refused(base: Base, document: dict[str, Any], place: str) -> None:
    base.write(resourceconfig=document)

    assert base.error().startswith(f"{base.file('resourceconfig')}: {place}: expected each host once, found ")


@pytest.mark.parametrize("name", ["../../x", "..", ".", "", "a/b", "/a", "a\0b", "a" * 300, "\ud800"])
def test_a_channel_or_group_that_is_no_folders_name_is_refused(base: Base, name: str) -> None:
    base.write(inputdataconfig={name: {"TrainingInputMode": "File"}})
    channel = base.error()
    base.write(
        inputdataconfig={}, resourceconfig={**HETERO, "instance_groups": [{**GROUPS[1], "instance_group_name": name}]}
    )
    group = base.error()

    assert "inputdataconfig.json: $: expected the name of a channel without slashes" in channel
    assert "resourceconfig.json: $.instance_groups: expected the name of an instance group" in group


def test_channels_have_a_folder_and_a_mode(base: Base) -> None:
    base.write(inputdataconfig={"train": {"TrainingInputMode": "Pipe"}, "a.b": {"TrainingInputMode": "FastFile"}})

    train, other = base.read().spec.channels

    assert (train.name, train.mode, train.folder) == ("train", "Pipe", base.folder / "input/data/train")
    assert (other.name, other.mode) == ("a.b", "FastFile")


def test_documents_may_hold_nan(base: Base) -> None:
    base.file("hyperparameters").write_text('{"a": NaN, "b": "-Infinity"}')

    values = base.read().spec.hyperparameters

    assert str(values["a"]) == "nan"
    assert values["b"] == float("-inf")


def test_strings_are_read_as_json_once_and_others_stay() -> None:
    values = {"a": "1", "b": '"1"', "c": "one", "d": 1, "e": ["1"], "f": "", "g": "1" * 5_000, "h": "[" * 100_000}

    assert decode_values(values) == {**values, "a": 1, "b": "1"}


def test_the_platforms_own_hyperparameters_are_kept_apart(base: Base) -> None:
    base.write(
        hyperparameters={"epochs": "1", "sagemaker_any": "1", "_tuning_objective_metric": "acc", "sagemakers": "2"}
    )

    job = base.read()

    assert job.spec.hyperparameters == {"epochs": 1, "sagemakers": 2}
    assert job.spec.platform_values.parameters == {"sagemaker_any": 1}


# What to run


@pytest.mark.parametrize(
    ("flag", "parallel", "expected"),
    [
        ("torch_distributed", {"partitions": 2}, ["mpi", "torch_distributed"]),
        ("pytorch_ddp", {"partitions": 2}, ["mpi", "pytorch_ddp"]),
        ("mpi", {"partitions": 2}, ["mpi"]),
        ("torch_distributed", {}, ["torch_distributed"]),
    ],
)
def test_transformers_finds_mpis_flag_in_every_job_of_the_model_parallel_library(
    base: Base, flag: str, parallel: dict[str, int], expected: list[str]
) -> None:
    base.write(hyperparameters={f"sagemaker_{flag}_enabled": "true", "mp_parameters": json.dumps(parallel)})

    assert base.read().spec.platform_values.parameters == {f"sagemaker_{name}_enabled": True for name in expected}


def test_the_entry_point_of_the_variable_beats_that_of_the_hyperparameter(base: Base) -> None:
    base.write(hyperparameters={"sagemaker_program": '"a.py"'})

    assert base.read().spec.entry == "a.py"
    assert base.read({"SAGEMAKER_PROGRAM": "b.py"}).spec.entry == "b.py"
    assert base.heard().endswith("SAGEMAKER_PROGRAM names the script, b.py, and wins over sagemaker_program=a.py\n")
    assert base.read({"SAGEMAKER_PROGRAM": "b.py"}, Settings(program="c.py")).spec.entry == "c.py"
    assert base.read({}, Settings(job=Path("job.toml"))).spec.entry == "a.py"
    assert "TOOLKIT_JOB=job.toml is not read" in base.heard()


def test_the_source_of_the_hyperparameter_beats_that_of_the_variable(base: Base) -> None:
    assert base.read().spec.source is None
    assert base.read({"SAGEMAKER_SUBMIT_DIRECTORY": "/env"}).spec.source == "/env"
    base.write(hyperparameters={"sagemaker_submit_directory": '"s3://b/k"'})
    assert base.read({"SAGEMAKER_SUBMIT_DIRECTORY": "/env"}).spec.source == "s3://b/k"


def test_a_plug_in_is_named_by_its_variable(base: Base) -> None:
    assert base.read({"SAGEMAKER_TRAINING_MODULE": "a.b:main"}).spec.plugin == "a.b:main"
    assert base.read({"SAGEMAKER_TRAINING_MODULE": ""}).spec.plugin is None


@pytest.mark.parametrize(
    ("hyperparameters", "environ", "name"),
    [
        ({}, {}, ""),
        ({"sagemaker_job_name": '"asked"'}, {}, "asked"),
        ({"sagemaker_job_name": '"asked"'}, {"TRAINING_JOB_NAME": "given"}, "given"),
    ],
)
def test_the_name_is_the_platforms_else_the_clients(
    base: Base, hyperparameters: dict[str, str], environ: dict[str, str], name: str
) -> None:
    base.write(hyperparameters=hyperparameters)

    assert base.read(environ).spec.name == name


def test_the_region_is_the_jobs_else_the_platforms(base: Base) -> None:
    assert base.read({"AWS_REGION": "us-east-1"}).spec.platform_values.variables["SAGEMAKER_REGION"] == "us-east-1"
    base.write(hyperparameters={"sagemaker_region": '"eu-west-1"'})
    assert base.read({"AWS_REGION": "us-east-1"}).spec.platform_values.variables["SAGEMAKER_REGION"] == "eu-west-1"


@pytest.mark.parametrize(
    ("environ", "settings", "stop_within_s"),
    [
        ({}, Settings(), 10),
        ({"TRAINING_JOB_NAME": "digits"}, Settings(), 120),
        ({"TRAINING_JOB_NAME": "digits"}, Settings(stop_within_s=45), 45),
    ],
    ids=["documents mounted by a person", "a job", "said"],
)
def test_the_time_to_stop_in_a_container_is_the_platforms_for_its_jobs_else_the_engines(
    base: Base, environ: dict[str, str], settings: Settings, stop_within_s: float
) -> None:
    assert base.read(environ, settings, msgspec.structs.replace(MACHINE, engine=True)).stop_within_s == stop_within_s


def test_the_rest_is_as_sagemaker_has_it(base: Base) -> None:
    job = base.read({"MINE": "1"})

    assert (job.stop_within_s, job.stopped_is_success) == (120.0, True)
    assert job.grace_s == 110.0
    assert job.interpreter == sys.executable
    assert job.environ == {"SAGEMAKER_BASE_DIR": str(base.folder), "MINE": "1"}


@pytest.mark.parametrize(
    ("hyperparameters", "environ", "level"),
    [
        ({}, {}, 20),
        ({"sagemaker_container_log_level": "10"}, {}, 10),
        ({"sagemaker_container_log_level": 30}, {}, 30),
        ({"sagemaker_container_log_level": "INFO"}, {}, 20),
        ({"sagemaker_container_log_level": '"warning"'}, {}, 30),
        ({}, {"SAGEMAKER_CONTAINER_LOG_LEVEL": "ERROR"}, 40),
        ({}, {"SAGEMAKER_CONTAINER_LOG_LEVEL": ""}, 20),
        ({"sagemaker_container_log_level": "10"}, {"SAGEMAKER_CONTAINER_LOG_LEVEL": "40"}, 10),
    ],
)
def test_log_levels_are_numbers_or_names(
    base: Base, hyperparameters: dict[str, Any], environ: dict[str, str], level: int
) -> None:
    base.write(hyperparameters=hyperparameters)

    assert base.read(environ).spec.log_level == level
    assert base.heard() == ""


@pytest.mark.parametrize("level", ["loud", "null", "[1]", "true", "-5"])
def test_a_bad_log_level_draws_a_warning_and_is_20(base: Base, level: str) -> None:
    base.write(hyperparameters={"sagemaker_container_log_level": level})

    assert base.read().spec.log_level == 20
    assert "sagemaker_container_log_level: expected a number or a name such as INFO" in base.heard()


# How to start it


@pytest.mark.parametrize(
    ("flags", "strategy"),
    [
        ((), "script"),
        (("parameter_server",), "parameter_server"),
        (("parameter_server", "multi_worker_mirrored_strategy"), "multi_worker_mirrored"),
        (("multi_worker_mirrored_strategy", "pytorch_xla_multi_worker"), "pytorchxla"),
        (("pytorch_xla_multi_worker", "distributed_dataparallel"), "smddp"),
        (("distributed_dataparallel", "torch_distributed"), "torch_distributed"),
        (("torch_distributed", "pytorch_ddp"), "pytorchddp"),
        (("pytorch_ddp", "mpi"), "mpi"),
    ],
)
def test_of_several_launchers_the_first_of_the_order_is_chosen(
    base: Base, flags: tuple[str, ...], strategy: str
) -> None:
    base.write(hyperparameters={f"sagemaker_{flag}_enabled": "true" for flag in flags})

    assert base.read().strategy.name == strategy
    assert ("the job enables several distributions: " in base.heard()) is (len(flags) > 1)


def test_a_distribution_that_is_not_used_is_named_in_a_warning(base: Base) -> None:
    base.write(hyperparameters={"sagemaker_mpi_enabled": "true", "sagemaker_torch_distributed_enabled": "true"})

    base.read()

    warning = "the job enables several distributions: mpi, torch_distributed. mpi is used. Enable one of them"
    assert base.heard() == f"[toolkit] warning: {warning}\n"


@pytest.mark.parametrize(
    "off",
    [
        "false",
        "False",
        "",
        "0",
        "null",
        False,
        None,
        '"None"',
        '"no"',
        '"off"',
        '"FALSE"',
        "None",
        " n ",
        '{"enabled": false}',
        0.0,
    ],
)
def test_a_flag_that_is_off_is_off(base: Base, off: Any) -> None:
    base.write(hyperparameters={"sagemaker_mpi_enabled": off})

    job = base.read()

    assert (job.strategy.name, job.cluster.distribution_groups, job.cluster.taking_part) == ("script", (), ())


@pytest.mark.parametrize("on", ["true", '"True"', "yes", "1", 1, '{"enabled": true}', "on"])
def test_a_flag_that_is_on_is_on(base: Base, on: Any) -> None:
    base.write(hyperparameters={"sagemaker_torch_distributed_enabled": on})

    assert base.read().strategy.name == "torch_distributed"
    assert base.heard() == ""


@pytest.mark.parametrize(
    ("odd", "name"), [("maybe", "mpi"), ('{"enabld": true}', "mpi"), ("[]", "script"), ("2", "mpi")]
)
def test_a_flag_that_says_neither_is_warned_of(base: Base, odd: str, name: str) -> None:
    base.write(hyperparameters={"sagemaker_mpi_enabled": odd})

    assert base.read().strategy.name == name
    assert "$.sagemaker_mpi_enabled: expected true or false, found " in base.heard()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("sagemaker_torch_distributed_enable", "sagemaker_torch_distributed_enabled"),
        ("sagemaker_mpi_num_processes_per_host", "sagemaker_mpi_num_of_processes_per_host"),
        ("sagemaker_pytorchddp_enabled", "sagemaker_pytorch_ddp_enabled"),
        ("sagemaker_estimator_class_name", ""),
        ("sagemaker_instance_count", ""),
        ("sagemaker_s3_uri_artifacts", ""),
    ],
)
def test_a_parameter_of_sagemakers_that_is_misspelt_is_warned_of(base: Base, name: str, near: str) -> None:
    base.write(hyperparameters={name: "true"})

    base.read()

    message = f"hyperparameters.json: $.{name} is ignored: nothing reads it. Did you mean {near}?"
    assert base.heard() == (f"[toolkit] warning: {message}\n" if near else "")


def test_a_host_of_a_distribution_group_takes_part_in_the_groups_order(base: Base) -> None:
    """The hosts of a group are unsorted; the leader is the first one listed."""
    base.write(hyperparameters={**TORCH, "sagemaker_distribution_instance_groups": '["gpus"]'}, resourceconfig=HETERO)

    job = base.read()

    assert job.strategy.name == "torch_distributed"
    assert job.cluster.taking_part == ("algo-3", "algo-1")
    assert (job.cluster.leader, job.cluster.rank, job.cluster.size) == ("algo-3", 1, 2)


def test_a_host_outside_the_distribution_groups_runs_the_script_alone(base: Base) -> None:
    base.write(
        hyperparameters={**TORCH, "sagemaker_distribution_instance_groups": '["gpus"]'},
        resourceconfig={**HETERO, "current_host": "algo-2", "current_group_name": "feeders"},
    )

    job = base.read()

    assert job.strategy.name == "script"
    assert job.strategy.processes_per_host is None
    assert (job.cluster.takes_part, job.cluster.rank, job.cluster.size) == (False, 0, 1)


def test_without_named_groups_the_current_one_is_distributed(base: Base) -> None:
    base.write(hyperparameters=TORCH, resourceconfig=HETERO)

    cluster = base.read().cluster

    assert (cluster.distribution_groups, cluster.taking_part) == (("gpus",), ("algo-3", "algo-1"))


def test_several_groups_take_part_in_the_documents_order(base: Base) -> None:
    base.write(
        hyperparameters={**TORCH, "sagemaker_distribution_instance_groups": '["gpus", "feeders"]'},
        resourceconfig=HETERO,
    )

    assert base.read().cluster.taking_part == ("algo-2", "algo-3", "algo-1")


def test_without_instance_groups_every_host_takes_part(base: Base) -> None:
    base.write(hyperparameters=TORCH, resourceconfig={"current_host": "b", "hosts": ["c", "b"]})

    cluster = base.read().cluster

    assert (cluster.taking_part, cluster.rank) == (("c", "b"), 1)


def test_all_hosts_agree_on_leader_and_ranks(base: Base) -> None:
    base.write(hyperparameters=TORCH)
    clusters = []
    for host in ("algo-1", "algo-3"):
        base.write(resourceconfig={**HETERO, "current_host": host})
        cluster = base.read().cluster
        clusters.append((cluster.leader, cluster.rank, cluster.is_leader))

    assert clusters == [("algo-3", 1, False), ("algo-3", 0, True)]


def test_a_host_missing_from_its_own_group_is_told(base: Base) -> None:
    base.write(hyperparameters=TORCH, resourceconfig={**HETERO, "current_host": "algo-2"})

    assert (
        "$.instance_groups: expected 'algo-2' among the hosts of its group 'gpus', found algo-3, algo-1" in base.error()
    )


def test_a_group_that_is_not_named_is_the_one_that_lists_the_host(base: Base) -> None:
    base.write(resourceconfig={key: value for key, value in HETERO.items() if key != "current_group_name"})

    assert base.read().cluster.current_group == "gpus"


def test_processes_per_host_and_options_are_handed_on(base: Base) -> None:
    base.write(
        hyperparameters={
            "sagemaker_mpi_enabled": "true",
            "sagemaker_mpi_num_of_processes_per_host": "8",
            "sagemaker_mpi_custom_mpi_options": '"--NCCL_DEBUG INFO"',
            "sagemaker_distributed_dataparallel_custom_mpi_options": '""',
            "sagemaker_instance_type": '"ml.p4d.24xlarge"',
        }
    )

    job = base.read()

    assert job.processes_per_host == job.strategy.processes_per_host == 8
    assert job.strategy.mpirun_options == "--NCCL_DEBUG INFO"
    assert job.strategy.instance_type == "ml.p4d.24xlarge"


@pytest.mark.parametrize("kind", ["mpi", "distributed_dataparallel"])
def test_options_of_a_job_under_torchrun_are_found_under_either_name(base: Base, kind: str) -> None:
    options = {f"sagemaker_{kind}_custom_mpi_options": '"-x NCCL_DEBUG=INFO"'}
    base.write(hyperparameters={"sagemaker_pytorch_ddp_enabled": "true", **options})

    assert base.read().strategy.mpirun_options == "-x NCCL_DEBUG=INFO"


@pytest.mark.parametrize("plugin", ["pkg.mod", "pkg.mod:", ":main", "pkg mod:main", "pkg:ma in", "a:b:c", "-c:main"])
def test_a_plugin_that_is_no_module_and_function_is_named_with_its_variable(base: Base, plugin: str) -> None:
    with pytest.raises(ContractError, match=r"^SAGEMAKER_TRAINING_MODULE: expected 'module:function', found"):
        base.read({"SAGEMAKER_TRAINING_MODULE": plugin})


def test_ranks_of_smddp_on_several_hosts_find_the_instance_type_unless_the_user_set_it(base: Base) -> None:
    base.write(hyperparameters={"sagemaker_distributed_dataparallel_enabled": "true"})
    single = base.read()
    base.write(resourceconfig={"current_host": "a", "hosts": ["a", "b"], "current_instance_type": "ml.p4d.24xlarge"})

    several, with_type = base.read(), base.read({"SAGEMAKER_INSTANCE_TYPE": "mine"})

    types = [job.environ.get("SAGEMAKER_INSTANCE_TYPE") for job in (single, several, with_type)]
    assert types == [None, "ml.p4d.24xlarge", "mine"]


def test_addresses_of_hosts_come_from_the_settings(base: Base) -> None:
    assert base.read(settings=Settings(host_addresses="algo-1=127.0.0.1")).cluster.address("algo-1") == "127.0.0.1"


def test_a_trn2_has_64_neuron_cores_without_neuron_ls(base: Base) -> None:
    base.write(resourceconfig={**ONE_HOST, "current_instance_type": "ml.trn2.48xlarge"})

    job = base.read()

    assert (job.machine.neurons, job.processes_per_host) == (64, 64)


# Metric definitions and checkpoints


LIST = [{"Name": "loss", "Regex": "loss=(.*)"}]


def test_metric_definitions_are_read_where_there_are_any(base: Base) -> None:
    assert base.read().spec.metric_definitions == ()
    assert base.write(metric_definition_regex=[]).read().spec.metric_definitions == ()
    assert base.write(metric_definition_regex={}).read().spec.metric_definitions == ()
    assert base.write(metric_definition_regex=LIST).read().spec.metric_definitions == (("loss", "loss=(.*)"),)


def test_metric_definitions_of_another_shape_draw_a_warning_only(base: Base) -> None:
    """The file is not documented; a job must not fail because of it."""
    job = base.write(metric_definition_regex=[1]).read()

    assert job.spec.metric_definitions == ()
    assert f"{base.file('metric_definition_regex')}: $[0]: expected an object, found 1" in base.heard()


def test_a_metrics_file_of_the_users_own_wins(base: Base, tmp_path: Path) -> None:
    base.write(metric_definition_regex=LIST)
    path = tmp_path / "own.json"
    path.write_text('{"acc": "acc=(.*)"}')

    assert base.read(settings=Settings(metrics=path)).spec.metric_definitions == (("acc", "acc=(.*)"),)


@pytest.mark.parametrize("write", [lambda _: None, lambda file: file.write_text("[1]"), lambda file: file.mkdir()])
def test_a_metrics_file_of_the_users_own_that_is_wrong_is_an_error(
    base: Base, tmp_path: Path, write: Callable[[Path], object]
) -> None:
    write(tmp_path / "own.json")

    with pytest.raises(ContractError, match=r"own\.json: "):
        base.read(settings=Settings(metrics=tmp_path / "own.json"))


def test_checkpoints_are_where_the_job_says(base: Base, tmp_path: Path) -> None:
    usual = base.folder / "checkpoints"

    assert base.read().folders.checkpoints == usual
    assert base.write(checkpointconfig={}).read().folders.checkpoints == usual
    assert base.write(checkpointconfig=[]).read().folders.checkpoints == usual
    moved = base.write(checkpointconfig={"LocalPath": "/opt/ml/checkpoints/a", "S3Uri": "s3://b"}).read()
    assert moved.folders.checkpoints == usual / "a"
    elsewhere = base.write(checkpointconfig={"LocalPath": str(tmp_path / "x/y")}).read()
    assert elsewhere.folders.checkpoints == tmp_path / "x/y"
    assert base.heard() == ""


def test_checkpoints_out_of_reach_go_to_the_usual_place_with_a_warning(base: Base) -> None:
    base.write(checkpointconfig={"LocalPath": "/proc/version/checkpoints"})

    assert base.read().folders.checkpoints == base.folder / "checkpoints"
    assert "LocalPath /proc/version/checkpoints cannot be written to" in base.heard()


@pytest.mark.parametrize("character", ["\0", "\ud800"])
@pytest.mark.parametrize("folder", ["/tmp", "/opt/ml"])
def test_checkpoints_under_a_name_that_no_file_has_go_to_the_usual_place_with_a_warning(
    base: Base, folder: str, character: str
) -> None:
    base.write(checkpointconfig={"LocalPath": f"{folder}/x{character}"})

    assert base.read().folders.checkpoints == base.folder / "checkpoints"
    assert f"LocalPath: expected a path, found {f'{folder}/x{character}'!r}; using" in base.heard()


def test_checkpoints_that_cannot_be_looked_at_for_a_moment_are_not_looked_for_elsewhere(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base.write(checkpointconfig={"LocalPath": str(tmp_path / "shared")})
    unlookable(monkeypatch, tmp_path / "shared", errno.ESTALE)

    with pytest.raises(OSError, match="Stale file handle"):
        base.read()
    unlookable(monkeypatch, tmp_path / "shared", errno.EACCES)
    assert base.read().folders.checkpoints == base.folder / "checkpoints"
    assert f"LocalPath {tmp_path}/shared cannot be written to (Permission denied)" in base.heard()


def test_a_wrong_checkpoint_config_draws_a_warning_only(base: Base) -> None:
    base.write(checkpointconfig={"LocalPath": 1})

    assert base.read().folders.checkpoints == base.folder / "checkpoints"
    assert "$.LocalPath: expected a string or null, found 1" in base.heard()


# Secrets


def test_secret_hyperparameters_are_never_said_from_then_on(base: Base) -> None:
    base.write(hyperparameters={"api_key": '"hf_0123456789"', "sagemaker_token": "abcdefgh"})
    base.read()

    base.log.info("with hf_0123456789 and abcdefgh")

    assert base.heard() == "[toolkit] with ****** and ******\n"


def test_awss_pytorch_images_tell_the_script_torchs_version_and_their_plug_in(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SM_DLC_TORCH_VERSION and SM_FRAMEWORK_MODULE, though the plug-in itself is replaced."""
    folder = tmp_path / "packages/torch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('torch is never imported by train')\n")
    (folder / "version.py").write_text("__all__ = ['__version__']\n__version__ = '2.5.1+cu124'\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # Another test may have imported it; `train` never does.
    plugin = {"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main"}

    job = base.read(plugin)

    assert job.spec.plugin is None
    assert job.environ["SM_DLC_TORCH_VERSION"] == "2.5.1+cu124"
    assert variables(job, ())["SM_FRAMEWORK_MODULE"] == plugin["SAGEMAKER_TRAINING_MODULE"]
    assert base.read({**plugin, "SM_DLC_TORCH_VERSION": "own"}).environ["SM_DLC_TORCH_VERSION"] == "own"
    assert "SM_DLC_TORCH_VERSION" not in base.read().environ


def test_names_and_folders_are_shown_as_the_documents_have_them(base: Base) -> None:
    """Contract 5.1.4: SAGEMAKER_JOB_NAME is the SDK's hyperparameter, SM_MODULE_DIR never the image's own variable."""
    environ = {"TRAINING_JOB_NAME": "a", "SAGEMAKER_SUBMIT_DIRECTORY": "/in/the/image"}
    base.write(hyperparameters={"sagemaker_job_name": '"b"'})

    values = variables(base.read(environ), ())

    assert (values["SAGEMAKER_JOB_NAME"], json.loads(values["SM_TRAINING_ENV"])["job_name"]) == ("b", "a")
    assert values["SM_MODULE_DIR"] == str(base.folder / "code")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EIO, PlatformError),
        (errno.ESTALE, PlatformError),
        (errno.EMFILE, PlatformError),
        (errno.EACCES, ContractError),
        (errno.EISDIR, ContractError),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else value.__name__,
)
def test_a_document_that_another_try_may_read_ends_the_job_with_75(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[ToolkitError]
) -> None:
    def failing(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "read", failing)

    with pytest.raises(kind, match="found one that cannot be read"):
        input_config.load(tmp_path / "hyperparameters.json")
