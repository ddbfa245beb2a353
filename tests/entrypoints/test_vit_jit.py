"""The savings story in small: one Vision Transformer in Keras, without and with XLA, and the page of both."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ROOT
from tests.tensorflow.bed import InBed, needs_bed

pytestmark = [
    *needs_bed,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11"),
]
SMALL = {"epochs": 3, "images": 64, "depth": 1, "dim": 16, "patch-size": 8}


@pytest.mark.long
def test_the_native_and_the_compiled_job_are_compared_by_epochs_and_loss(tmp_path: Path) -> None:
    for name, compiled in (("native", "false"), ("compiled", "true")):
        hyperparameters = {**SMALL, "jit-compile": compiled}
        words = [word for name, value in hyperparameters.items() for word in ("--hyperparameter", f"{name}={value}")]
        (tmp_path / name).mkdir()
        with InBed(tmp_path / name, str(ROOT / "entrypoints/vit_jit/job.toml"), "--name", name, *words) as job:
            assert job.end() == 0, job.console

    command = (sys.executable, "-m", "toolkit", "compare", "native/job", "compiled/job", "-o", "-", "--format", "json")
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    blocks = {block.get("id"): block for section in json.loads(done.stdout)["sections"] for block in section["blocks"]}
    native, compiled = (line["mean"] for line in blocks["epoch-latency"]["lines"])
    assert len(native) == len(compiled) == 3
    assert compiled[0] > 1.2 * min(compiled)  # The first epoch compiles.
    losses = [line["mean"] for line in blocks["loss"]["lines"]]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)  # The same arithmetic.
    assert len(losses[0]) == 3
    quantities = [row[0] for row in blocks["savings-compiled"]["rows"]]
    assert quantities[:2] == ["actual savings", "potential savings"]
    assert "throughput speed-up" in quantities
