"""The calls of AWS's public examples, in their order: the examples themselves are run by scripts/official-examples."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.rank.modelparallel.started import PROGRAMS, TRANSFORMERS, ended, smp_ranks
from tests.started import ROOT
from toolkit.train.launchers.environment import HOOK

BED = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds")).absolute() / "transformers"
ONE = {"partitions": 1, "ddp": True, "skip_tracing": True, "delayed_parameter_initialization": True}
pytestmark = [
    pytest.mark.transformers,
    pytest.mark.skipif(not (BED / ".ready").exists(), reason=f"{BED} is not ready: run scripts/beds/transformers"),
]


def trained(folder: Path, *words: str, size: int, parameters: dict[str, Any]) -> list[float]:
    environ = {"PYTHONPATH": os.pathsep.join((str(HOOK), str(ROOT))), "HF_HUB_OFFLINE": "1"}
    started = smp_ranks(
        PROGRAMS / "smp_official.py",
        str(folder / "checkpoints"),
        *words,
        parameters=parameters,
        size=size,
        folder=folder,
        environ=environ,
        python=str(BED / "bin/python"),
        modules=TRANSFORMERS,
    )
    losses = [json.loads(said.splitlines()[-1]) for said, _ in ended(started)]
    assert all(one == losses[0] for one in losses)
    return [float(loss) for loss in losses[0]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the job in one process."""
    return trained(tmp_path_factory.mktemp("whole"), "4", "begin", size=1, parameters=ONE)


@pytest.mark.parametrize(
    "degree",
    [
        # Sharded data parallelism clips gradients by itself, to 1.0 without this.
        {"sharded_data_parallel_degree": 2, "sdp_gradient_clipping": 1000.0},
        pytest.param({"tensor_parallel_degree": 2}, marks=pytest.mark.long),
    ],
    ids=["sharded", "tensor parallel"],
)
def test_a_gpt2_with_delayed_values_trains_saves_and_resumes_as_in_one_process(
    tmp_path: Path, whole: list[float], degree: dict[str, Any]
) -> None:
    """AWS's name for the layers, a ModuleList here, is there, and they are checkpointed one by one.

    The second job first resumes from a full checkpoint of the model alone, as fine-tuning does.
    """
    first = trained(tmp_path, "2", "begin", size=2, parameters={**ONE, **degree})
    second = trained(tmp_path, "4", "resume", size=2, parameters={**ONE, **degree})

    assert [*first, *second] == pytest.approx(whole, rel=1e-5)
    assert len(whole) == 4
    assert whole[0] != pytest.approx(whole[-1], rel=1e-3)
