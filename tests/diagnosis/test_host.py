import math

import pytest

from tests.diagnosis.made import START_S, evidence, find_by_rule

GIB = 2.0**30
SAMPLES = 600


def memory(values: list[float], **more: list[float]) -> dict[str, list[float]]:
    return {
        "memory/container/used_bytes": values,
        "memory/container/limit_bytes": [8 * GIB] * len(values),
        **{name.replace("_", "/", 2): column for name, column in more.items()},
    }


LEAK = [GIB + 5 * GIB * index / SAMPLES for index in range(SAMPLES)]
LOADED = [min(GIB + 10 * GIB * index / SAMPLES, 6 * GIB) for index in range(SAMPLES)]
WAVES = [4 * GIB + GIB * math.sin(index / 9) for index in range(SAMPLES)]


@pytest.mark.parametrize(("values", "is_found"), [(LEAK, True), (LOADED, False), (WAVES, False), ([GIB] * 600, False)])
def test_memory_that_rises_steadily_reaches_its_limit_at_a_time(values: list[float], is_found: bool) -> None:
    assert ("MemoryLimit" in find_by_rule(evidence(memory(values)))) is is_found


def test_the_time_of_the_limit_is_told() -> None:
    finding = find_by_rule(evidence(memory(LEAK), is_over=False), {"MemoryLimit": {"patience": 100}})["MemoryLimit"]

    # 1 to 6 GiB in 300 s: 8 GiB are reached 120 s later.
    left = next(number for number in finding.numbers if number.name == "limit reached in")
    assert left.value == pytest.approx(120, abs=2)
    assert finding.end_s == START_S + 299.5
    assert "will reach its limit of 8.0 GiB at 09:00 UTC" in finding.text or "at 09:0" in finding.text


def test_a_kill_for_memory_is_proved_by_the_kernels_count() -> None:
    kills = [0.0] * (SAMPLES - 1) + [1.0]

    finding = find_by_rule(evidence(memory(LEAK, memory_events_oom_kills=kills)))["MemoryLimit"]

    assert finding.text.startswith("Memory rose steadily by 1 GiB a minute until the kernel killed 1 process of this")


@pytest.mark.parametrize(("percent", "is_found"), [(35.0, True), (2.0, False)])
def test_throttling_by_the_quota_is_found(percent: float, is_found: bool) -> None:
    columns = {"cpu/all/throttled_percent": [percent] * SAMPLES, "cpu/all/quota_cores": [2.0] * SAMPLES}

    assert ("CPUThrottling" in find_by_rule(evidence(columns))) is is_found


@pytest.mark.parametrize(("silent", "is_found"), [(40.0, True), (3.0, False)])
def test_a_driver_that_does_not_answer_is_found(silent: float, is_found: bool) -> None:
    columns = {"gpu/driver/silent_s": [0.0] * 50 + [silent] + [0.0] * 50}

    finding = find_by_rule(evidence(columns)).get("DriverSilence")

    assert (finding is not None) is is_found
    assert finding is None or finding.end_s - finding.start_s == 40


def leaking(*ranks: float) -> dict[str, list[float]]:
    """Return columns of a leak in which each of *ranks* has a share."""
    shares = {
        f"rank/{rank}/memory_bytes": [GIB / 4 + share * (value - GIB) for value in LEAK]
        for rank, share in enumerate(ranks)
    }
    return {**memory(LEAK), **shares}


def test_the_rank_whose_memory_rises_is_named() -> None:
    alone = find_by_rule(evidence(leaking(0.02, 0.95, 0.01)))["MemoryLimit"]
    together = find_by_rule(evidence(leaking(0.4, 0.5)))["MemoryLimit"]

    assert alone.rank == 1
    assert alone.text.startswith(
        "Memory of rank 1 rises steadily by 1 GiB a minute and would have reached its limit of 8 GiB"
    )
    assert together.rank is None
    assert together.text.startswith("Memory of all 2 ranks rises steadily")


def test_memory_that_other_programs_take_is_not_laid_on_the_job() -> None:
    assert find_by_rule(evidence(leaking(0.0, 0.01))) == {}


def test_a_kill_names_the_rank_with_the_most_memory() -> None:
    kills = [0.0] * (SAMPLES - 1) + [1.0]

    finding = find_by_rule(evidence({**leaking(0.0, 0.9), "memory/events/oom_kills": kills}))["MemoryLimit"]

    assert "rank 1 4.7" in finding.text
