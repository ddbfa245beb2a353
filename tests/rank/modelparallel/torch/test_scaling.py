"""Loss scales, and training in fp16, in bf16 and with a GradScaler."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.rank.modelparallel.started import PROGRAMS, reports

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


class Trained(NamedTuple):
    """The measurements of two ranks of smp_precision.py, and their job's folder."""

    mode: str
    reports: list[dict[str, Any]]
    folder: Path


def train(mode: str, folder: Path) -> Trained:
    parameters = {"microbatches": 2, **PARAMETERS[mode]}
    words = (mode, str(folder / "saved"))
    return Trained(
        mode, reports(PROGRAMS / "smp_precision.py", *words, parameters=parameters, size=2, folder=folder), folder
    )


@pytest.fixture(scope="module", params=["fp16", "bf16"])
def low(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A job of low precision, with a dynamic loss scale."""
    if request.param == "fp16" and version("torch").startswith("2.9."):
        pytest.skip("_fp32_grad_accumulation needs torch 2.10")
    return train(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A job with smp.amp.GradScaler."""
    return train("amp", tmp_path_factory.mktemp("amp"))


@pytest.mark.parametrize("number", ["losses", "norms"])
def test_low_precision_trains_close_to_fp32(low: Trained, number: str) -> None:
    for rank in low.reports:
        trained, expected = rank[number]
        assert len(expected) == 8
        assert trained == pytest.approx(expected, rel=2e-3)


def test_weights_of_low_precision_are_rounded_fp32_masters(low: Trained) -> None:
    for rank in low.reports:
        assert (
            rank["weight dtypes"] == rank["dtypes"] == [{"fp16": "torch.float16", "bf16": "torch.bfloat16"}[low.mode]]
        )
        assert rank["master dtypes"] == ["torch.float32"]
        assert rank["rounded masters"]
        assert rank["equal masters"] == 0, "masters are finer"


def test_losses_and_accumulated_gradients_are_in_fp32(low: Trained) -> None:
    for rank in low.reports:
        assert rank["output dtypes"] == ["torch.float32"]
        if low.mode == "fp16":  # Two microbatches were added up in fp32.
            assert rank["gradient dtypes"] == ["torch.float32"]


def test_the_global_norm_is_that_of_the_clipped_gradients(low: Trained) -> None:
    assert [rank["global norm is the clipped one"] for rank in low.reports] == [True, True]


def test_a_scale_that_is_too_large_skips_steps_on_all_ranks_until_it_fits(low: Trained) -> None:
    first, second = low.reports

    assert second["scales"] == first["scales"]
    for rank in low.reports:
        assert rank["idle_scale"] is (low.mode == "bf16")
        assert set(rank["skipped"]["norms"]) <= {float("inf")}
        assert all(rank["skipped"]["weights stayed"])
    if low.mode == "fp16":
        assert len(first["skipped"]["norms"]) > 5
        assert min(first["scales"]) < 2**20 < first["scales"][0]


def test_a_checkpoint_has_weights_masters_momentum_and_the_loss_scale(low: Trained) -> None:
    for rank in low.reports:
        assert len(rank["resumed"]) == 7
        assert {part for part, holds in rank["resumed"].items() if not holds} == set()


def test_fp16_goes_along_the_chain(low: Trained) -> None:
    if low.mode == "fp16":
        last = (low.folder / "modelparallel/timeline-0.jsonl").read_text().splitlines()[-1]
        assert json.loads(last)["path"] == "chain"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "found 'scale_windows'. Did you mean scale_window?"),
        (1, "no error"),
        (2, "expected a loss scale above 0, found -2"),
        (3, "no error"),
        (4, "expected no closure"),
        (5, "expected 1 parameter groups, found 0"),
        (6, "expected parameters [0, 1"),
    ],
)
def test_wrong_loss_scales_and_states_are_refused(low: Trained, number: int, message: str) -> None:
    assert message in low.reports[0]["refused"][number]


def test_a_grad_scaler_trains_as_one_process(scaled: Trained) -> None:
    for rank in scaled.reports:
        trained, expected = rank["losses"]
        assert trained == pytest.approx(expected, rel=1e-5)


def test_a_grad_scaler_skips_a_step_on_all_ranks_when_one_overflows(scaled: Trained) -> None:
    assert [(rank["scale"], rank["weights stayed"]) for rank in scaled.reports] == [(512.0, True)] * 2
