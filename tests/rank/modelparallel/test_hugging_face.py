"""Hugging Face's own use of the library: its Trainer, unchanged, with the model over two partitions."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.forking import Fork
from tests.rank.modelparallel.started import PROGRAMS, TRANSFORMERS, ended, smp_ranks
from tests.started import ROOT
from toolkit.train.launchers.environment import HOOK

BED = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds")).absolute() / "transformers"
PYTHON = str(BED / "bin/python")
PROGRAM = PROGRAMS / "smp_trainer.py"
PARAMETERS = {"partitions": 2, "microbatches": 2, "ddp": True}
pytestmark = [
    pytest.mark.transformers,
    pytest.mark.skipif(not (BED / ".ready").exists(), reason=f"{BED} is not ready: run scripts/beds/transformers"),
]


def partitioned(folder: Path, *checkpoint: str) -> list[dict[str, Any]]:
    """Return what each of two ranks printed."""
    # The bed's toolkit may be another tree's.
    paths = os.pathsep.join((str(HOOK), str(ROOT)))
    environ = {"PYTHONPATH": paths, "SM_FRAMEWORK_PARAMS": '{"sagemaker_mpi_enabled": true}', "HF_HUB_OFFLINE": "1"}
    started = smp_ranks(
        PROGRAM,
        str(folder / "trainer"),
        *checkpoint,
        parameters=PARAMETERS,
        size=2,
        folder=folder,
        environ=environ,
        python=PYTHON,
        modules=TRANSFORMERS,
    )
    return [json.loads(said.splitlines()[-1]) for said, _ in ended(started)]


def test_trainer_trains_evaluates_saves_and_resumes_as_in_one_process(tmp_path: Path) -> None:
    """Both runs print from the same seed; the second continues the first one's checkpoint of step 6 to step 12."""
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    folder = str(tmp_path / "whole")
    ((said, _),) = ended([Fork(PROGRAM, folder, environ=environ, modules=TRANSFORMERS, python=PYTHON)])
    whole = json.loads(said.splitlines()[-1])

    first, second = partitioned(tmp_path)
    assert first["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert first["eval_losses"] == pytest.approx(whole["eval_losses"], rel=1e-5)
    assert len(first["losses"]) == 12
    assert first["norms"] == second["norms"] == pytest.approx(whole["norms"], rel=1e-5)
    assert min(whole["norms"]) > 0.5, "gradients are clipped"
    assert second["losses"] == first["losses"]
    # Each rank holds its partition alone; the tied weights of GPT-2 are on one.
    assert first["parameters"] + second["parameters"] == whole["parameters"]
    assert min(first["parameters"], second["parameters"]) > 0

    resumed, _ = partitioned(tmp_path / "again", str(tmp_path / "trainer/checkpoint-6"))
    assert resumed["losses"] == pytest.approx(whole["losses"], rel=1e-5)


def test_conv1d_is_divided_by_tensor_parallelism_and_what_is_not_is_named_in_the_log(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": os.pathsep.join((str(HOOK), str(ROOT)))}
    started = smp_ranks(
        PROGRAMS / "smp_conv1d.py",
        parameters={},
        size=2,
        folder=tmp_path,
        environ=environ,
        python=PYTHON,
        modules=TRANSFORMERS,
    )

    streams = ended(started)

    ranks = [json.loads(said.splitlines()[-1]) for said, _ in streams]
    assert [rank["held"]["c_fc.weight"] for rank in ranks] == [[4, 20], [3, 20]]
    assert [rank["held"]["c_proj.weight"] for rank in ranks] == [[10, 7], [10, 7]]
    assert {rank["kind"] for rank in ranks} == {"DistributedConv1D"}
    assert max(rank["error"] for rank in ranks) < 1e-6
    assert max(rank["blocks"] for rank in ranks) < 1e-6
    said = "smp: tensor parallelism leaves 1 Conv1d whole on every rank"
    assert [said in stderr for _, stderr in streams] == [True, False]
