"""The digits workload, as a person starts it: by itself, and as a job on two hosts."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun

MISSING = [name for name in ("torch", "sklearn") if find_spec(name) is None]
pytestmark = [pytest.mark.torch, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")]

WORKLOAD = Path(__file__).parents[2] / "entrypoints/vit_digits"
SMALL = ("--epochs", "2", "--dim", "16", "--depth", "1", "--heads", "2", "--patch-size", "4", "--log-interval", "1")


def alone(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """Start the script as one process with its folders below *folder*."""
    folders = {"SM_MODEL_DIR": str(folder / "model"), "SM_OUTPUT_DATA_DIR": str(folder / "output")}
    environ = {**os.environ, **folders, "OMP_NUM_THREADS": "1"}  # More threads than cores wait for each other.
    argv = [sys.executable, str(WORKLOAD / "train.py"), *SMALL, *words]
    return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_it_trains_alone_on_a_channels_own_images(tmp_path: Path) -> None:
    import numpy as np

    random = np.random.default_rng(0)
    np.savez(tmp_path / "digits.npz", images=random.uniform(0, 16, (100, 8, 8)), labels=random.integers(0, 10, 100))

    process = alone(tmp_path, "--train", str(tmp_path), "--batch-size", "40")
    console = process.communicate(timeout=300)[0]

    assert process.returncode == 0, console
    assert "training on 80 images, 20 held out" in console
    assert "epoch=2 step=4 loss=" in console
    about = json.loads((tmp_path / "model/metadata.json").read_text())
    assert (about["steps"], about["labels"]) == (4, list(range(10)))
    assert (tmp_path / "model/model.pt").stat().st_size > 0
    assert sum(map(sum, json.loads((tmp_path / "output/confusion.json").read_text()))) == 20


@pytest.mark.long
def test_a_run_that_was_stopped_ends_with_the_very_weights_and_refuses_another_model(tmp_path: Path) -> None:
    single = alone(tmp_path / "whole")
    stopped = alone(tmp_path / "stopped")
    assert stopped.stdout is not None
    for line in stopped.stdout:
        if "step=3 " in line:
            stopped.send_signal(signal.SIGTERM)
            break
    rest = stopped.communicate(timeout=300)[0]
    assert stopped.returncode == 0
    assert "stopped on request: checkpoint saved" in rest
    assert not (tmp_path / "stopped/model").exists()

    resumed = alone(tmp_path / "stopped")
    console = resumed.communicate(timeout=300)[0]
    single.communicate(timeout=300)

    assert "resumed from" in console
    assert (single.returncode, resumed.returncode) == (0, 0)
    assert weights(tmp_path / "whole") == weights(tmp_path / "stopped")

    refused = alone(tmp_path / "stopped", "--dim", "32")
    console = refused.communicate(timeout=300)[0]
    assert refused.returncode == 1
    assert "use another folder" in console


def weights(folder: Path) -> dict[str, list[float]]:
    import torch

    state = torch.load(folder / "model/model.pt", weights_only=True)
    return {name: weight.flatten().tolist() for name, weight in state.items()}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11")
def test_the_job_reads_95_of_100_digits_on_two_hosts(tmp_path: Path) -> None:
    with ToolkitRun(tmp_path, str(WORKLOAD / "job.toml")) as job:
        assert job.end() == 0, job.console

    facts = job.report
    assert facts["metrics"]["accuracy"] >= 0.95
    assert list(facts["metrics"]) == ["epoch", "step", "loss", "accuracy", "step_time"]
    assert sorted(job.archive("model.tar.gz")) == ["metadata.json", "model.pt"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11")
@pytest.mark.long
def test_all_ranks_stop_after_the_same_step_and_go_on_from_it(tmp_path: Path) -> None:
    words = ("--checkpoints", str(tmp_path / "kept"), "--hyperparameter", "epochs=3")
    with ToolkitRun(tmp_path, str(WORKLOAD / "job.toml"), *words) as stopped:
        stopped.until("epoch=1 step=10 ")
        stopped.signal(signal.SIGTERM)
        assert stopped.end() == 143

    assert stopped.codes == {"algo-1": 0, "algo-2": 0}
    with ToolkitRun(tmp_path, str(WORKLOAD / "job.toml"), "--replace", *words) as resumed:
        assert resumed.end() == 0, resumed.console
    assert "resumed from" in resumed.console
    assert resumed.report["metrics"]["step"] == 66
