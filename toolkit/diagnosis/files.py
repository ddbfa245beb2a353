"""Evidence of a job from what its monitor left in output/monitor, and from metrics.jsonl. Needs numpy."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit.diagnosis.evidence import Evidence, MachineFacts, Readings, StepColumns, Values
from toolkit.files import read as read_document
from toolkit.metrics import file as metrics_file
from toolkit.series import measured, pauses, start_up, step_records
from toolkit.series.arrays import numpy

if TYPE_CHECKING:
    from toolkit.series.step_records import StepTable

# Samples of a job are looked at in buckets of at least a second, and at most so many: for a day, of 12 s.
BUCKET_S = 1.0
MOST_BUCKETS = 7200
# Of each rank the first and the newest steps, of each metric the newest values; of a longer job, so many means, too.
MOST_STEPS = 20_000
MOST_MEANS = 4000
MOST_READINGS = 20_000
INTERVAL_S = 0.5


def read(
    monitor: Path,
    metrics: Path | None = None,
    *,
    host: str = "",
    start_s: float | None = None,
    end_s: float | None = None,
    is_over: bool = True,
    attempt: int | None = None,
) -> Evidence:
    """Return the evidence of one host, whose folder output/monitor is *monitor*. What is missing is left out.

    *attempt*: of this one alone, 0 for the first: its steps, and the samples and metrics between *start_s* and *end_s*.

    *host*: its name, where the Debugger's files of several lie in one folder.

    *start_s*, *end_s*: when the ranks began and ended, in seconds since the epoch; None: as the files say.

    Raises:
        UserError: numpy is not installed.
    """
    document = _told(monitor / "monitor.json")
    samples = measured.of_host(monitor, host)
    table = step_records.read(monitor / "steps")
    if attempt is not None:
        table = table.where(table.attempt == attempt + 1)
    span = samples.span()
    times = [span[0], span[1]] if span else [table.end_s[0], table.end_s[-1]] if len(table) else [0.0, 0.0]
    last_s = end_s if end_s is not None else times[1]
    first_s = start_s if start_s is not None else _number(document.get("start_s"), times[0])
    if first_s > last_s:  # What monitor.json says is of the newest attempt.
        first_s = times[0]
    readings = _readings(metrics) if attempt is None else _readings(metrics, start_s, end_s)
    points = int(min(max((last_s - first_s) / BUCKET_S, 10), MOST_BUCKETS))

    def load(name: str) -> Values:
        values: list[float] = samples.series(name, first_s, last_s, points=points).mean.tolist()
        return values

    names = [column.name for column in samples.columns]
    tables = {rank: table.of(rank) for rank in table.ranks}
    longest = max(map(len, tables.values()), default=0)
    each_steps = -(-longest // MOST_MEANS) if longest > MOST_STEPS else 1
    return Evidence(
        host=str(document.get("host") or host),
        start_s=float(first_s),
        end_s=float(last_s),
        is_over=is_over,
        interval_s=_number(document.get("interval_s"), INTERVAL_S),
        machine=_machine(document.get("machine")),
        times_s=samples.series(names[0], first_s, last_s, points=points).x.tolist() if names else (),
        names=names,
        load=load,
        steps={rank: _steps(of_rank) for rank, of_rank in tables.items()},
        metrics=readings,
        courses={rank: _course(of_rank, each_steps) for rank, of_rank in tables.items()} if each_steps > 1 else {},
        course_steps=each_steps,
        pauses=pauses.read(monitor),
        start=start_up.read(monitor) if attempt in (None, 0) else None,
    )


def rules(monitor: Path) -> Any:
    """Return the rule configurations that the job asked for, as its monitor wrote them down; None: none."""
    return _told(monitor / "monitor.json").get("rules") or None


def _told(path: Path) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(read_document(path))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _machine(machine: Any) -> MachineFacts:
    if not isinstance(machine, dict):
        return MachineFacts()
    gpus = machine.get("gpus") if isinstance(machine.get("gpus"), list) else []
    names = tuple(str(gpu.get("name", "") if isinstance(gpu, dict) else gpu) for gpu in gpus or ())
    cores, limit = machine.get("cores"), machine.get("memory_limit_bytes")
    return MachineFacts(
        cores=int(cores) if isinstance(cores, int | float) else None,
        gpus=names,
        memory_limit_bytes=float(limit) if isinstance(limit, int | float) else None,
        boot_id=str(machine.get("boot_id") or ""),
    )


def _number(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) else float(otherwise)


def _steps(table: "StepTable") -> StepColumns:
    def newest(values: Any) -> list[float]:
        seconds: list[float] = [*values[:1].tolist(), *values[1:][-MOST_STEPS:].tolist()]
        return seconds

    return StepColumns(**{name: newest(getattr(table, name)) for name in StepColumns.__struct_fields__})


def _course(table: "StepTable", each_steps: int) -> StepColumns:
    """Return the means of *each_steps* steps with numbers in a row; NaN of what was not measured in any.

    A part of the step that was measured in some of them alone, as saving, took 0 s in the others.
    """
    np = numpy()
    groups = table.step // each_steps
    firsts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1))

    def means(name: str) -> list[float]:
        values = getattr(table, name)
        known = np.isfinite(values)
        measured = known if name == "step_s" or not known.any() else np.ones(len(values), bool)
        counts = np.add.reduceat(measured.astype("f8"), firsts)
        sums = np.add.reduceat(np.where(known, values, 0.0), firsts)
        seconds: list[float] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).tolist()
        return seconds

    lasts = np.append(firsts[1:], len(groups)) - 1
    columns = {name: means(name) for name in StepColumns.__struct_fields__ if name not in ("step", "end_s")}
    return StepColumns(step=table.step[firsts].tolist(), end_s=table.end_s[lasts].tolist(), **columns)


def _readings(
    path: Path | None, start_s: float | None = None, end_s: float | None = None
) -> dict[str, dict[int | None, Readings]]:
    """Return the values of metrics, all or those from *start_s* to *end_s*."""
    first_s = -math.inf if start_s is None else start_s
    last_s = math.inf if end_s is None else end_s
    rows: dict[str, dict[int | None, list[tuple[float, float, float]]]] = {}
    for sample in _samples(path):
        if not first_s <= sample.time_s <= last_s:
            continue
        step = float("nan") if sample.step is None else float(sample.step)
        rows.setdefault(sample.name, {}).setdefault(sample.rank, []).append((sample.time_s, sample.value, step))
    return {
        name: {
            rank: Readings(
                time_s=[row[0] for row in values[-MOST_READINGS:]],
                value=[row[1] for row in values[-MOST_READINGS:]],
                step=[row[2] for row in values[-MOST_READINGS:]],
            )
            for rank, values in ranks.items()
        }
        for name, ranks in rows.items()
    }


def _samples(path: Path | None) -> Iterable[metrics_file.Sample]:
    if path is None:
        return
    try:
        yield from metrics_file.read(path)
    except OSError:
        return  # Nothing was captured.
