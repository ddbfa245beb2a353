from pathlib import Path

import pytest

from toolkit.errors import ContractError
from toolkit.metrics import capture, definition, presets

LOG = Path(__file__).parent.parent / "data" / "diagnosis" / "iterations.log"


def test_the_times_of_a_kt_log_are_captured_with_their_steps() -> None:
    definitions = definition.compile(presets.definitions("iteration-times", "here"), "presets")

    samples = capture.MetricCapture(definitions, warn=pytest.fail).lines(
        LOG.read_bytes(), host="algo-1", rank=0, now_s=0.0
    )

    assert [sample.value for sample in samples if sample.name == "backward_time"] == [
        1.58002,
        24.74539,
        8.31253,
        30.93830,
        8.41030,
        29.88415,
    ]
    assert next(sample.value for sample in samples if sample.name == "dataloader_time") == 0.00053
    assert [sample.step for sample in samples if sample.name == "forward_time"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("dash", ["-", "–", "—"])
def test_the_dash_may_be_any(dash: str) -> None:
    line = f"12 iter time {dash} dataloader: 1.5e-3 sec, forward: 2 sec, backward: 3 sec"

    matches = [
        compiled.pattern.search(line) for compiled in definition.compile(presets.PRESETS["iteration-times"], "presets")
    ]

    assert [match and match[2] for match in matches] == ["1.5e-3", "2", "3"]


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ContractError, match=r"here: expected a preset of metrics, found 'iteration-time'. Did you mean"
    ):
        presets.definitions(("iteration-time",), "here")
