from typing import Any

import pytest

from tests.diagnosis.made import evidence, find_by_rule

SAMPLES = 300
SWING = [2.0, 98.0]


def columns(**values: Any) -> dict[str, list[float]]:
    """Return columns of 300 samples: gpu_0_used_percent=50, or a list that is repeated. These have NVML's names."""
    samples = {"cpu/all/used_percent": [20.0] * SAMPLES}
    for name, value in values.items():
        kind, number, metric = name.split("_", 2)
        finding = value if isinstance(value, list) else [value]
        samples[f"{kind}/{number}/{metric}"] = (finding * SAMPLES)[:SAMPLES]
    return samples


RISE = [20.0 + 30.0 * index / SAMPLES for index in range(SAMPLES)]
JUMP = [20.0] * 100 + [60.0] * 200


@pytest.mark.parametrize(
    ("values", "rules"),
    [
        ({"gpu_0_used_percent": 40.0}, {"LowGPUUtilization"}),
        ({"gpu_0_used_percent": SWING}, {"LowGPUUtilization"}),
        ({"gpu_0_used_percent": [90.0, 97.0]}, set()),
        ({"gpu_0_used_percent": 40.0, "gpu_0_memory_used_percent": 20.0}, {"LowGPUUtilization", "BatchSize"}),
        ({"gpu_0_used_percent": 95.0, "gpu_0_memory_used_percent": 20.0}, set()),
        ({"gpu_0_used_percent": 95.0, "gpu_1_used_percent": 0.0}, {"LoadBalancing"}),
        ({"gpu_0_used_percent": 95.0, "gpu_1_used_percent": 88.0}, set()),
        ({"gpu_0_used_percent": 95.0, "gpu_0_memory_used_percent": RISE}, {"GPUMemoryIncrease"}),
        ({"gpu_0_used_percent": 95.0, "gpu_0_memory_used_percent": JUMP}, set()),
        ({"gpu_0_used_percent": 100.0, "gpu_0_sm_active_percent": 12.0, "gpu_0_power_watts": 140.0}, {"IdleSM"}),
        ({"gpu_0_used_percent": 100.0, "gpu_0_sm_active_percent": 85.0, "gpu_0_power_watts": 640.0}, set()),
    ],
)
def test_a_gpu_that_could_do_more_is_found(values: dict[str, Any], rules: set[str]) -> None:
    assert find_by_rule(evidence(columns(**values))).keys() == rules


def test_an_idle_sm_is_told_with_its_power() -> None:
    values = {"gpu_0_used_percent": 100.0, "gpu_0_sm_active_percent": 12.0, "gpu_0_power_watts": 140.0}

    assert "gpu0 100 % busy, SMs 12 % active at 140 W" in find_by_rule(evidence(columns(**values)))["IdleSM"].text


def test_a_gpu_that_nothing_uses_does_not_make_the_others_look_idle() -> None:
    findings = find_by_rule(evidence(columns(gpu_0_used_percent=95.0, gpu_1_used_percent=0.0)))

    assert "LowGPUUtilization" not in findings
    assert "gpu1 0 %, gpu0 95 %" in findings["LoadBalancing"].text
