"""The digits workload under Horovod, as a person starts it: by itself, and as a job on two hosts."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.horovod.bed import TORCH, WithTorch, lacks

pytestmark = [pytest.mark.horovod, pytest.mark.skipif(bool(lacks(TORCH)), reason=str(lacks(TORCH)))]

WORKLOAD = Path(__file__).parents[2] / "entrypoints/horovod_digits"


def alone(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """Start the script as one process with its folders below *folder*: no MPI, nobody to meet."""
    environ = {**os.environ, "SM_MODEL_DIR": str(folder / "model"), "SM_OUTPUT_DATA_DIR": str(folder / "output")}
    environ |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "OMP_NUM_THREADS": "1"}
    argv = [str(TORCH / "python"), str(WORKLOAD / "train.py"), "--epochs", "2", "--width", "4", "--log-interval", "1"]
    return subprocess.Popen([*argv, *words], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.long
def test_a_run_that_was_stopped_ends_with_the_very_weights_of_one_that_was_not(tmp_path: Path) -> None:
    single = alone(tmp_path / "whole")
    stopped = alone(tmp_path / "stopped")
    assert stopped.stdout is not None
    for line in stopped.stdout:
        if "step=3 " in line:
            stopped.send_signal(signal.SIGTERM)
            break
    rest = stopped.communicate(timeout=120)[0]
    assert stopped.returncode == 0
    assert "stopped on request: checkpoint saved" in rest
    assert not (tmp_path / "stopped/model").exists()

    resumed = alone(tmp_path / "stopped")
    console = resumed.communicate(timeout=120)[0]
    single.communicate(timeout=120)

    assert "resumed from" in console
    assert (single.returncode, resumed.returncode) == (0, 0)
    assert json.loads((tmp_path / "stopped/model/metadata.json").read_text())["steps"] == 44
    models = [(tmp_path / name / "model/model.pt").read_bytes() for name in ("whole", "stopped")]
    assert models[0] == models[1]

    refused = alone(tmp_path / "stopped", "--width", "5")
    console = refused.communicate(timeout=120)[0]
    assert refused.returncode == 1
    assert "use another folder" in console


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11")
@pytest.mark.long
def test_the_job_reads_95_of_100_digits_on_two_hosts(tmp_path: Path) -> None:
    with WithTorch(tmp_path, str(WORKLOAD / "job.toml")) as job:
        assert job.end() == 0, job.console

    facts = job.report
    assert facts["metrics"]["accuracy"] >= 0.95
    assert list(facts["metrics"]) == ["epoch", "step", "loss", "accuracy", "step_time"]
    model = job.archive("model.tar.gz")
    assert sorted(model) == ["metadata.json", "model.pt"]
    assert json.loads(model["metadata.json"])["ranks"] == 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11")
@pytest.mark.long
def test_all_ranks_stop_after_the_same_step_and_go_on_from_it(tmp_path: Path) -> None:
    words = ("--checkpoints", str(tmp_path / "kept"), "--hyperparameter", "epochs=3")
    with WithTorch(tmp_path, str(WORKLOAD / "job.toml"), *words) as stopped:
        stopped.until("epoch=1 step=10 ")
        stopped.signal(signal.SIGTERM)
        assert stopped.end() == 143

    assert stopped.codes == {"algo-1": 0, "algo-2": 0}
    assert stopped.all_ended_within(60, hosts=2)
    with WithTorch(tmp_path, str(WORKLOAD / "job.toml"), "--replace", *words) as resumed:
        assert resumed.end() == 0, resumed.console
    assert "resumed from" in resumed.console
    assert resumed.report["metrics"]["step"] == 66
