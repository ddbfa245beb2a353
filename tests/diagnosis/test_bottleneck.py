import pytest

from tests.diagnosis.made import evidence, found

SAMPLES = 200


def columns(*, cores: tuple[float, ...], gpu: float, iowait: float = 0.0) -> dict[str, list[float]]:
    made = {f"cpu/core{index}/used_percent": [used] * SAMPLES for index, used in enumerate(cores)}
    made["cpu/all/used_percent"] = [sum(cores) / len(cores)] * SAMPLES
    made["cpu/core0/iowait_percent"] = [iowait] * SAMPLES
    made["gpu/0/used_percent"] = [0.0] * 5 + [gpu] * (SAMPLES - 5)
    return made


@pytest.mark.parametrize(
    ("cores", "gpu", "iowait", "rules"),
    [
        ((97, 98, 96, 99), 4, 0, {"CPUBottleneck"}),
        ((97, 98, 96, 99), 80, 0, set()),
        ((30, 20, 25, 30), 4, 0, set()),
        ((99, 3, 2, 4), 12, 0, {"BusyCore"}),
        ((99, 3, 2, 4), 92, 0, set()),
        ((5, 5, 5, 5), 4, 80, {"IOBottleneck"}),
        ((5, 5, 5, 5), 80, 80, set()),
    ],
)
def test_idle_gpus_are_put_down_to_what_is_busy(
    cores: tuple[float, ...], gpu: float, iowait: float, rules: set[str]
) -> None:
    seen = found(evidence(columns(cores=cores, gpu=gpu, iowait=iowait)))

    assert seen.keys() & {"CPUBottleneck", "BusyCore", "IOBottleneck"} == rules


def test_the_busy_core_is_named() -> None:
    finding = found(evidence(columns(cores=(3, 2, 99, 4), gpu=12)))["BusyCore"]

    assert "core2 99 %" in finding.text
    assert "core0" not in finding.text


def test_a_machine_without_gpus_has_no_gpu_bottleneck() -> None:
    made = {name: values for name, values in columns(cores=(97, 98), gpu=0).items() if not name.startswith("gpu")}

    assert not found(evidence(made)).keys() & {"CPUBottleneck", "BusyCore", "IOBottleneck"}


def test_the_quota_of_the_container_is_all_of_the_cpu() -> None:
    made = columns(cores=(50, 50, 50, 50), gpu=4)
    made["cpu/all/quota_cores"] = [2.0] * SAMPLES

    assert "CPUBottleneck" in found(evidence(made))


def test_a_patience_of_the_user_is_kept_and_a_default_is_scaled_to_a_short_job() -> None:
    made = evidence(columns(cores=(97, 98, 96, 99), gpu=4))

    scaled = found(made, {"CPUBottleneck": {}})
    kept = found(made, {"CPUBottleneck": {"patience": 1000}})

    assert scaled["CPUBottleneck"].note == ("The job had 199 samples: patience was scaled from 1000 samples to 49.")
    assert kept == {}
