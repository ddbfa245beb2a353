"""Job files, documents and variables outside SageMaker, and the job that they become."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.folders import unlistable
from toolkit import settings
from toolkit.errors import ContractError, PlatformError
from toolkit.job.job import Job
from toolkit.job.machine import Machine
from toolkit.job.variables import variables
from toolkit.log import Log
from toolkit.train.platforms.table import detect

MACHINE = Machine(cpus=2, cpus_total=2, memory_bytes=1 << 30, route_interface="eth7")


class Asked:
    """A folder with code, and a base below it; `job` reads the job that the environment describes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "base"
        self.code = folder / "code"
        self.config = self.base / "input/config"
        self.code.mkdir()
        self.config.mkdir(parents=True)
        (self.code / "train.py").touch()

    def file(self, text: str, name: str = "job.toml") -> Path:
        path = self.code / name
        path.write_text(text)
        return path

    def document(self, name: str, content: Any) -> None:
        (self.config / name).write_text(json.dumps(content))

    def job(self, *, machine: Machine = MACHINE, **environ: str) -> Job:
        variables = {"TOOLKIT_BASE": str(self.base), "TOOLKIT_PLATFORM": "plain", "HOSTNAME": "me", **environ}
        return detect(variables).read(variables, settings.read(variables), machine, Log(), interpreter="/python")


@pytest.fixture
def platform_case(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


JOB = """
script = "train.py"
name = "digits"
distribution = "torch_distributed"
processes-per-host = 4
checkpoints = "../kept"
rules = "watch/rules.toml"

[hyperparameter]
epochs = 5
optimizer = "adam"
version = "1.0"

[channel]
train = "../data"

[metric]
loss = "loss=(.*)"

[env]
TOOLKIT_GRACE_S = "7"
COLOUR = "red"
"""


def test_a_job_file_says_all_that_toolkit_run_takes_from_it(platform_case: Asked, tmp_path: Path) -> None:
    job = platform_case.job(TOOLKIT_JOB=str(platform_case.file(JOB)))

    assert (job.spec.name, job.spec.entry, job.spec.source) == ("digits", "train.py", None)
    assert job.folders.code == platform_case.code
    assert job.folders.model == platform_case.base / "model"
    assert job.folders.checkpoints == tmp_path / "kept"
    assert job.spec.hyperparameters == {"epochs": 5, "optimizer": "adam", "version": "1.0"}
    assert (job.strategy.name, job.processes_per_host) == ("torch_distributed", 4)
    assert [(channel.name, channel.folder) for channel in job.spec.channels] == [("train", tmp_path / "data")]
    assert job.spec.metric_definitions == (("loss", "loss=(.*)"),)
    assert job.environ["COLOUR"] == "red"
    assert job.grace_s == 7
    assert job.settings.rules == platform_case.code / "watch/rules.toml"


def test_a_variable_names_other_rules_than_the_job_file(platform_case: Asked) -> None:
    job = platform_case.job(TOOLKIT_JOB=str(platform_case.file(JOB)), TOOLKIT_RULES="mine.toml")

    assert job.settings.rules == Path("mine.toml")


def test_a_job_file_asks_for_ready_made_metrics(platform_case: Asked) -> None:
    text = 'script = "train.py"\nmetric-presets = "iteration-times"\n[metric]\nloss = "loss=(.*)"\n'

    job = platform_case.job(TOOLKIT_JOB=str(platform_case.file(text)))
    by_variable = platform_case.job(TOOLKIT_JOB=str(platform_case.file(JOB)), TOOLKIT_METRIC_PRESETS="iteration-times")

    names = ["loss", "dataloader_time", "forward_time", "backward_time"]
    assert [name for name, _ in job.spec.metric_definitions] == names
    assert [name for name, _ in by_variable.spec.metric_definitions] == names


def test_a_script_is_given_the_variables_it_has_on_sagemaker(platform_case: Asked) -> None:
    job = platform_case.job(TOOLKIT_JOB=str(platform_case.file(JOB)), TOOLKIT_HOSTS="a,b", TOOLKIT_HOST="b")

    values = variables(job, ())

    assert values["SM_HOSTS"] == '["a","b"]'
    assert values["SM_CURRENT_HOST"] == "b"
    assert values["SM_HP_EPOCHS"] == "5"
    assert values["SM_CHANNEL_TRAIN"].endswith("/data")
    assert values["SM_MODEL_DIR"] == str(platform_case.base / "model")
    assert values["SM_NETWORK_INTERFACE_NAME"] == "eth7"
    assert json.loads(values["SM_TRAINING_ENV"])["job_name"] == "digits"
    assert json.loads(values["SM_RESOURCE_CONFIG"])["current_group_name"] == "homogeneousCluster"


def test_a_job_file_in_the_base_needs_no_variable(platform_case: Asked) -> None:
    platform_case.document(
        "job.json", {"script": str(platform_case.code / "train.py"), "hyperparameter": {"epochs": 2}}
    )

    assert platform_case.job().spec.hyperparameters == {"epochs": 2}


def test_a_plug_in_without_a_script_gets_what_the_variables_ask_for(platform_case: Asked) -> None:
    for name in ("a.py", "b.py"):
        (platform_case.base / "code" / name).parent.mkdir(exist_ok=True)
        (platform_case.base / "code" / name).touch()
    platform_case.document("hyperparameters.json", {"sagemaker_job_name": '"tuned"', "lr": "0.1", "epochs": "1"})

    job = platform_case.job(
        SAGEMAKER_TRAINING_MODULE="framework:main",
        TOOLKIT_HYPERPARAMETERS='{"epochs": 5}',
        TOOLKIT_CHANNELS="train=/data",
        TOOLKIT_DISTRIBUTION="mpi",
    )

    assert (job.spec.plugin, job.spec.entry, job.spec.name) == ("framework:main", None, "tuned")
    assert job.spec.hyperparameters == {"lr": 0.1, "epochs": 5}
    assert [(channel.name, channel.folder) for channel in job.spec.channels] == [("train", Path("/data"))]
    assert job.strategy.name == "mpi"


def test_a_plug_in_needs_no_script_in_a_job_file_either(platform_case: Asked) -> None:
    platform_case.document("job.json", {"hyperparameter": {"epochs": 2}})

    job = platform_case.job(SAGEMAKER_TRAINING_MODULE="framework:main")

    assert (job.spec.plugin, job.spec.hyperparameters) == ("framework:main", {"epochs": 2})


def test_variables_are_enough_for_a_job(platform_case: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(platform_case.code)

    job = platform_case.job(
        TOOLKIT_PROGRAM="train.py",
        TOOLKIT_HYPERPARAMETERS='{"epochs": 5, "name": "a=b"}',
        TOOLKIT_CHANNELS="train=/data/train, test=held-out",
        TOOLKIT_DISTRIBUTION="pytorchddp",
    )

    assert (job.spec.entry, job.folders.code) == ("train.py", platform_case.code)
    assert job.spec.hyperparameters == {"epochs": 5, "name": "a=b"}
    assert [channel.folder for channel in job.spec.channels] == [Path("/data/train"), platform_case.code / "held-out"]
    assert job.strategy.name == "pytorchddp"


def test_a_program_is_looked_for_in_the_bases_code_first(platform_case: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(platform_case.code)
    (platform_case.base / "code").mkdir()
    (platform_case.base / "code/train.py").touch()

    assert platform_case.job(TOOLKIT_PROGRAM="train.py").folders.code == platform_case.base / "code"
    assert (
        platform_case.job(TOOLKIT_PROGRAM="trian.py").folders.code == platform_case.base / "code"
    )  # The error names this folder.


def test_variables_win_over_the_job_file_name_by_name(platform_case: Asked) -> None:
    job = platform_case.job(TOOLKIT_JOB=str(platform_case.file(JOB)), TOOLKIT_HYPERPARAMETERS='{"epochs": 9}')

    assert job.spec.hyperparameters == {"epochs": 9, "optimizer": "adam", "version": "1.0"}


def test_mounted_documents_are_read_as_sagemakers_are_and_the_job_file_wins(platform_case: Asked) -> None:
    platform_case.document("hyperparameters.json", {"epochs": "1", "batch": "32"})
    platform_case.document("inputdataconfig.json", {"train": {"TrainingInputMode": "FastFile"}})
    platform_case.document("metric-definition-regex.json", [{"Name": "acc", "Regex": "acc=(.*)"}])
    platform_case.document("checkpointconfig.json", {"LocalPath": "/opt/ml/kept"})
    (platform_case.base / "code").mkdir()

    file = platform_case.file('script = "train.py"\n[hyperparameter]\nepochs = 5\n')
    job = platform_case.job(TOOLKIT_JOB=str(file))

    assert job.spec.hyperparameters == {"epochs": 5, "batch": 32}
    assert [(channel.name, channel.mode) for channel in job.spec.channels] == [("train", "FastFile")]
    assert job.spec.metric_definitions == (("acc", "acc=(.*)"),)
    assert job.folders.checkpoints == platform_case.base / "kept"


def test_the_job_files_distribution_wins_over_that_of_documents_which_add_what_it_leaves_open(
    platform_case: Asked,
) -> None:
    platform_case.document(
        "hyperparameters.json",
        {"sagemaker_torch_distributed_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "4"},
    )

    mpi = platform_case.job(TOOLKIT_JOB=str(platform_case.file('script = "train.py"\ndistribution = "mpi"\n')))
    none = platform_case.job(TOOLKIT_JOB=str(platform_case.file('script = "train.py"\ndistribution = "none"\n')))
    silent = platform_case.job(TOOLKIT_JOB=str(platform_case.file('script = "train.py"\n')))

    assert (mpi.strategy.name, mpi.processes_per_host) == ("mpi", 4)
    assert (none.strategy.name, none.cluster.taking_part) == ("script", ())
    assert (silent.strategy.name, silent.processes_per_host) == ("torch_distributed", 4)


def test_a_source_that_an_image_names_does_not_replace_the_job_files_own_folder(platform_case: Asked) -> None:
    baked: dict[str, Any] = {"SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/baked"}

    assert platform_case.job(TOOLKIT_JOB=str(platform_case.file('script = "train.py"\n')), **baked).spec.source is None
    (platform_case.base / "code").mkdir()
    assert platform_case.job(SAGEMAKER_PROGRAM="train.py", **baked).spec.source == "/opt/ml/baked"


def test_what_names_the_script_is_known_for_errors(platform_case: Asked) -> None:
    file = platform_case.file('script = "train.py"\n')

    assert platform_case.job(TOOLKIT_JOB=str(file)).spec.entry_from == str(file)
    assert platform_case.job(TOOLKIT_PROGRAM=str(platform_case.code / "train.py")).spec.entry_from == "TOOLKIT_PROGRAM"
    assert platform_case.job(SAGEMAKER_PROGRAM="train.py").spec.entry_from == "SAGEMAKER_PROGRAM"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("distribution = { mpi = true }", "$.distribution.mpi: expected object, got bool"),
        ("distribution = { mpi = { enabled = 'yes' } }", "$.distribution.mpi.enabled: expected bool, got str"),
        (
            "distribution = { mpi = { enabled = true, processes_per_host = 'many' } }",
            "$.distribution.mpi.processes_per_host: expected int",
        ),
        (
            "distribution = { smdistributed = { dataparallel = 1 } }",
            "$.distribution.smdistributed.dataparallel: expected object",
        ),
        ("distribution = { instance_groups = 'gpus' }", "$.distribution.instance_groups: expected array, got str"),
    ],
)
def test_a_wrong_distribution_is_told_where_it_stands(platform_case: Asked, text: str, reason: str) -> None:
    file = platform_case.file(f"script = 'train.py'\n{text}\n")

    with pytest.raises(ContractError) as caught:
        platform_case.job(TOOLKIT_JOB=str(file))

    assert str(caught.value).startswith(f"{file}: {reason}")


def test_mounted_documents_alone_may_name_the_script(platform_case: Asked) -> None:
    platform_case.document("hyperparameters.json", {"sagemaker_program": '"train.py"', "sagemaker_mpi_enabled": "true"})

    job = platform_case.job()

    assert (job.spec.entry, job.folders.code) == ("train.py", platform_case.base / "code")
    assert job.strategy.name == "mpi"


def test_a_mounted_channel_wins_over_its_path_in_the_job_file(platform_case: Asked, tmp_path: Path) -> None:
    (platform_case.base / "input/data/train").mkdir(parents=True)

    job = platform_case.job(
        TOOLKIT_JOB=str(platform_case.file('script = "train.py"\n[channel]\ntrain = "../data"\ntest = "../test"\n'))
    )

    folders = {channel.name: channel.folder for channel in job.spec.channels}
    assert folders == {"train": platform_case.base / "input/data/train", "test": tmp_path / "test"}


def test_a_data_folder_that_cannot_be_listed_is_not_one_without_channels(
    platform_case: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = platform_case.base / "input/data"
    (data / "train").mkdir(parents=True)
    unlistable(monkeypatch, data)

    with pytest.raises(
        PlatformError, match=rf"^{data}: expected a folder, found one that cannot be read \(Input/output"
    ):
        platform_case.job(TOOLKIT_PROGRAM="train.py")


def test_a_channel_that_cannot_be_looked_at_is_named(platform_case: Asked) -> None:
    data = platform_case.base / "input/data"
    data.mkdir(parents=True)
    (data / "train").symlink_to("train")

    with pytest.raises(ContractError, match=rf"^{data}/train: expected a folder, found one that cannot be read \(Too"):
        platform_case.job(TOOLKIT_PROGRAM="train.py")


@pytest.mark.parametrize("name", ["job.yaml", "job.json"])
def test_a_job_file_that_cannot_be_looked_at_is_no_job_without_one(platform_case: Asked, name: str) -> None:
    config = platform_case.base / "input/config"
    config.mkdir(parents=True, exist_ok=True)
    (config / name).symlink_to(name)

    with pytest.raises(ContractError, match=rf"^{config}/{name}: expected a job file, found one .*Too many levels"):
        platform_case.job(TOOLKIT_PROGRAM="train.py")


def test_a_channel_in_storage_gets_a_folder_below_the_data_unless_one_is_mounted(platform_case: Asked) -> None:
    data = platform_case.base / "input/data"
    (data / "mounted").mkdir(parents=True)
    (data / "fetched").mkdir()
    (data / ".fetched.uri").write_text("s3://b/fetched")
    names = ("new", "mounted", "fetched")

    job = platform_case.job(
        TOOLKIT_PROGRAM="train.py", TOOLKIT_CHANNELS=",".join(f"{name}=s3://b/{name}" for name in names)
    )

    assert {channel.name: channel.folder for channel in job.spec.channels} == {name: data / name for name in names}
    assert {channel.name: channel.uri for channel in job.spec.channels} == {
        "new": "s3://b/new",
        "mounted": "",
        "fetched": "s3://b/fetched",
    }


@pytest.mark.parametrize(("path", "is_there"), [("nowhere", False), ("train.py", True), (".", True)])
def test_a_channel_that_leads_to_nothing_is_said(
    platform_case: Asked, path: str, is_there: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    platform_case.job(TOOLKIT_PROGRAM="train.py", TOOLKIT_CHANNELS=f"train={platform_case.code / path}")

    assert ("channel train: expected a folder or file, found nothing" in capfd.readouterr().err) != is_there


def test_every_mounted_folder_is_a_channel(platform_case: Asked) -> None:
    (platform_case.base / "input/data/extra").mkdir(parents=True)
    (platform_case.base / "input/data/..2026_data").mkdir()

    job = platform_case.job(TOOLKIT_JOB=str(platform_case.file('script = "train.py"\n')))

    assert [channel.name for channel in job.spec.channels] == ["extra"]


def test_instance_groups_are_dealt_out_over_the_hosts_in_order(platform_case: Asked) -> None:
    text = (
        'script = "train.py"\n'
        'distribution = { torch_distributed = { enabled = true }, instance_groups = ["gpu"] }\n'
        '[[instance_groups]]\nname = "cpu"\nhosts = 1\ninstance_type = "ml.c5.xlarge"\n'
        '[[instance_groups]]\nname = "gpu"\nhosts = 2\ninstance_type = "ml.p4d.24xlarge"\n'
    )

    job = platform_case.job(TOOLKIT_JOB=str(platform_case.file(text)), TOOLKIT_HOSTS="x-[8-10]", TOOLKIT_HOST="x-10")

    assert [group.hosts for group in job.cluster.groups] == [("x-8",), ("x-9", "x-10")]
    assert job.cluster.taking_part == ("x-9", "x-10")
    assert (job.cluster.current_group, job.cluster.instance_type) == ("gpu", "ml.p4d.24xlarge")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "$.script: expected the path of a script"),
        ("scrip = 'train.py'", "Did you mean script?"),
        ("script = 'train.py'\n[channel]\na = '/a:Pipe'", "$.channel.a: expected File or FastFile, found Pipe"),
        ("script = 'train.py'\n[channel]\na = '/a:ShardedByS3Key'", "$.channel.a: expected FullyReplicated"),
        ("script = 'train.py'\nrequirements = 'other.txt'", "$.requirements: expected"),
        (
            "script = 'train.py'\ninstance_groups = [{name = 'a', hosts = 1}, {name = 'b', hosts = 2}]",
            "$.instance-groups: expected 2 hosts in all, as the orchestrator gave, found 3",
        ),
    ],
)
def test_what_cannot_be_given_is_refused_by_the_files_name(platform_case: Asked, text: str, reason: str) -> None:
    file = platform_case.file(text)

    with pytest.raises(ContractError) as caught:
        platform_case.job(TOOLKIT_JOB=str(file), TOOLKIT_HOSTS="a,b", TOOLKIT_HOST="a")

    assert reason in str(caught.value)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({}, "expected a script to run, found none named and not just one in "),
        ({"TOOLKIT_JOB": "/nowhere/job.toml"}, "/nowhere/job.toml: expected a job file, found no folder /nowhere"),
        ({"TOOLKIT_PROGRAM": "train.py", "TOOLKIT_HYPERPARAMETERS": "[1]"}, "TOOLKIT_HYPERPARAMETERS: expected a JSON"),
        (
            {"TOOLKIT_PROGRAM": "train.py", "TOOLKIT_HYPERPARAMETERS": "epochs=5"},
            "TOOLKIT_HYPERPARAMETERS: expected a JSON object, as {\"epochs\": 5}, found 'epochs=5'",
        ),
        (
            {"TOOLKIT_PROGRAM": "train.py", "TOOLKIT_HYPERPARAMETERS": '{"a": ' + "[" * 100_000},
            "TOOLKIT_HYPERPARAMETERS: expected a JSON object",
        ),
        (
            {"TOOLKIT_PROGRAM": "train.py", "TOOLKIT_CHANNELS": "train"},
            "TOOLKIT_CHANNELS: expected NAME=PATH[:MODE], found 'train'",
        ),
        ({"TOOLKIT_PROGRAM": "train.py", "TOOLKIT_DISTRIBUTION": "ddpp"}, "TOOLKIT_DISTRIBUTION: expected one of"),
    ],
)
def test_wrong_variables_are_refused_by_name(platform_case: Asked, environ: dict[str, Any], reason: str) -> None:
    with pytest.raises(ContractError) as caught:
        platform_case.job(machine=MACHINE, **environ)

    assert reason in str(caught.value)


@pytest.mark.parametrize("host", ["../../x", "..", "-oProxyCommand=x", "a b"])
def test_a_host_whose_name_leads_elsewhere_is_refused_and_names_no_folder(
    platform_case: Asked, tmp_path: Path, host: str
) -> None:
    environ = {"TOOLKIT_BASE": str(tmp_path / "jobs/{job}/{host}"), "TOOLKIT_HOSTS": f"a,{host}", "TOOLKIT_HOST": host}
    environ["TOOLKIT_PLATFORM"] = "plain"

    with pytest.raises(ContractError) as caught:
        detect(environ).read(environ, settings.read(environ), MACHINE, Log(), interpreter="/python")

    assert str(caught.value).startswith("the job's hosts: expected a host's name or address")
    assert detect(environ).folders(environ).base == tmp_path / "jobs/unknown/unknown"


def test_the_base_may_hold_the_job_and_the_host(platform_case: Asked, tmp_path: Path) -> None:
    environ = {
        "TOOLKIT_BASE": str(tmp_path / "jobs/{job}/{host}"),
        "TOOLKIT_JOB": "job.toml",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "digits",
        "SLURM_PROCID": "1",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NODELIST": "n[1-2]",
    }

    assert detect(environ).folders(environ).base == tmp_path / "jobs/digits-7/n2"


def test_folders_are_told_even_where_the_place_cannot_be(tmp_path: Path) -> None:
    environ = {"TOOLKIT_BASE": str(tmp_path / "{host}"), "TOOLKIT_HOSTS": "a,b", "HOSTNAME": "c"}

    assert detect(environ).folders(environ).base == tmp_path / "unknown"


@pytest.mark.parametrize(
    ("environ", "stop_within_s"),
    [({}, 10), ({"TOOLKIT_STOP_WITHIN_S": "120"}, 120), ({"TOOLKIT_PLATFORM": "kubernetes"}, 30)],
    ids=["plain", "said", "a pod"],
)
def test_plain_docker_stops_within_its_own_ten_seconds(
    platform_case: Asked, environ: dict[str, str], stop_within_s: float
) -> None:
    file = str(platform_case.file('script = "train.py"\n'))
    machine = msgspec.structs.replace(MACHINE, engine=True)

    assert platform_case.job(machine=machine, TOOLKIT_JOB=file, **environ).stop_within_s == stop_within_s


def test_the_time_to_stop_is_the_orchestrators(platform_case: Asked) -> None:
    file = str(platform_case.file('script = "train.py"\n'))

    assert platform_case.job(TOOLKIT_JOB=file).grace_s == 20
    assert platform_case.job(TOOLKIT_JOB=file, TOOLKIT_STOP_WITHIN_S="130").grace_s == 120
    assert platform_case.job(TOOLKIT_JOB=file, TOOLKIT_STOP_WITHIN_S="15").grace_s == 10
    assert not platform_case.job(TOOLKIT_JOB=file).stopped_is_success


def test_vertex_keeps_models_and_checkpoints_in_the_jobs_bucket(platform_case: Asked) -> None:
    file = str(platform_case.file('script = "train.py"\n'))

    job = platform_case.job(
        TOOLKIT_JOB=file,
        TOOLKIT_PLATFORM="vertex",
        AIP_MODEL_DIR="gs://bucket/j/model",
        AIP_CHECKPOINT_DIR="gs://bucket/j/c",
    )

    assert job.folders.model == Path("/gcs/bucket/j/model")
    assert job.folders.checkpoints == Path("/gcs/bucket/j/c")


def test_kubeflows_job_runs_under_torchrun_with_its_master(platform_case: Asked) -> None:
    recorded = json.loads((Path(__file__).parents[2] / "data/platforms/kubeflow_train_job.json").read_bytes())

    file = str(platform_case.file('script = "train.py"\n'))
    job = platform_case.job(TOOLKIT_JOB=file, TOOLKIT_PLATFORM="kubeflow", **recorded["environ"])

    assert job.strategy.name == "torch_distributed"
    assert job.cluster.rank == 1
    assert (job.environ["MASTER_ADDR"], job.environ["MASTER_PORT"]) == ("digits-node-0-0.digits", "29400")
    assert not [name for name in job.environ if name.startswith("PET_")]


def test_the_environment_is_left_as_it_was(platform_case: Asked) -> None:
    environ_before = dict(os.environ)

    platform_case.job(TOOLKIT_JOB=str(platform_case.file(JOB)))

    assert dict(os.environ) == environ_before


@pytest.mark.parametrize(
    ("program", "file", "documented", "entry"),
    [
        ("a.py", "b.py", "d.py", "a.py"),
        (None, "b.py", "d.py", "b.py"),
        (None, None, "d.py", "c.py"),
        (None, None, None, "c.py"),
    ],
)
def test_what_is_said_for_the_job_wins_over_the_images_own_program(
    platform_case: Asked, program: str | None, file: str | None, documented: str | None, entry: str
) -> None:
    """TOOLKIT_PROGRAM, the job file, SAGEMAKER_PROGRAM, sagemaker_program."""
    for name in ("a.py", "b.py", "c.py", "d.py"):
        (platform_case.code / name).touch()
    environ: dict[str, Any] = {"SAGEMAKER_PROGRAM": "c.py"}
    if program is not None:
        environ["TOOLKIT_PROGRAM"] = str(platform_case.code / program)
    if file is not None:
        environ["TOOLKIT_JOB"] = str(platform_case.file(f"script = '{file}'\n"))
    if documented is not None:
        platform_case.document("hyperparameters.json", {"sagemaker_program": documented})

    assert platform_case.job(**environ).spec.entry == entry


def test_the_only_script_of_the_code_folder_needs_no_name(platform_case: Asked) -> None:
    code = platform_case.base / "code"
    code.mkdir()
    for name in ("train.py", "setup.py", "_hidden.py", "notes.txt"):
        (code / name).touch()

    assert platform_case.job().spec.entry == "train.py"

    (code / "other.sh").touch()
    with pytest.raises(ContractError, match="found none named"):
        platform_case.job()
