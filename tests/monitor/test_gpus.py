"""GPUs through the process that asks NVML, with a stand-in for NVIDIA's library in it."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolkit.monitor.gpu import source as gpu_source
from toolkit.monitor.gpu.source import GpuSource

CHILD = """
import os, sys
with open(sys.argv[3], "a") as pids:
    print(os.getpid(), file=pids)
sys.path.insert(0, sys.argv[1])
from toolkit.monitor.gpu.child import main
main(float(sys.argv[2]))
"""
Start = Callable[[str], GpuSource]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Start]:
    """Start the child with a stand-in that does what FAKE_NVML says; what it notes goes to `notes`, the pids of the
    children to `pids`."""
    started: list[GpuSource] = []

    def make(how: str) -> GpuSource:
        monkeypatch.setenv("FAKE_NVML", how)
        folder = Path(__file__).parent / "nvml" if how != "no package" else tmp_path
        hides = "" if how != "no package" else "import sys; sys.modules['pynvml'] = None\n"
        argv = (sys.executable, "-c", hides + CHILD, str(folder), "0.05", str(tmp_path / "pids"))
        source = GpuSource(argv, time.monotonic(), (tmp_path / "notes").write_text)  # type: ignore[arg-type]
        started.append(source)
        return source

    yield make
    for source in started:
        source.close()


def until(source: GpuSource, done: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Return the named values once *done* says yes to them."""
    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s:
        values = source.values(time.monotonic())
        by_name = dict(zip([column.name for column in source.columns], values, strict=True))
        if done(by_name):
            return by_name
        time.sleep(0.01)
    raise AssertionError(f"not within 60 s: {by_name}")


def test_every_gpu_is_measured_by_what_it_supports(start: Start) -> None:
    source = start("")

    sampled = until(source, lambda by_name: by_name.get("gpu/0/used_percent", 0) > 0)

    assert source.names == ("NVIDIA H100 80GB HBM3", "Tesla T4")
    assert sampled.pop("gpu/driver/silent_s") < 60
    assert sampled.pop("gpu/0/nvlink_bytes_per_s") >= 0
    hopper = {name.removeprefix("gpu/0/"): value for name, value in sampled.items() if name.startswith("gpu/0/")}
    turing = {name.removeprefix("gpu/1/"): value for name, value in sampled.items() if name.startswith("gpu/1/")}
    common = {"memory_used_bytes": 20 << 30, "power_watts": 350.5, "sm_clock_mhz": 1980, "temperature_celsius": 61}
    assert hopper == {
        **common,
        "used_percent": 90,
        "memory_used_percent": 25,
        "sm_active_percent": 71.5,
        "sm_occupancy_percent": 40,
        "tensor_active_percent": 33,
        "memory_bandwidth_percent": 25,
        "pcie_sent_bytes_per_s": 100 << 20,
        "pcie_received_bytes_per_s": 200 << 20,
        "ecc_errors": 3,
        "xid_errors": 1,
    }
    assert turing == {
        **common,
        "used_percent": 10,
        "memory_used_percent": 50,
        "pcie_sent_bytes_per_s": 1000 << 10,
        "pcie_received_bytes_per_s": 2000 << 10,
    }
    units = {column.name: column.unit for column in source.columns}
    assert (units["gpu/0/pcie_sent_bytes_per_s"], units["gpu/1/temperature_celsius"]) == ("bytes/s", "°C")


def test_a_driver_that_hangs_is_silence_and_nobody_waits(start: Start) -> None:
    source = start("hangs")
    until(source, lambda by_name: by_name.get("gpu/0/used_percent", 0) > 0)
    until(source, lambda by_name: by_name["gpu/driver/silent_s"] > 0.5)

    before_s = time.monotonic()
    later = source.values(before_s + gpu_source.STALE_S + 1)

    assert time.monotonic() - before_s < 1
    assert later[-1] > gpu_source.STALE_S
    assert all(value != value for value in later[:-1])


def test_a_child_that_hangs_is_replaced_and_its_silence_still_counts(start: Start, tmp_path: Path) -> None:
    source = start("hangs")
    until(source, lambda by_name: by_name.get("gpu/0/used_percent", 0) > 0)
    late_s = time.monotonic() + gpu_source.KILL_AFTER_S + 1

    ends_s = time.monotonic() + 60
    pids: list[str] = []
    while len(pids) < 2 and time.monotonic() < ends_s:
        source.values(late_s)
        pids = (tmp_path / "pids").read_text().split()

    first, second = pids
    assert not Path("/proc", first).exists()
    assert Path("/proc", second).exists()
    assert source.values(late_s)[-1] > gpu_source.KILL_AFTER_S
    assert until(source, lambda by_name: by_name["gpu/driver/silent_s"] < 30)["gpu/1/used_percent"] == 10


def test_a_gpu_that_is_lost_has_no_values_and_the_others_have_theirs(start: Start) -> None:
    source = start("lost")

    sampled = until(
        source, lambda by_name: by_name.get("gpu/1/used_percent", 0) != by_name.get("gpu/1/used_percent", 0)
    )

    assert sampled["gpu/0/used_percent"] == 90


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no driver", "GPUs are not measured: NVML: Driver Not Loaded"),
        ("no package", "GPUs are not measured: the package nvidia-ml-py is not installed"),
    ],
)
def test_why_there_are_no_values_is_said_once(start: Start, tmp_path: Path, how: str, message: str) -> None:
    source = start(how)

    until(source, lambda by_name: not by_name)

    assert message in (tmp_path / "notes").read_text()
    assert (source.columns, source.values(time.monotonic())) == ((), [])


def test_a_program_that_cannot_be_started_is_said(tmp_path: Path) -> None:
    notes: list[str] = []
    source = GpuSource((os.fspath(tmp_path / "gone"), "0.5"), 0.0, notes.append)

    assert source.values(1.0) == []
    assert notes == [f"GPUs are not measured: {tmp_path}/gone: No such file or directory"]
