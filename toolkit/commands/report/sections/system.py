"""Builds the section "system": for each host charts of CPU, memory, pressure, disk, network, GPUs, and a heat map."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.commands.report.model import Block, Chart, Line, Mark, Words
from toolkit.commands.report.sections.lines import Window, build_chart, build_heat_map, build_line, label_limit
from toolkit.commands.report.sections.marks import is_about_host, list_marks
from toolkit.commands.report.sections.material import Material

if TYPE_CHECKING:
    from toolkit.series.sample_reader import Samples

MOST_HOSTS = 16
_CORE = re.compile(r"cpu/core(\d+)/used_percent")
_GPU = re.compile(r"gpu/(\d+)/used_percent")
LIMIT = (("memory/container/limit_bytes", "limit", True),)
# title, unit, formula, then (column, label, shown).
CHARTS: tuple[tuple[str, str, str, tuple[tuple[str, str, bool], ...]], ...] = (
    (
        "CPU",
        "percent",
        "Share of the time of all cores, from /proc/stat. Throttled: share of the kernel's periods in which the "
        "container used up its quota.",
        (
            ("cpu/all/used_percent", "used", True),
            ("cpu/all/iowait_percent", "waiting for a disk", True),
            ("cpu/all/throttled_percent", "throttled", True),
        ),
    ),
    (
        "Memory",
        "bytes",
        "The container's memory without page cache that the kernel can take back, and its limit (cgroup).",
        (
            ("memory/container/used_bytes", "used", True),
            *LIMIT,
            ("memory/shm/used_bytes", "/dev/shm", True),
        ),
    ),
    (
        "Pressure",
        "percent",
        "Share of the time in which some (full: all) tasks waited for it, as the kernel counts (PSI).",
        (
            ("pressure/cpu/some_percent", "CPU", True),
            ("pressure/memory/some_percent", "memory", True),
            ("pressure/memory/full_percent", "memory, full", False),
            ("pressure/io/some_percent", "disk", True),
            ("pressure/io/full_percent", "disk, full", False),
        ),
    ),
    (
        "Disk",
        "bytes/s",
        "All disks of the machine, or of the container where it is counted.",
        (("disk/all/read_bytes_per_s", "read", True), ("disk/all/write_bytes_per_s", "written", True)),
    ),
    (
        "Network",
        "bytes/s",
        "All interfaces but loopback.",
        (
            ("network/all/received_bytes_per_s", "received", True),
            ("network/all/sent_bytes_per_s", "sent", True),
        ),
    ),
)
# title, unit, metric of every GPU.
GPU_CHARTS = (
    ("GPU utilisation", "percent", "used_percent"),
    ("GPU SM activity", "percent", "sm_active_percent"),
    ("GPU memory", "bytes", "memory_used_bytes"),
    ("GPU power", "W", "power_watts"),
    ("GPU temperature", "°C", "temperature_celsius"),
    ("GPU clock", "MHz", "sm_clock_mhz"),
)

# What stands in for a chart or a GPU's metric that was not measured: SageMaker Debugger has no bytes.
IN_PERCENT = ("Memory", "percent", "Share of the memory, as SageMaker Debugger counts it.")
GPU_IN_PERCENT = ("GPU memory", "percent", "memory_used_percent")


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "system"."""
    if not material.samples:
        return [Words(text=material.why_unmeasured)]
    blocks: list[Block] = []
    for host, samples in list(material.samples.items())[:MOST_HOSTS]:
        blocks += build_host_blocks(material, host, samples)
    if len(material.samples) > MOST_HOSTS:
        blocks.append(Words(text=f"The other {len(material.samples) - MOST_HOSTS} hosts are not shown."))
    return blocks


def build_host_blocks(material: Material, host: str, samples: "Samples") -> list[Block]:
    """Return the charts and the heat map of one host over the whole job."""
    window = samples.span()
    if window is None:
        return []
    job_marks = tuple(list_marks(material, elapsed=False, is_shown=lambda finding: is_about_host(finding, host)))
    source = f"monitor/samples of host {host}"
    blocks: list[Block] = []
    for title, unit, formula, columns in CHARTS:
        if title == "Memory" and not any(
            sample_column.name == "memory/container/used_bytes" for sample_column in samples.columns
        ):
            title, unit, formula = IN_PERCENT
            columns = (("memory/container/used_percent", "used", True),)
        lines = [
            build_line(samples, column, label, window, source=f"{source}, {column}", is_shown=is_shown)
            for column, label, is_shown in columns
        ]
        if columns[1:2] == LIMIT:
            lines = [*label_limit(*lines[:2]), *lines[2:]]
        name = f"{host}-{title.lower()}"
        blocks += build_chart(
            name, f"{title} of {host}", unit, lines, cursor="system", marks=job_marks, formula=formula
        )
    blocks += build_gpu_charts(host, samples, window, job_marks)
    blocks += build_rank_chart(host, samples, window, job_marks)
    rows = [(f"core {number}", f"cpu/core{number}/used_percent") for number in list_numbers(samples, _CORE)]
    rows += [(f"GPU {number}", f"gpu/{number}/used_percent") for number in list_numbers(samples, _GPU)]
    blocks += build_heat_map(
        f"{host}-heat", f"Cores and GPUs of {host}", samples, rows, window, cursor="system", marks=job_marks
    )
    return blocks


def build_gpu_charts(host: str, samples: "Samples", window: Window, marks: Sequence[Mark]) -> list[Chart]:
    """Return a chart for each quantity that the GPUs of *host* report."""
    gpus = list_numbers(samples, _GPU)
    charts = []
    for title, unit, metric in GPU_CHARTS:
        lines: list[Line | None] = [
            build_line(
                samples,
                f"gpu/{gpu}/{metric}",
                f"GPU {gpu}",
                window,
                source=f"monitor/samples of host {host}, gpu/{gpu}/{metric}",
            )
            for gpu in gpus
        ]
        if metric == "memory_used_bytes" and not any(lines):
            title, unit, metric = GPU_IN_PERCENT
            lines = [
                build_line(samples, f"gpu/{gpu}/{metric}", f"GPU {gpu}", window, source=f"gpu/{gpu}/{metric}")
                for gpu in gpus
            ]
        charts += build_chart(
            f"{host}-{metric}", f"{title} of {host}", unit, lines, cursor="system", marks=marks, formula="From NVML."
        )
    return charts


def build_rank_chart(host: str, samples: "Samples", window: Window, marks: Sequence[Mark]) -> list[Chart]:
    """Return the memory of each rank of *host*, with its children."""
    ranks = list_numbers(samples, re.compile(r"rank/(\d+)/memory_bytes"))
    lines = [build_line(samples, f"rank/{rank}/memory_bytes", f"rank {rank}", window) for rank in ranks]
    formula = "Resident memory of the rank and its children."
    return build_chart(
        f"{host}-rank-memory",
        f"Memory of the ranks of {host}",
        "bytes",
        lines,
        cursor="system",
        marks=marks,
        formula=formula,
    )


def list_numbers(samples: "Samples", pattern: re.Pattern[str]) -> list[int]:
    """Return the numbers in the names of columns that *pattern* matches, ascending."""
    matches = (pattern.fullmatch(column.name) for column in samples.columns)
    return sorted({int(match[1]) for match in matches if match})
