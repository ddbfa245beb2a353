import json
from pathlib import Path

import msgspec
import pytest

from tests.job.file.made import job_file
from toolkit.commands.simulate import documents
from toolkit.commands.simulate.documents import HostSetup
from toolkit.job.cluster import Group
from toolkit.job.documents.writing import distribution_flags

SETUP = HostSetup(host="algo-1", base=Path("/j/opt/ml"), submitted=Path("/j/sourcedir.tar.gz"), port=4321, cpus=8)


def test_processes_per_host_go_where_each_launcher_looks() -> None:
    mpi = job_file(distribution="mpi", processes_per_host=3)

    flags = distribution_flags(mpi)
    environ = documents.environment(mpi, SETUP, {}, "r")

    assert flags["sagemaker_mpi_num_of_processes_per_host"] == 3
    assert environ["TOOLKIT_PROCESSES_PER_HOST"] == "3"


def test_resources_are_told_in_todays_form() -> None:
    assert documents.resources(job_file(), "algo-2") == {
        "current_host": "algo-2",
        "current_instance_type": "local",
        "current_group_name": "homogeneousCluster",
        "hosts": ["algo-1", "algo-2"],
        "instance_groups": [
            {
                "instance_group_name": "homogeneousCluster",
                "instance_type": "local",
                "hosts": ["algo-1", "algo-2"],
            }
        ],
        "network_interface_name": "lo",
        "topology": None,
    }


def test_a_heterogeneous_cluster_tells_each_host_its_group() -> None:
    groups = (
        Group(name="cpu", hosts=("algo-1",), instance_type="ml.c5.xlarge"),
        Group(name="gpu", hosts=("algo-2",), instance_type="ml.p4d.24xlarge"),
    )
    job = job_file(groups=groups, distribution={"instance_groups": ["gpu"], "torch_distributed": {"enabled": True}})

    documents_resources = documents.resources(job, "algo-2")
    flags = distribution_flags(job)

    assert (documents_resources["current_group_name"], documents_resources["current_instance_type"]) == (
        "gpu",
        "ml.p4d.24xlarge",
    )
    assert [group["hosts"] for group in documents_resources["instance_groups"]] == [["algo-1"], ["algo-2"]]
    assert flags["sagemaker_distribution_instance_groups"] == ["gpu"]
    assert flags["sagemaker_instance_type"] == "ml.p4d.24xlarge"


def test_checkpoints_have_a_document_only_if_asked_for() -> None:
    without = documents.documents(job_file(), SETUP, "r")
    written = documents.documents(job_file(checkpoints=Path("/keep")), SETUP, "r")

    assert "checkpointconfig.json" not in without
    assert written["checkpointconfig.json"] == {"LocalPath": "/j/opt/ml/checkpoints", "S3Uri": "file:///keep"}


def test_metric_definitions_are_a_list_as_in_the_request() -> None:
    written = documents.documents(job_file(metric_definitions=(("loss", "loss=(.*)"),)), SETUP, "r")

    assert written["metric-definition-regex.json"] == [{"Name": "loss", "Regex": "loss=(.*)"}]
    assert json.loads(json.dumps(written)) == written


def test_the_environment_is_the_persons_then_the_platforms_then_the_jobs() -> None:
    shell = {"PATH": "/bin", "HOME": "/root", "AWS_REGION": "mars", "TOOLKIT_GRACE_S": "5"}
    job = job_file(environment={"HOME": "/job", "MODE": "fast"})

    written = documents.environment(job, SETUP, shell, "mars")

    assert written == {
        "PATH": "/bin",
        "HOME": "/job",
        "MODE": "fast",
        "TOOLKIT_GRACE_S": "5",
        "TOOLKIT_LOG_FAILURE": "brief",
        "TOOLKIT_MONITOR": "on",
        "OMP_NUM_THREADS": "4",
        "SAGEMAKER_BASE_DIR": "/j/opt/ml",
        "TRAINING_JOB_NAME": "job",
        "TRAINING_JOB_ARN": "arn:aws:sagemaker:mars:000000000000:training-job/job",
        "AWS_REGION": "mars",
        "TOOLKIT_PROGRAM": written["TOOLKIT_PROGRAM"],
        "MASTER_PORT": "4321",
        "TOOLKIT_HOST_ADDRESSES": "algo-1=127.0.0.1,algo-2=127.0.0.1",
    }


def test_the_script_of_the_command_line_wins_over_one_that_an_image_or_a_shell_names() -> None:
    contained = msgspec.structs.replace(SETUP, contained=True)
    shell = {"TOOLKIT_PROGRAM": "of-the-shell.py", "TOOLKIT_JOB": "of-the-shell.toml"}

    for setup in (SETUP, contained):
        written = documents.environment(job_file(), setup, shell, "r")

        assert (written["TOOLKIT_PROGRAM"], written.get("TOOLKIT_JOB")) == (job_file().entry, None)


@pytest.mark.parametrize(
    "name", ["SM_MODEL_DIR", "SAGEMAKER_PROGRAM", "RANK", "WORLD_SIZE", "MASTER_ADDR", "TF_CONFIG", "SLURM_NTASKS"]
)
def test_what_an_outer_job_set_is_not_handed_on(name: str) -> None:
    assert name not in documents.environment(job_file(), SETUP, {name: "1"}, "r")


def test_threads_that_a_person_chose_stay() -> None:
    assert documents.environment(job_file(), SETUP, {"OMP_NUM_THREADS": "7"}, "r")["OMP_NUM_THREADS"] == "7"


def test_one_process_alone_may_take_all_cores() -> None:
    alone = job_file(groups=(Group(name="homogeneousCluster", hosts=("algo-1",), instance_type="local"),))

    assert "OMP_NUM_THREADS" not in documents.environment(alone, SETUP, {}, "r")


def test_the_monitor_is_on_unless_the_job_or_the_person_says_otherwise() -> None:
    def monitor(variables: dict[str, str], chosen: bool | None = None, *, contained: bool = False) -> str:
        setup = msgspec.structs.replace(SETUP, contained=contained)
        return documents.environment(job_file(monitor=chosen), setup, variables, "r")["TOOLKIT_MONITOR"]

    assert monitor({}) == monitor({}, chosen=True) == "on"
    assert monitor({}, chosen=False) == "off"
    assert monitor({"TOOLKIT_MONITOR": "0"}) == monitor({"TOOLKIT_MONITOR": "0"}, contained=True) == "0"
