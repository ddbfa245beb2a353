"""Each rank of JAX gets its GPUs and the address at which the ranks meet."""

import json
from typing import Any

import pytest

from tests.train.launchers.jobs import SCRATCH, job_of
from toolkit.errors import UserError
from toolkit.job.plan import ProcessSpec
from toolkit.train.launchers import jax

TWO = ("algo-1", "algo-2")


def main_of(**more: Any) -> ProcessSpec:
    return jax.plan(job_of("jax", **more), SCRATCH).phase.main


def devices(**more: Any) -> list[str | None]:
    ranks = json.loads(main_of(**more).launcher_environ["TOOLKIT_LOCAL_RANKS"])
    return [rank.get("JAX_LOCAL_DEVICE_IDS") for rank in ranks]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gpus": 2}, ["0", "1"]),
        ({"gpus": 4, "per_host": 2}, ["0,1", "2,3"]),
        ({"gpus": 4, "per_host": 1}, [None]),
        ({"per_host": 2}, [None, None]),
        ({"gpus": 2, "environ": {"JAX_LOCAL_DEVICE_IDS": "1"}}, [None, None]),
        ({"gpus": 2, "per_host": 3, "environ": {"JAX_PLATFORMS": "cpu"}}, [None, None, None]),
        ({"gpus": 2, "environ": {"JAX_PLATFORMS": "cuda,cpu"}}, ["0", "1"]),
    ],
)
def test_each_rank_gets_its_share_of_the_gpus(options: dict[str, Any], expected: list[str | None]) -> None:
    assert devices(**options) == expected


def test_gpus_that_cannot_be_shared_out_evenly_are_an_error() -> None:
    with pytest.raises(UserError, match="divides the host's 8 GPUs, found 3"):
        main_of(gpus=8, per_host=3)


def test_ranks_are_numbered_over_the_hosts() -> None:
    spec = main_of(hosts=TWO, current="algo-2", per_host=2)

    assert spec.starts_ranks == (2, 3)
    assert [rank["RANK"] for rank in json.loads(spec.launcher_environ["TOOLKIT_LOCAL_RANKS"])] == ["2", "3"]


@pytest.mark.parametrize(
    ("options", "coordinator", "bind"),
    [
        ({}, "127.0.0.1:0", "127.0.0.1:0"),
        ({"environ": {"MASTER_PORT": "20001"}}, "127.0.0.1:20001", "127.0.0.1:20001"),
        ({"hosts": TWO, "current": "algo-2"}, "algo-1:7777", None),
        ({"hosts": TWO, "addresses": {"algo-1": "fd00::1"}}, "[fd00::1]:7777", None),
        ({"environ": {"JAX_COORDINATOR_ADDRESS": "10.0.0.9:1"}}, "10.0.0.9:1", None),
    ],
)
def test_the_coordinator_is_the_leader_unless_the_user_names_one(
    options: dict[str, Any], coordinator: str, bind: str | None
) -> None:
    environ = main_of(**options).environ

    assert environ["JAX_COORDINATOR_ADDRESS"] == coordinator
    assert environ.get("JAX_COORDINATOR_BIND_ADDRESS") == bind
