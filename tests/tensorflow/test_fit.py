"""Keras 3's `fit` on two hosts, over the data parallel library and mpirun (docs/tensorflow.md)."""

import re
from pathlib import Path

import pytest

from tests.tensorflow.bed import InBed, needs_bed

pytestmark = needs_bed
SMDDP = ("--distribution", "smddp")


def losses(folder: Path, hosts: int, **environ: str) -> tuple[dict[str, list[float]], str]:
    """Return the losses that each rank printed, and the console."""
    words = (*SMDDP, "--hosts", str(hosts), "--hyperparameter", f"epochs={environ.pop('epochs', '3')}")
    with InBed(folder, "tf_fit_ranks.py", *words, TOOLKIT_SMDDP_LAUNCHER="mpirun", **environ) as job:
        assert job.end() == 0, job.console
    found = re.findall(r"rank (\d) of \d losses ([0-9. ]+)", job.console)
    return {rank: [float(loss) for loss in values.split()] for rank, values in found}, job.console


def test_fit_on_two_hosts_has_one_hosts_loss_and_ranks_decide_alike(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, _ = losses(tmp_path / "one", 1, epochs="20")
    two, console = losses(tmp_path / "two", 2, epochs="20", TOOLKIT_COMPILE="auto")

    assert set(two) == {"0", "1"}
    assert two["0"] == two["1"]
    assert two["0"] == pytest.approx(one["0"], abs=1e-4)
    said = re.findall(r"(runs natively|stays compiled): (the model's forward .* pairs of steps)", console)
    assert len(said) == 2
    assert said[0] == said[1]  # The figures are the same, too: those of the slowest rank.
