"""Loss scales, and training in fp16, in bf16 and with a GradScaler."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rank.modelparallel.started import PROGRAMS, ended, smp_ranks

pytest.importorskip("torch")

from toolkit.rank.modelparallel.torch.scaling import LossScale

pytestmark = pytest.mark.torch

SMALL = {"init_scale": 64.0, "scale_factor": 4.0, "scale_window": 2, "min_scale": 2}


@pytest.mark.parametrize(
    ("extra", "overflows", "scales"),
    [
        ({}, "..", [64, 256]),
        ({}, "xxxx", [16, 4, 2, 2]),
        ({}, "x.x..", [16, 16, 4, 4, 16]),
        ({"delayed_shift": 2}, "xx", [64, 16]),
        ({"delayed_shift": 2}, "x.x", [64, 64, 16]),
        ({"delayed_shift": 2}, "x..x", [64, 64, 256, 256]),
        ({"delayed_shift": 2, "consecutive_hysteresis": True}, "x.x", [64, 64, 64]),
    ],
)
def test_a_dynamic_scale_follows_the_overflows(extra: dict[str, Any], overflows: str, scales: list[float]) -> None:
    scale = LossScale(None, True, {**SMALL, **extra})
    found = []
    for step_result in overflows:
        scale.update(step_result == "x")
        found.append(scale.scale)

    assert found == scales


def test_a_resumed_scale_goes_on_and_a_static_one_stays() -> None:
    one, other, static = (LossScale(None, True, SMALL), LossScale(None, True, SMALL), LossScale(8.0))
    one.update(False)
    other.load_state_dict(one.state_dict())
    static.load_state_dict(one.state_dict())
    for scale in (one, other, static):
        scale.update(False)

    assert [one.scale, other.scale, static.scale] == [256.0, 256.0, 8.0]


# bf16 with sharded data parallelism, the others in two partitions.
PARAMETERS: dict[str, dict[str, Any]] = {
    "fp16": {"partitions": 2, "fp16": True, "_fp32_grad_accumulation": True},
    "bf16": {
        "partitions": 1,
        "bf16": True,
        "ddp": True,
        "sharded_data_parallel_degree": 2,
        "sdp_param_persistence_threshold": 20,
    },
    "amp": {"partitions": 2},
}


def trained(mode: str, folder: Path) -> list[dict[str, Any]]:
    parameters = {"microbatches": 2, **PARAMETERS[mode]}
    started = smp_ranks(
        PROGRAMS / "smp_precision.py", mode, str(folder / "saved"), parameters=parameters, size=2, folder=folder
    )
    return [json.loads(out) for out, _ in ended(started)]


@pytest.mark.parametrize("mode", ["fp16", "bf16"])
def test_low_precision_trains_on_fp32_masters_close_to_fp32(tmp_path: Path, mode: str) -> None:
    reports = trained(mode, tmp_path)

    assert [rank["idle_scale"] for rank in reports] == [mode == "bf16"] * 2
    for rank in reports:
        assert rank["losses"][0] == pytest.approx(rank["losses"][1], rel=2e-3)
        assert rank["norms"][0] == pytest.approx(rank["norms"][1], rel=2e-3)
    scales = reports[0]["scales"]
    assert reports[1]["scales"] == scales
    if mode == "fp16":
        assert reports[0]["skipped"] > 5
        assert min(scales) < 2**20 < scales[0]
        last = (tmp_path / "modelparallel/timeline-0.jsonl").read_text().splitlines()[-1]
        assert json.loads(last)["path"] == "chain"
    wrong = reports[0]["refused"]
    assert "found 'scale_windows'. Did you mean scale_window?" in wrong[0]
    assert wrong[1] == "no error"
    assert "expected a loss scale above 0, found -2" in wrong[2]
    assert wrong[3] == "no error"
    assert "expected no closure" in wrong[4]
    assert "expected 1 parameter groups, found 0" in wrong[5]
    assert "expected parameters [0, 1" in wrong[6]


def test_a_grad_scaler_skips_a_step_on_all_ranks_when_one_overflows(tmp_path: Path) -> None:
    reports = trained("amp", tmp_path)

    for rank in reports:
        assert rank["losses"][0] == pytest.approx(rank["losses"][1], rel=1e-5)
        assert rank["scale"] == 512.0
