"""OpenTelemetry's names for the monitor's columns."""

import pytest

from toolkit.monitor.exporters.otel_names import Named, clean, of_column


@pytest.mark.parametrize(
    ("column", "named"),
    [
        ("cpu/all/used_percent", Named(name="system.cpu.utilization", scale=0.01)),
        (
            "cpu/core12/used_percent",
            Named(name="system.cpu.utilization", attributes={"cpu.logical_number": 12}, scale=0.01),
        ),
        ("rank/3/memory_bytes", Named(name="process.memory.usage", unit="By", attributes={"toolkit.rank": 3})),
        ("gpu/0/power_watts", Named(name="hw.power", unit="W", attributes={"hw.type": "gpu", "hw.id": "0"})),
        (
            "gpu/0/sm_clock_mhz",
            Named(name="toolkit.system.gpu.sm_clock_mhz", unit="MHz", attributes={"toolkit.subject": "0"}),
        ),
        ("rank/3/loader_workers", Named(name="toolkit.system.rank.loader_workers", attributes={"toolkit.rank": 3})),
        ("odd", Named(name="toolkit.system.odd")),
    ],
)
def test_a_column_has_the_conventions_name_unit_and_attributes_or_ours(column: str, named: Named) -> None:
    assert of_column(column) == named


def test_a_name_has_the_characters_that_opentelemetry_takes() -> None:
    assert clean("toolkit.metric.val/AR@100 größe") == "toolkit.metric.val/AR_100_gr__e"
