"""Measures what a job's headline is made of: its speed, the time that is left, its findings and last metrics."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit import files
from toolkit.commands.report.sections.headline import JobFigures, sort_findings
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.outcome import summarise
from toolkit.commands.report.speed import EPOCHS, STEPS, estimate_epochs_left_s, find_count
from toolkit.diagnosis.folding import fold
from toolkit.series.arrays import numpy

if TYPE_CHECKING:
    from toolkit.series.step_records import StepTable

# Of a running job, the speed is that of its newest steps.
NEWEST_STEPS = 200


def measure_job(material: Material) -> JobFigures:
    """Return the figures of the job of *material*."""
    is_running = material.job.status == "running"
    start_s, end_s = material.start_s, material.end_s
    speed = measure_speed(material, newest=NEWEST_STEPS if is_running else None)
    return JobFigures(
        status=material.job.status,
        event=summarise(material),
        is_judged=bool(material.steps or material.metrics),
        is_measured=bool(material.samples),
        duration_s=None if start_s is None or end_s is None else end_s - start_s,
        steps_per_s=speed,
        left_s=estimate_left_s(material, speed) if is_running else None,
        limit_left_s=material.job.limit_left_s(material.now_s) if is_running else None,
        findings=tuple(sort_findings(fold(material.findings))),
        metrics={name: samples[-1].value for name, samples in material.metrics.items()},
    )


def measure_speed(material: Material, *, newest: int | None = None) -> float | None:
    """Return the steps of one rank in a second, the median over the ranks: of the last attempt, of its *newest* steps
    if that is given. None: fewer than two steps were measured."""
    speeds = [_measure_rank(table, newest) for _, table in material.ranks.values()]
    measured = [speed for speed in speeds if speed is not None]
    return float(numpy().median(measured)) if measured else None


def estimate_left_s(material: Material, steps_per_s: float | None) -> float | None:
    """Return the seconds that a running job needs for the steps, or else the epochs, that its hyperparameters ask for;
    None where they ask for none, or how far it is cannot be told."""
    hyperparameters = read_hyperparameters(material)
    steps = find_count(hyperparameters, STEPS)
    if steps is not None and steps_per_s and material.ranks:
        done = max(int(table.step.max()) for _, table in material.ranks.values())
        return (steps - done) / steps_per_s if done < steps else None
    epochs = find_count(hyperparameters, EPOCHS)
    return None if epochs is None else estimate_epochs_left_s(epochs, material.metrics.get("epoch", []), material.now_s)


def read_hyperparameters(material: Material) -> Mapping[str, Any]:
    """Return the hyperparameters of the job; empty: they cannot be read."""
    for host in material.job.hosts[:1]:
        try:
            path = host.output.parent / "input" / "config" / "hyperparameters.json"
            document = msgspec.json.decode(files.read(path))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        if isinstance(document, dict):
            return document
    return {}


def _measure_rank(table: "StepTable", newest: int | None) -> float | None:
    table = table.where(table.attempt == table.attempt[-1])
    ends_s = table.end_s if newest is None else table.end_s[-newest:]
    if len(ends_s) < 2 or not ends_s[-1] > ends_s[0]:
        return None
    return (len(ends_s) - 1) / float(ends_s[-1] - ends_s[0])
