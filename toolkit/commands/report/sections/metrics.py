"""Builds the section "metrics": loss and other captured metrics, by step if the log has the step, else by time."""

import math
import re

from toolkit.commands.report.model import Axis, Block, Chart, Line, Table, Words, make_table
from toolkit.commands.report.sections.marks import list_marks
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.thin import thin_line
from toolkit.commands.report.sections.words import count_words, format_duration
from toolkit.metrics.sample import Sample

MOST_LINES = 16
# More metrics than these are folded: the reader opens them.
MOST_CHARTS = 12
# What people look at first, by a part of the name; the other names follow by the alphabet.
FIRST = (
    "loss",
    "acc",
    "f1",
    "auc",
    "perplexity",
    "bleu",
    "error",
    "val",
    "eval",
    "reward",
    "throughput",
    "per_s",
    "lr",
)
MISSING = (
    "No metric was captured. Give metric definitions, for example --metric 'loss=loss=([-+.0-9a-z]+)' "
    "(docs/metrics.md; `toolkit metrics try` shows what a regex finds in a log)."
)
Place = tuple[str, int | None]


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "metrics"."""
    if not material.metrics:
        return [Words(text=MISSING)]
    several = len(material.job.hosts) > 1
    names = sorted(material.metrics, key=lambda name: _sort_key(material, name))
    blocks: list[Block] = [_build_values_table(material, names)]
    for name in names[:MOST_CHARTS]:
        blocks += _warn_of_odd_value(material, name)
        blocks.append(_build_chart(material, name, several))
    more = names[MOST_CHARTS:]
    odd = [name for name in more if _find_odd_value(material, name) is not None]
    if odd:
        blocks.append(
            Words(text=f"{count_words(len(odd), 'more metric')} became NaN or infinite: {', '.join(odd)}.", tone="warn")
        )
    return blocks + [_build_chart(material, name, several, folded=True) for name in more]


def _sort_key(material: Material, name: str) -> tuple[int, bool, list[str | int]]:
    """Return where *name* stands: FIRST in its order, then what became NaN or infinite; layer2 before layer10."""
    low = name.lower()
    place = next((number for number, part in enumerate(FIRST) if part in low), len(FIRST))
    numbered = [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", low)]
    return place, _find_odd_value(material, name) is None, numbered


def _build_values_table(material: Material, names: list[str]) -> Table:
    rows = []
    for name in names:
        values = [sample.value for sample in material.metrics[name] if math.isfinite(sample.value)]
        last = material.metrics[name][-1].value
        rows.append(
            (
                name,
                len(material.metrics[name]),
                values[0] if values else None,
                min(values, default=None),
                max(values, default=None),
                last if math.isfinite(last) else str(last),
            )
        )
    columns = ("metric", "values", "first", "least", "greatest", "last")
    return make_table(
        "metric-values",
        "Values",
        columns,
        rows,
        note="All ranks together, by time. NaN and infinity count as values, but not for least and greatest.",
    )


def _warn_of_odd_value(material: Material, name: str) -> list[Block]:
    """Return a warning if *name* became NaN or infinite."""
    odd = _find_odd_value(material, name)
    if odd is None:
        return []
    position = f"step {odd.step}" if odd.step is not None else _describe_time(material, odd)
    rank = "" if odd.rank is None else f", rank {odd.rank}"
    return [
        Words(text=f"{name} was {odd.value} at {position} (host {odd.host}{rank}) for the first time.", tone="warn")
    ]


def _find_odd_value(material: Material, name: str) -> Sample | None:
    return next((sample for sample in material.metrics[name] if not math.isfinite(sample.value)), None)


def _describe_time(material: Material, sample: Sample) -> str:
    return f"{format_duration(sample.time_s - (material.start_s or sample.time_s))} after the start"


def _build_chart(material: Material, name: str, several: bool, *, folded: bool = False) -> Chart:
    samples = material.metrics[name]
    by_step = all(sample.step is not None for sample in samples)
    start_s = material.start_s or samples[0].time_s
    groups: dict[Place, list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.host, sample.rank), []).append(sample)
    lines: list[Line] = []
    for place in sorted(groups, key=lambda group: (-1 if group[1] is None else group[1], group[0]))[:MOST_LINES]:
        line_samples = _sort_by_step(groups[place]) if by_step else groups[place]
        x = [float(sample.step or 0) if by_step else sample.time_s - start_s for sample in line_samples]
        source = f"metrics.jsonl of host {place[0]}, name {name}"
        lines.append(
            thin_line(_label_line(place, several), x, [sample.value for sample in line_samples], source=source)
        )
    formula = (
        "Each value as captured from the log, over its step." if by_step else "Each value over the time it was read."
    )
    if len(groups) > MOST_LINES:
        formula += f" The first {MOST_LINES} of {len(groups)} ranks."
    return Chart(
        id=f"metric-{name}",
        title=name,
        x=Axis(name="step", kind="step") if by_step else Axis(name="time since the start", unit="s", kind="elapsed"),
        y=Axis(name=name),
        lines=tuple(lines),
        marks=() if by_step else tuple(list_marks(material)),
        cursor="step" if by_step else "elapsed",
        formula=formula,
        folded=folded,
    )


def _sort_by_step(samples: list[Sample]) -> list[Sample]:
    """Return *samples* by step; a step that was repeated after a restart has its newest value."""
    newest = {sample.step: sample for sample in samples}
    return sorted(newest.values(), key=lambda sample: sample.step or 0)


def _label_line(place: Place, several: bool) -> str:
    host, rank = place
    if rank is None:
        return host
    return f"rank {rank} ({host})" if several else f"rank {rank}"
