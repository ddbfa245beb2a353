"""The model parallel workload: a GPT-2 whose two partitions are on two hosts."""

import io
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun
from toolkit.cli.main import main

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="not installed: torch"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11"),
]

WORKLOAD = Path(__file__).parents[2] / "entrypoints/smp_gpt2"
SHORT = {"epochs": "1", "steps": "31", "length": "32"}


class Patient(ToolkitRun):
    """Four interpreters that import torch, on machines whose every core may be busy."""

    deadline_s = 300


@pytest.mark.long
def test_two_partitions_on_two_hosts_learn_and_leave_one_whole_model_and_their_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    words = [word for name, value in SHORT.items() for word in ("--hyperparameter", f"{name}={value}")]
    with Patient(tmp_path, str(WORKLOAD / "job.toml"), *words, "--processes-per-host", "1") as job:
        assert job.end() == 0, job.console
    assert job.report["metrics"]["step"] == 30
    assert job.report["metrics"]["validation_loss"] < 4.5  # ln 256 = 5.5 is to know nothing.

    weights = torch.load(io.BytesIO(job.archive("model.tar.gz")["gpt2"]), weights_only=True, map_location="cpu")
    state = weights.get("model", weights)
    assert {"0.token.weight", "1.attention.weight", "4.attention.weight", "6.weight"} <= set(state)
    assert all(tensor.device.type == "cpu" for tensor in state.values())

    with pytest.raises(SystemExit) as caught:
        main(["report", str(job.folder), "--format", "text", "--output", "-"])
    assert caught.value.code == 0
    page = capsys.readouterr().out
    assert "Modules by partition" in page and "partition 1 (rank 1)" in page and "(bubble)" in page
