"""Environments of each orchestrator (tests/data/platforms, each with its source), and the place they tell."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolkit.errors import ContractError
from toolkit.platforms.place import Place
from toolkit.platforms.table import detect

FOLDER = Path(__file__).parents[1] / "data/platforms"
RECORDED: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_bytes()) for path in sorted(FOLDER.glob("*.json"))
}


def find(recorded: dict[str, Any]) -> Place:
    place: Place = import_module(f"toolkit.platforms.{recorded['platform']}").find(recorded["environ"])
    return place


def test_every_platform_has_recorded_environments() -> None:
    platforms = {recorded["platform"] for recorded in RECORDED.values()}

    assert platforms == {"sagemaker", "kubernetes", "kubeflow", "slurm", "vertex", "azureml", "plain"}


@pytest.mark.parametrize("name", RECORDED)
def test_an_environment_is_known_for_whose_it_is(name: str) -> None:
    assert detect(RECORDED[name]["environ"]).name == RECORDED[name]["platform"]


@pytest.mark.parametrize("name", [name for name, recorded in RECORDED.items() if "place" in recorded])
def test_the_place_is_told(name: str) -> None:
    told = msgspec.json.decode(msgspec.json.encode(find(RECORDED[name])))

    expected = RECORDED[name]["place"]
    assert {key: told[key] for key in expected} == expected


@pytest.mark.parametrize("name", [name for name, recorded in RECORDED.items() if "error" in recorded])
def test_what_cannot_be_served_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(ContractError) as caught:
        find(RECORDED[name])

    assert RECORDED[name]["error"] in str(caught.value)


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
