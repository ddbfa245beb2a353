"""Keras 3's `fit` on two hosts, over the data parallel library and mpirun (docs/tensorflow.md)."""

import re
from pathlib import Path

import pytest

from tests.tensorflow.bed import InBed, needs_bed

pytestmark = needs_bed
SMDDP = ("--distribution", "smddp")


def losses(folder: Path, hosts: int, **environ: str) -> tuple[dict[str, list[float]], str]:
    """Return the losses that each rank printed, and the console."""
    hyperparameters = {"epochs": environ.pop("epochs", "3"), "strings-on": environ.pop("strings_on", "")}
    words = [*SMDDP, "--hosts", str(hosts)]
    words += [
        word for name, value in hyperparameters.items() if value for word in ("--hyperparameter", f"{name}={value}")
    ]
    with InBed(folder, "tf_fit_ranks.py", *words, TOOLKIT_SMDDP_LAUNCHER="mpirun", **environ) as job:
        assert job.end() == 0, job.console
    rows = re.findall(r"rank (\d) of \d losses ([0-9. ]+)", job.console)
    return {rank: [float(loss) for loss in values.split()] for rank, values in rows}, job.console


def test_fit_on_two_hosts_has_one_hosts_loss_and_ranks_decide_alike(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    single, _ = losses(tmp_path / "one", 1, epochs="20")
    two, console = losses(tmp_path / "two", 2, epochs="20", TOOLKIT_COMPILE="auto")

    assert set(two) == {"0", "1"}
    assert two["0"] == two["1"]
    assert two["0"] == pytest.approx(single["0"], abs=1e-4)
    decisions = re.findall(r"(runs natively|stays compiled): (the model's forward .* pairs of steps)", console)
    assert len(decisions) == 2
    assert decisions[0] == decisions[1]  # The figures are the same, too: those of the slowest rank.


@pytest.mark.long
def test_a_model_that_one_rank_cannot_compile_runs_natively_on_both(tmp_path: Path) -> None:
    """Without a vote the other rank would wait in the exchange of gradients, or train compiled."""
    two, console = losses(tmp_path, 2, TOOLKIT_COMPILE="auto", strings_on="1")

    assert two["0"] == two["1"]
    reasons = re.findall(r"sequential.fit runs natively: the model's .* cannot be compiled: (.{,60})", console)
    assert len(reasons) == 2
    assert any(text.startswith("another rank cannot compile it") for text in reasons), reasons
    assert any(text.startswith("InvalidArgumentError: Detected unsupported operations when") for text in reasons), (
        reasons
    )
