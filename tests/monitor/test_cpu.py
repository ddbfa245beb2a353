"""Cores from /proc/stat: recorded and made-up text."""

from pathlib import Path

import pytest

from toolkit.monitor.sources import cpu

# Two cores of a Linux 6.18; user nice system idle iowait irq softirq steal guest guest_nice.
BEFORE = b"""cpu  100 0 100 700 100 0 0 0 50 0
cpu0 50 0 50 400 0 0 0 0 50 0
cpu1 50 0 50 300 100 0 0 0 0 0
intr 123 0 1
ctxt 5
"""
AFTER = b"""cpu  180 0 120 760 140 0 0 0 50 0
cpu0 130 0 70 400 0 0 0 0 50 0
cpu1 50 0 50 360 140 0 0 0 0 0
intr 124 0 1
"""


def root(folder: Path, text: bytes) -> Path:
    (folder / "proc").mkdir(exist_ok=True)
    (folder / "proc/stat").write_bytes(text)
    return folder


def test_use_and_io_wait_are_shares_of_the_time_between_two_reads(tmp_path: Path) -> None:
    source = cpu.Cpu(str(root(tmp_path, BEFORE)))
    root(tmp_path, AFTER)

    values = dict(zip([column.name for column in source.columns], source.values(1.0), strict=True))

    assert values == {
        "cpu/all/used_percent": 50.0,
        "cpu/core0/used_percent": 100.0,
        "cpu/core1/used_percent": 0.0,
        "cpu/all/iowait_percent": 20.0,
        "cpu/core0/iowait_percent": 0.0,
        "cpu/core1/iowait_percent": 40.0,
    }


def test_within_a_tick_the_last_values_hold(tmp_path: Path) -> None:
    source = cpu.Cpu(str(root(tmp_path, BEFORE)))
    root(tmp_path, AFTER)

    assert source.values(1.0) == source.values(1.001)


def test_a_core_that_is_switched_on_gets_columns(tmp_path: Path) -> None:
    source = cpu.Cpu(str(root(tmp_path, BEFORE)))
    root(tmp_path, AFTER.replace(b"intr", b"cpu2 1 0 1 1 0 0 0 0 0 0\nintr"))

    values = source.values(1.0)

    assert len(values) == len(source.columns) == 8
    assert "cpu/core2/used_percent" in [column.name for column in source.columns]


def test_a_core_without_ticks_is_not_used(tmp_path: Path) -> None:
    source = cpu.Cpu(str(root(tmp_path, BEFORE)))
    root(tmp_path, AFTER.replace(b"cpu0 130 0 70 400", b"cpu0 50 0 50 400"))

    assert (
        dict(zip([column.name for column in source.columns], source.values(1.0), strict=True))["cpu/core0/used_percent"]
        == 0.0
    )


def test_idle_time_that_goes_back_by_a_tick_is_no_use_below_zero(tmp_path: Path) -> None:
    source = cpu.Cpu(str(root(tmp_path, BEFORE)))
    root(tmp_path, BEFORE.replace(b"cpu1 50 0 50 300 100", b"cpu1 55 0 50 300 99").replace(b"cpu  100", b"cpu  105"))

    assert all(0.0 <= value <= 100.0 for value in source.values(1.0))


@pytest.mark.parametrize(
    "text", [b"", b"intr 5\n", b"cpu 1 2 3\ncpu0 1 2 3\nintr 1\n", b"nothing of the kind\nintr 0\n"]
)
def test_text_of_another_form_is_no_ticks(tmp_path: Path, text: bytes) -> None:
    assert cpu.parse(text) is None
    assert cpu.Cpu(str(root(tmp_path, text))).columns == ()


def test_this_machines_cores_are_measured() -> None:
    source = cpu.Cpu()

    values = source.values(0.0)

    assert len(values) == len(source.columns) >= 4
    assert all(0.0 <= value <= 100.0 for value in values)
