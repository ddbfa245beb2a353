"""Builds the section "last-minutes": cause, last lines, and memory, GPUs and steps of all hosts on one cursor."""

import re
from typing import TYPE_CHECKING

from toolkit.commands.jobs.ending import describe_cause, name_culprit
from toolkit.commands.report.model import Axis, Block, Chart, Line, Lines, Mark, Words
from toolkit.commands.report.sections.lines import TIME, Window, build_chart, build_line, label_limit
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.outcome import TONES
from toolkit.commands.report.sections.system import list_numbers
from toolkit.commands.report.sections.words import first_line, format_duration, format_size, format_utc

if TYPE_CHECKING:
    from toolkit.series.sample_reader import Samples

BEFORE_S, AFTER_S = 120.0, 10.0
LOG_LINES = 30
MOST_LINES = 32  # In one chart: of GPUs, ranks or hosts.
CURSOR = "last-minutes"
_GPU = re.compile(r"gpu/(\d+)/used_percent")


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "last-minutes"."""
    job = material.job
    blocks: list[Block] = []
    window = choose_window(material)
    if job.status in ("failed", "stopped", "unfinished"):
        who = name_culprit(job)
        cause = first_line(describe_cause(job))
        blocks.append(
            Words(name="What ended the job", text=f"{who}: {cause}" if who else cause, tone=TONES[job.status])
        )
    if window is not None:
        blocks.append(
            Words(
                name="Window",
                text=f"{format_utc(window[0])} to {format_utc(window[1])}, {format_duration(window[1] - window[0])}",
            )
        )
        if material.samples or material.steps:
            blocks += _warn_of_memory(material, window)
            blocks += _build_charts(material, window)
        else:
            blocks.append(Words(text=material.why_unmeasured))
    first = material.blamed or next(iter(job.hosts), None)
    lines = material.log_of(first, LOG_LINES) if first else ()
    if first is not None and lines:
        blocks.append(Lines(id="last-lines", title=f"The last lines of {first.name}", lines=lines))
    return blocks or [Words(text="When the job ended is not known: it left no outcome, metric or sample.")]


def choose_window(material: Material) -> Window | None:
    """Return the two minutes before the failure (or the end) and ten seconds after it."""
    if material.end_s is None:
        return None
    at_s = material.failed_s or material.end_s
    end_s = min(at_s + AFTER_S, max(material.end_s, at_s))
    return max(end_s - BEFORE_S - AFTER_S, material.start_s or 0.0, at_s - BEFORE_S), end_s


def _warn_of_memory(material: Material, window: Window) -> list[Block]:
    """Return a warning for each host that used 90 % or more of its memory."""
    blocks: list[Block] = []
    for host, samples in material.samples.items():
        used = build_line(samples, "memory/container/used_bytes", host, window, points=None)
        limit = build_line(samples, "memory/container/limit_bytes", host, window, points=None)
        if used is None or limit is None:
            continue
        top = max(value for value in (used.high or used.mean) if value == value)
        least = min(value for value in limit.mean if value == value)
        if least > 0 and top / least >= 0.9:
            text = f"Host {host} used {format_size(top)} of its {format_size(least)} of memory ({top / least:.0%})."
            blocks.append(Words(name="Memory", text=text, tone="warn"))
    return blocks


def _build_charts(material: Material, window: Window) -> list[Chart]:
    marks = _mark_failure(material)
    hosts = list(material.samples.items())
    memory: list[Line | None] = []
    for host, samples in hosts[:MOST_LINES]:
        memory += label_limit(
            _build_raw_line(samples, "memory/container/used_bytes", f"{host} used", host, window),
            _build_raw_line(samples, "memory/container/limit_bytes", f"{host} limit", host, window),
        )
    gpus = [
        _build_raw_line(samples, f"gpu/{gpu}/used_percent", f"{host} GPU {gpu}", host, window)
        for host, samples in hosts
        for gpu in list_numbers(samples, _GPU)
    ]
    cpu = [_build_raw_line(samples, "cpu/all/used_percent", host, host, window) for host, samples in hosts[:MOST_LINES]]
    formula = "Every sample that was kept: raw values around the end, seconds before them."
    return [
        *build_chart(
            "last-memory", "Memory against its limit", "bytes", memory, cursor=CURSOR, marks=marks, formula=formula
        ),
        *build_chart("last-gpus", "GPUs", "percent", gpus[:MOST_LINES], cursor=CURSOR, marks=marks, formula=formula),
        *build_chart("last-cpu", "CPU", "percent", cpu, cursor=CURSOR, marks=marks, formula=formula),
        *_build_step_chart(material, window, marks),
    ]


def _build_raw_line(samples: "Samples", column: str, name: str, host: str, window: Window) -> Line | None:
    return build_line(samples, column, name, window, points=None, source=f"monitor/samples of host {host}, {column}")


def _build_step_chart(material: Material, window: Window, marks: tuple[Mark, ...]) -> list[Chart]:
    lines = []
    for host, table in material.steps.items():
        inside = table.where((table.end_s >= window[0]) & (table.end_s <= window[1]))
        for rank in inside.ranks:
            rank_steps = inside.of(rank)
            source = f"monitor/steps of host {host}, rank {rank}"
            lines.append(
                Line(
                    name=f"rank {rank}",
                    x=tuple(rank_steps.end_s.tolist()),
                    mean=tuple(rank_steps.step_s.tolist()),
                    source=source,
                )
            )
    if not lines:
        return []
    axis = Axis(name="step time", unit="s", low=0.0)
    formula = "Each step of each rank, at the time of its end."
    return [
        Chart(
            id="last-steps",
            title="Steps",
            x=TIME,
            y=axis,
            lines=tuple(lines[:MOST_LINES]),
            marks=marks,
            cursor=CURSOR,
            style="points",
            formula=formula,
        )
    ]


def _mark_failure(material: Material) -> tuple[Mark, ...]:
    if material.failed_s is None:
        return ()
    return (Mark(start=material.failed_s, text=f"failure: {name_culprit(material.job) or 'the job'}", tone="bad"),)
