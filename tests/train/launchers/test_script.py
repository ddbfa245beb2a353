from typing import Any

import pytest

from tests.train.launchers.jobs import PYTHON, SCRATCH, job_of, script_of
from toolkit.job.plan import Resolves
from toolkit.settings import Settings
from toolkit.train.launchers.script import plan

TWO = ("algo-2", "algo-1")


def test_a_script_is_one_process_however_many_accelerators_there_are() -> None:
    planned = plan(job_of(gpus=8, per_host=8), SCRATCH)

    assert (planned.launcher, planned.role, planned.world_size, planned.modules) == ("script", "alone", 1, ())
    assert planned.phase.main.argv == (PYTHON, "train.py", "--epochs", "3", "--name", "two words")
    assert (planned.phase.main.rank, planned.phase.main.starts_ranks) == (0, ())


@pytest.mark.parametrize("current", TWO)
def test_every_host_of_several_runs_it_and_knows_the_leader(current: str) -> None:
    """Contract point 28."""
    planned = plan(job_of(hosts=TWO, current=current), SCRATCH)

    environ = planned.phase.main.environ
    assert planned.role == "alone"
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("algo-2", "7777")
    assert planned.phase.needs == tuple(Resolves(host=host, within_s=900) for host in TWO)


def test_one_host_is_told_nothing_of_a_network() -> None:
    environ = plan(job_of(), SCRATCH).phase.main.environ

    assert not {"NODE_RANK", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & set(environ)


def test_a_script_on_several_hosts_has_its_hosts_number_for_lightning() -> None:
    def node_rank(**more: Any) -> str | None:
        return plan(job_of(hosts=TWO, **more), SCRATCH).phase.main.environ.get("NODE_RANK")

    assert [node_rank(current=host) for host in TWO] == ["0", "1"]
    assert node_rank(current="algo-1", environ={"NODE_RANK": "7"}) == "7"
    assert node_rank(current="algo-1", taking_part=("algo-2",)) is None


def test_it_is_stopped_ten_seconds_before_the_platform_kills() -> None:
    assert plan(job_of(), SCRATCH).phase.main.stop.grace_s == 110
    assert plan(job_of(settings=Settings(grace_s=5)), SCRATCH).phase.main.stop.grace_s == 5


def test_it_runs_in_its_folder() -> None:
    assert plan(job_of(script=script_of("src/train.py")), SCRATCH).phase.main.cwd == script_of().folder
