"""Recorded environments of each orchestrator (tests/data/platforms, each with its source), and their places."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolkit import settings
from toolkit.errors import ContractError
from toolkit.settings import Settings
from toolkit.train.platforms import mpi_job
from toolkit.train.platforms.place import Place
from toolkit.train.platforms.table import detect

FOLDER = Path(__file__).parents[2] / "data/platforms"
RECORDED: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_bytes()) for path in sorted(FOLDER.glob("*.json"))
}


def find(recorded: dict[str, Any]) -> Place:
    environ = recorded["environ"]
    platform = import_module(f"toolkit.train.platforms.{recorded['platform']}")
    place: Place = platform.find(environ, settings.read(environ))
    return place


@pytest.fixture
def recorded(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The recording that the test's parameter names, with its hostfile written to this machine."""
    recorded = RECORDED[request.param]
    if "hostfile" not in recorded:
        return recorded
    file = tmp_path / "hostfile"
    file.write_text(recorded["hostfile"])
    environ = {name: value.replace(mpi_job.MOUNTED, str(file)) for name, value in recorded["environ"].items()}
    monkeypatch.setattr(mpi_job, "MOUNTED", str(file))
    return {**recorded, "environ": environ}


def test_every_platform_has_recorded_environments() -> None:
    platforms = {recorded["platform"] for recorded in RECORDED.values()}

    assert platforms == {"sagemaker", "kubernetes", "kubeflow", "slurm", "vertex", "azureml", "plain"}


@pytest.mark.parametrize("name", RECORDED)
def test_an_environment_is_known_for_whose_it_is(name: str) -> None:
    assert detect(RECORDED[name]["environ"]).name == RECORDED[name]["platform"]


def having(key: str) -> list[str]:
    return [name for name, recorded in RECORDED.items() if key in recorded]


@pytest.mark.parametrize("recorded", having("place"), indirect=True)
def test_the_place_is_told(recorded: dict[str, Any]) -> None:
    place = msgspec.json.decode(msgspec.json.encode(find(recorded)))
    fields = {**place, **place["cluster"]}

    expected = recorded["place"]
    assert {key: fields[key] for key in expected} == expected


@pytest.mark.parametrize("recorded", having("error"), indirect=True)
def test_what_cannot_be_served_is_refused_with_a_reason(recorded: dict[str, Any]) -> None:
    with pytest.raises(ContractError) as caught:
        find(recorded)

    assert recorded["error"] in str(caught.value)


def test_an_mpijobs_words_for_its_own_mpirun_do_not_reach_ours() -> None:
    environ = {name: value for platform in having("hostfile") for name, value in RECORDED[platform]["environ"].items()}
    operator_names = {name for name in environ if name.startswith(("OMPI_", "HYDRA_", "I_MPI_"))}

    assert operator_names - set(mpi_job.OPERATOR_VARIABLES) == set()


@pytest.mark.parametrize(
    ("hostfile", "reason"),
    [
        ("", "expected lines as HOST slots=1 or HOST:1, found 'none'"),
        ("digits-launcher.digits slots=two", "found 'digits-launcher.digits slots=two'"),
        ("digits-launcher:2\ndigits-worker-0:1", "expected the same slots for each host, found 1 and 2"),
    ],
)
def test_a_hostfile_of_another_form_is_refused_by_its_name(tmp_path: Path, hostfile: str, reason: str) -> None:
    file = tmp_path / "hostfile"
    file.write_text(hostfile)
    environ = {"K_MPI_JOB_ROLE": "launcher", "HOSTNAME": "digits-launcher", "HYDRA_HOST_FILE": str(file)}

    with pytest.raises(ContractError) as caught:
        mpi_job.find(environ, Settings())

    assert str(caught.value).startswith(f"{file}: ")
    assert reason in str(caught.value)


def test_torchruns_own_variables_do_not_reach_our_torchrun() -> None:
    environ = {**RECORDED["kubeflow_train_job"]["environ"], "PET_RDZV_BACKEND": "c10d", "PET_LOG_DIR": "/logs"}

    place = find({"platform": "kubeflow", "environ": environ})

    assert {"PET_NNODES", "PET_NODE_RANK", "PET_RDZV_BACKEND"} <= set(place.dropped)
    assert "PET_LOG_DIR" not in place.dropped


def test_two_jobs_on_one_node_get_ports_that_differ() -> None:
    environ = RECORDED["slurm_srun"]["environ"]
    places = [find({"platform": "slurm", "environ": {**environ, "SLURM_JOB_ID": str(job)}}) for job in range(7, 107)]

    ports = {int(place.environ["MASTER_PORT"]) for place in places}

    assert len(ports | {port - 1 for port in ports}) == 200
    assert all(20_001 < port < 32_000 for port in ports)


@pytest.mark.parametrize("ends", ["", "9" * 18, "\N{SUPERSCRIPT TWO}", "1795241805"])
@pytest.mark.parametrize("job", ["7", "\N{SUPERSCRIPT TWO}", "9" * 5000])
def test_a_number_of_slurms_that_is_none_ends_no_job(job: str, ends: str) -> None:
    environ = {**RECORDED["slurm_srun"]["environ"], "SLURM_JOB_ID": job, "SLURM_JOB_END_TIME": ends}

    place = find({"platform": "slurm", "environ": environ})

    assert place.notes == ("Slurm ends this job at 2026-11-21 06:16:45 UTC",) * (ends == "1795241805")


def test_one_component_of_a_heterogeneous_job_says_that_the_others_take_no_part() -> None:
    environ = {**RECORDED["slurm_srun"]["environ"], "SLURM_HET_SIZE": "2"}

    (note,) = find({"platform": "slurm", "environ": environ}).notes

    assert "the nodes of the other components of 2 take no part" in note


@pytest.mark.parametrize(
    ("platform", "environ", "reason"),
    [
        ("vertex", {"CLUSTER_SPEC": "[" * 100_000}, 'CLUSTER_SPEC: expected {"cluster": '),
        ("vertex", {"CLUSTER_SPEC": '{"cluster": {"pool": "a:22"}, "task": {}}'}, "CLUSTER_SPEC: expected"),
        ("vertex", {"CLUSTER_SPEC": '{"cluster": {"pool": ["a:22"]}, "task": null}'}, "CLUSTER_SPEC: expected"),
        # A step with --het-group=0,1 of one node each, by srun's manual (25.05).
        (
            "slurm",
            {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n2", "SLURM_HET_SIZE": "2", "SLURM_NODEID": "1"},
            "SLURM_NODEID: expected a step in one component of the heterogeneous job, found node 1 of",
        ),
    ],
)
def test_variables_that_describe_no_place_are_refused_by_name(
    platform: str, environ: dict[str, str], reason: str
) -> None:
    with pytest.raises(ContractError) as caught:
        find({"platform": platform, "environ": environ})

    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("platform", "environ", "how"),
    [
        ("plain", {"NNODES": "2", "NODE_RANK": "1"}, "set MASTER_ADDR, or TOOLKIT_HOSTS"),
        (
            "plain",
            {"NNODES": "2", "MASTER_ADDR": "a", "RANK": "1", "WORLD_SIZE": "2"},
            "set NODE_RANK, or TOOLKIT_HOSTS",
        ),
        ("plain", {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, "srun --ntasks-per-node=1 train"),
        (
            "azureml",
            {"AZUREML_RUN_ID": "r", "AZUREML_NODE_COUNT": "2"},
            "set MASTER_ADDR and NODE_RANK, or TOOLKIT_HOSTS",
        ),
        ("plain", {"NNODES": "10"}, "set MASTER_ADDR and NODE_RANK, or TOOLKIT_HOSTS"),
        ("plain", {"NNODES": "1"}, ""),
        ("plain", {"NNODES": "x", "SLURM_JOB_NUM_NODES": "1"}, ""),
        ("plain", {"NNODES": "2", "TOOLKIT_HOSTS": "a"}, ""),
    ],
)
def test_a_host_that_trains_by_itself_though_the_job_has_more_says_so(
    platform: str, environ: dict[str, str], how: str
) -> None:
    notes = find({"platform": platform, "environ": environ}).notes

    assert [how in note and "it trains by itself" in note for note in notes] == [True] * bool(how)


def test_a_list_of_hosts_that_slurm_does_not_need_is_said_to_be_ignored() -> None:
    environ = {**RECORDED["slurm_srun"]["environ"], "TOOLKIT_HOSTS": "a,b"}

    assert find({"platform": "slurm", "environ": environ}).notes[-1].startswith("TOOLKIT_HOSTS is not read")
