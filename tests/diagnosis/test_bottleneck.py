import pytest

from tests.diagnosis.made import evidence, find_by_rule

SAMPLES = 200


def columns(*, cores: tuple[float, ...], gpu: float, iowait: float = 0.0) -> dict[str, list[float]]:
    samples = {f"cpu/core{index}/used_percent": [used] * SAMPLES for index, used in enumerate(cores)}
    samples["cpu/all/used_percent"] = [sum(cores) / len(cores)] * SAMPLES
    samples["cpu/core0/iowait_percent"] = [iowait] * SAMPLES
    samples["gpu/0/used_percent"] = [0.0] * 5 + [gpu] * (SAMPLES - 5)
    return samples


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
    findings = find_by_rule(evidence(columns(cores=cores, gpu=gpu, iowait=iowait)))

    assert findings.keys() & {"CPUBottleneck", "BusyCore", "IOBottleneck"} == rules


def test_the_busy_core_is_named() -> None:
    finding = find_by_rule(evidence(columns(cores=(3, 2, 99, 4), gpu=12)))["BusyCore"]

    assert "core2 99 %" in finding.text
    assert "core0" not in finding.text


def test_a_machine_without_gpus_has_no_gpu_bottleneck() -> None:
    samples = {name: values for name, values in columns(cores=(97, 98), gpu=0).items() if not name.startswith("gpu")}

    assert not find_by_rule(evidence(samples)).keys() & {"CPUBottleneck", "BusyCore", "IOBottleneck"}


def test_the_quota_of_the_container_is_all_of_the_cpu() -> None:
    samples = columns(cores=(50, 50, 50, 50), gpu=4)
    samples["cpu/all/quota_cores"] = [2.0] * SAMPLES

    assert "CPUBottleneck" in find_by_rule(evidence(samples))


@pytest.mark.parametrize(
    ("rank", "said", "subject", "change"),
    [
        (380.0, "(core3 99 %, core1 98 %, core0 97 %, core2 96 %).", "cpu", "Move work off the CPU"),
        (
            100.0,
            "but other programs held 72 % of the cores, and the ranks only 25 %.",
            "other programs",
            "end the other",
        ),
    ],
)
def test_a_full_cpu_is_the_jobs_only_if_its_ranks_hold_it(rank: float, said: str, subject: str, change: str) -> None:
    samples = columns(cores=(97, 98, 96, 99), gpu=4)
    samples["rank/0/cpu_percent"] = [rank] * SAMPLES

    finding = find_by_rule(evidence(samples))["CPUBottleneck"]

    assert said in finding.text
    assert finding.subject == subject
    assert change in finding.change


def test_others_who_hold_the_cpu_are_named_once() -> None:
    samples = columns(cores=(97, 98, 96, 99), gpu=4)
    samples["rank/0/cpu_percent"] = [100.0] * SAMPLES

    finding = find_by_rule(evidence(samples))["CPUBottleneck"]

    assert "Other programs held" not in finding.text + finding.note


@pytest.mark.parametrize(("rank", "rules"), [(40.0, set()), (100.0, {"BusyCore"})])
def test_a_busy_core_of_others_is_none_of_the_jobs(rank: float, rules: set[str]) -> None:
    samples = columns(cores=(99, 3, 2, 4), gpu=4)
    samples["rank/0/cpu_percent"] = [rank] * SAMPLES

    assert find_by_rule(evidence(samples)).keys() & {"BusyCore"} == rules


@pytest.mark.parametrize(
    ("read", "written", "said", "subject"),
    [
        (40e6, 0.0, "below 10 %.", "io"),
        (0.0, 40e6, "below 10 %.", "io"),
        (2e6, 1e6, "but of 50 MB/s to and from the disks the ranks had only 3 MB/s.", "other programs"),
    ],
)
def test_a_slow_disk_is_the_jobs_only_if_its_ranks_use_it(read: float, written: float, said: str, subject: str) -> None:
    samples = columns(cores=(5, 5, 5, 5), gpu=4, iowait=80)
    samples["rank/0/disk_read_bytes_per_s"] = [read] * SAMPLES
    samples["rank/0/disk_write_bytes_per_s"] = [written] * SAMPLES
    samples["disk/all/read_bytes_per_s"] = [40e6] * SAMPLES
    samples["disk/all/write_bytes_per_s"] = [10e6] * SAMPLES

    finding = find_by_rule(evidence(samples))["IOBottleneck"]

    assert said in finding.text
    assert finding.subject == subject


def test_what_other_containers_use_does_not_fill_the_jobs_quota() -> None:
    samples = columns(cores=(50, 50, 50, 50), gpu=4)
    samples["cpu/all/quota_cores"] = [2.0] * SAMPLES

    samples["cpu/container/used_cores"] = [0.5] * SAMPLES
    idle = find_by_rule(evidence(samples))
    samples["cpu/container/used_cores"] = [1.95] * SAMPLES
    full = find_by_rule(evidence(samples))

    assert "CPUBottleneck" not in idle
    assert "CPUBottleneck" in full


def test_a_patience_of_the_user_is_kept_and_a_default_is_scaled_to_a_short_job() -> None:
    machine_evidence = evidence(columns(cores=(97, 98, 96, 99), gpu=4))

    scaled = find_by_rule(machine_evidence, {"CPUBottleneck": {}})
    findings = find_by_rule(machine_evidence, {"CPUBottleneck": {"patience": 1000}})

    assert scaled["CPUBottleneck"].note == ("The job had 199 samples: patience was scaled from 1000 samples to 49.")
    assert findings == {}
