"""TensorFlow 2.21 itself on two hosts: what workers and parameter servers compute, how they stop, fail and end."""

import re
import signal
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun
from tests.tensorflow.bed import InBed, needs_bed

pytestmark = needs_bed
WORKERS = ("--hosts", "2", "--distribution", "multi_worker_mirrored_strategy")
SERVERS = ("--hosts", "2", "--distribution", "parameter_server")


def failure(job: ToolkitRun, host: str) -> str:
    return (job.folder / f"hosts/{host}/opt/ml/output/failure").read_text()


def test_workers_train_one_model_on_two_hosts(tmp_path: Path) -> None:
    with InBed(tmp_path, "tf_workers.py", *WORKERS) as job:
        assert job.end() == 0, job.console

    by_worker = dict(re.findall(r"worker (\d) loss=\S+ weights=([0-9a-f]{64})", job.console))
    assert set(by_worker) == {"0", "1"}
    assert len(set(by_worker.values())) == 1
    assert "worker 0 of 2, log level 1" in job.console
    assert "weights.txt" in job.archive("model.tar.gz")


@pytest.mark.parametrize(
    ("end", "code", "cause"),
    [
        ("raise", 1, 'ErrorMessage "FileNotFoundError: no shard 7 (at '),
        pytest.param("exit", 3, "code 3", marks=pytest.mark.long),
    ],
)
def test_the_worker_that_fails_is_the_cause_on_both_hosts(tmp_path: Path, end: str, code: int, cause: str) -> None:
    """The other one then fails, too: TensorFlow tells it that its peer is gone."""
    with InBed(tmp_path, "tf_workers.py", *WORKERS, "--hyperparameter", f"end={end}") as job:
        assert job.end() == code, job.console

    for host in ("algo-1", "algo-2"):
        assert cause in failure(job, host)
        assert "host algo-2, rank 1" in failure(job, host)
    assert set(job.codes.values()) == {code}
    assert job.all_ended_within(60, hosts=2)


@pytest.mark.long
def test_a_stop_reaches_workers_on_both_hosts_and_they_save(tmp_path: Path) -> None:
    with InBed(tmp_path, "tf_workers.py", *WORKERS, "--hyperparameter", "end=waits") as job:
        job.until("is at step 50", times=2)
        job.signal(signal.SIGTERM)
        assert job.end() == 143, job.console

    assert job.codes == {"algo-1": 0, "algo-2": 0}
    assert job.console.count("saved on request") == 2


def test_scripts_of_tensorflow_1_train_against_the_servers_of_both_hosts(tmp_path: Path) -> None:
    with InBed(tmp_path, "tf_servers_v1.py", *SERVERS) as job:
        assert job.end() == 0, job.console

    assert "/job:master/task:0 among ['master', 'ps', 'worker'], cloud" in job.console
    for name in ("/job:master/task:0", "/job:worker/task:0"):
        assert f"{name} has variables on /job:ps/task:0 and /job:ps/task:1" in job.console
        assert f"{name} ended, loss=0.0" in job.console
    assert job.all_ended_within(60, hosts=2)


@pytest.mark.long
def test_a_stop_lets_both_tasks_save_what_the_servers_hold(tmp_path: Path) -> None:
    with InBed(tmp_path, "tf_servers_v1.py", *SERVERS, "--hyperparameter", "end=waits") as job:
        job.until(" trains", times=2)
        job.signal(signal.SIGTERM)
        assert job.end() == 143, job.console

    assert job.codes == {"algo-1": 0, "algo-2": 0}
    assert job.console.count("saved (8, 1) on request") == 2
    assert job.all_ended_within(60, hosts=2)


@pytest.mark.long
def test_a_task_that_fails_ends_the_servers_too_and_is_the_cause(tmp_path: Path) -> None:
    with InBed(tmp_path, "tf_servers_v1.py", *SERVERS, "--hyperparameter", "end=raise") as job:
        assert job.end() == 1, job.console

    for host in ("algo-1", "algo-2"):
        assert 'ErrorMessage "FileNotFoundError: no shard 7 (at ' in failure(job, host)
    assert job.all_ended_within(60, hosts=2)


@pytest.mark.long
def test_tensorflow_2s_parameter_server_strategy_finds_its_chief_worker_and_servers(tmp_path: Path) -> None:
    """Its workers serve for ever: they are ended after the chief."""
    with InBed(tmp_path, "tf_servers_v2.py", *SERVERS) as job:
        assert job.end() == 0, job.console

    assert "variables on /job:ps/replica:0/task:0/device:CPU:0 and /job:ps/replica:0/task:1/device:CPU:0" in job.console
    assert "the chief ended, loss=0.0" in job.console
    assert job.codes == {"algo-1": 0, "algo-2": 0}
    assert job.all_ended_within(60, hosts=2)


@pytest.mark.long
def test_workers_decide_together_whether_they_train_compiled(tmp_path: Path) -> None:
    """A compiled step and a native one use other keys for their collectives: workers that differ wait for ever."""
    with InBed(tmp_path, "tf_workers_compiled.py", *WORKERS, TOOLKIT_COMPILE="auto") as job:
        assert job.end() == 0, job.console

    decisions = re.findall(r"(runs natively|stays compiled): (the model's forward .* pairs of steps)", job.console)
    assert len(decisions) == 2
    assert decisions[0] == decisions[1]
    assert len(set(re.findall(r"worker \d loss=(\S+)", job.console))) == 1


@pytest.mark.parametrize("which", ["1", "0,1"])
@pytest.mark.long
def test_a_model_that_not_all_workers_can_compile_runs_natively_on_all(tmp_path: Path, which: str) -> None:
    words = (*WORKERS, "--hyperparameter", f"strings-on={which}")
    with InBed(tmp_path, "tf_workers_compiled.py", *words, TOOLKIT_COMPILE="on") as job:
        assert job.end() == 0, job.console

    reasons = re.findall(r"runs natively: the model's forward and backward pass cannot be compiled: (.*)", job.console)
    assert len(reasons) == 2
    assert reasons.count("another rank cannot compile it") == (which == "1")
    assert len(set(re.findall(r"worker \d loss=(\S+)", job.console))) == 1
