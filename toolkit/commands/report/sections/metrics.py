"""Builds the section "metrics": loss and other captured metrics, by step if the log has the step, else by time."""

import math
import re

import msgspec

from toolkit import files
from toolkit.commands.report.model import Axis, Block, Chart, Line, Table, Tone, Words, make_table
from toolkit.commands.report.sections.marks import list_marks
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.thin import thin_line
from toolkit.commands.report.sections.words import count_words, format_duration
from toolkit.errors import ContractError
from toolkit.metrics import definition
from toolkit.metrics.sample import Sample

MOST_LINES = 16
# More metrics than these are folded: the reader opens them.
MOST_CHARTS = 12
# The page has no more of them: the file metrics.jsonl has all.
MOST_FOLDED, MOST_TABLE_ROWS, MOST_NAMED = 100, 500, 12
# What counts where the job is, and says nothing of how it does: the table has it, and no chart.
COUNTERS = re.compile(r"(?i)(^|[/:._ -])(global[_ -]?)?(step|epoch|iter|iteration)s?$")
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
ALL_METRICS = "output/metrics.jsonl of each host has every value."
Place = tuple[str, int | None]


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "metrics"."""
    unmatched = _name_unmatched(material)
    if not material.metrics:
        return unmatched or [Words(text=MISSING)]
    several = len(material.job.hosts) > 1
    names = sorted(material.metrics, key=lambda name: _sort_key(material, name))
    blocks: list[Block] = [*unmatched, _build_values_table(material, names)]
    charted = [name for name in names if not COUNTERS.search(name)]
    for name in charted[:MOST_CHARTS]:
        blocks += _warn_of_odd_value(material, name)
        blocks.append(_build_chart(material, name, several))
    more = charted[MOST_CHARTS:]
    odd = [name for name in more if _find_odd_value(material, name) is not None]
    if odd:
        became = f"{count_words(len(odd), 'more metric')} became NaN or infinite: {_join_names(odd)}."
        blocks.append(Words(text=became, tone="warn"))
    if len(more) > MOST_FOLDED:
        left_out = more[MOST_FOLDED:]
        text = f"{count_words(len(left_out), 'metric')} without a chart here ({_join_names(left_out)}): {ALL_METRICS}"
        blocks.append(Words(text=text))
    return blocks + [_build_chart(material, name, several, folded=True) for name in more[:MOST_FOLDED]]


def _join_names(names: list[str]) -> str:
    """Return *names* with commas, of many the first and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _name_unmatched(material: Material) -> list[Block]:
    """Return a warning that names the metrics whose patterns matched no line of the log of any host."""
    defined: dict[str, str] = {}
    for host in material.job.hosts:
        path = host.output.parent / "input" / "config" / "metric-definition-regex.json"
        try:
            defined |= definition.pairs(msgspec.json.decode(files.read(path)), str(path))
        except (OSError, ContractError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    names = [name for name in defined if name not in material.metrics]
    if not names or material.job.status == "running":
        return []
    each = "Its pattern" if len(names) == 1 else "Their patterns"
    text = f"{count_words(len(names), 'metric')} never captured: {_join_names(names)}. {each} matched nothing."
    tone: Tone = "warn" if material.job.status == "succeeded" else "plain"
    return [Words(text=text, tone=tone, advice="Try the pattern: toolkit metrics try LOG (docs/metrics.md).")]


def _sort_key(material: Material, name: str) -> tuple[int, bool, list[str | int]]:
    """Return where *name* stands: FIRST in its order, then what became NaN or infinite; layer2 before layer10."""
    low = name.lower()
    place = next((number for number, part in enumerate(FIRST) if part in low), len(FIRST))
    numbered = [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", low)]
    return place, _find_odd_value(material, name) is None, numbered


def _build_values_table(material: Material, names: list[str]) -> Table:
    rows = []
    for name in names[:MOST_TABLE_ROWS]:
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
    cut = f" The first {MOST_TABLE_ROWS:,} of {len(names):,} metrics: {ALL_METRICS}" if names[MOST_TABLE_ROWS:] else ""
    columns = ("metric", "values", "first", "least", "greatest", "last")
    return make_table(
        "metric-values",
        "Values",
        columns,
        rows,
        note=f"All ranks together, by time. NaN and infinity count as values, but not for least and greatest.{cut}",
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
        marks=() if by_step else tuple(list_marks(material, is_shown=lambda finding: finding.subject == name)),
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
