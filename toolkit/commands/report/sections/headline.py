"""Pure: the headline of a job, the line by which every form of its report begins.

Of a job that succeeded or runs: its speed, the finding that cost most with its share of the time, the last metrics. Of
another: the cause of its end, joined with the finding that explains it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from toolkit.commands.report.model import Phrase
from toolkit.commands.report.sections.words import format_duration, format_number
from toolkit.commands.report.speed import describe_left, format_speed
from toolkit.diagnosis.folding import FoldedFinding
from toolkit.records import Record

MOST_METRICS = 2
MOST_UNEXPLAINED = 0.25  # A larger share stands beside "no finding", which says little then.
MOST_CHARACTERS = 160  # Of the finding's sentence.
# What a reader wants to know of a metric first, by a part of its name; counters and schedules say nothing of a result.
TELLING = ("val", "eval", "test", "acc", "f1", "auc", "perplexity", "bleu", "reward", "loss")
SILENT = re.compile(r"(?i)(^|[^a-z])(step|epoch|iter|iteration|lr|learning[ _-]?rate|time|seconds)([^a-z]|$)")
# The findings that explain how a job ended, by the words of its cause.
EXPLAINS = (
    (re.compile(r"(?i)out of memory|oom|SIGKILL|MemoryError|cannot allocate"), ("MemoryLimit", "GPUMemoryIncrease")),
    (re.compile(r"(?i)\bnan\b|\binf(inite)?\b|overflow|diverge"), ("ExplodingTensor",)),
    (re.compile(r"(?i)no rank has written|timed? ?out|hang|hung"), ("StalledTrainingRule", "SlowRank")),
    (re.compile(r"(?i)no space left|disk"), ("IOBottleneck",)),
)
LAST_WORDS = "; it last said: "
# Rules that say which steps or rank are slow, where others say why; the part of their cost that counts in the order.
SYMPTOMS = {"SlowRank": 0.9, "StepOutlier": 0.3, "StepAlternation": 0.9, "StepSlowdown": 0.9, "Dataloader": 0.95}
# Rules on what ends a job or makes its result worthless, which is worse than any time that is lost.
RUINOUS = ("MemoryLimit", "ExplodingTensor")
# The charts that show a finding, by a part of its rule's name. {host}: the host's name.
CHARTS = (
    ("GPUMemory", ("{host}-memory_used_bytes",)),
    ("Memory", ("{host}-rank-memory", "{host}-memory")),
    ("GPU", ("{host}-used_percent", "{host}-heat")),
    ("CPU", ("{host}-cpu", "{host}-heat")),
    ("Core", ("{host}-heat", "{host}-cpu")),
    ("Thread", ("{host}-heat", "{host}-cpu")),
    ("IO", ("{host}-disk", "{host}-pressure")),
    ("Disk", ("{host}-disk", "{host}-pressure")),
    ("SlowRank", ("steps-by-rank", "step-time")),
    ("Step", ("step-time",)),
    ("Data", ("step-time",)),
    ("Evaluation", ("step-time",)),
    ("Checkpoint", ("step-time",)),
    ("Collection", ("step-time",)),
    ("Initialization", ("ledger",)),
)


class JobFigures(Record, frozen=True, kw_only=True):
    """The figures of a job that its headline is made of."""

    status: str
    """The job's status."""
    event: str
    """What happened to it, in a sentence."""
    is_judged: bool = False
    """True: rules have looked at its samples, steps or metrics."""
    is_measured: bool = False
    """True: its monitor took samples."""
    duration_s: float | None = None
    """Its seconds from start to end; None: not known."""
    steps_per_s: float | None = None
    """The steps of one rank in a second; None: none was measured."""
    left_s: float | None = None
    """The seconds until its steps or epochs are done; None: not known, or it has ended."""
    limit_left_s: float | None = None
    """The seconds until max-run stops it; None: it has no such limit, or it has ended."""
    findings: tuple[FoldedFinding, ...] = ()
    """Its findings, the most costly one first."""
    unexplained_share: float = 0.0
    """The share of its time, 0 to 1, that the ledger cannot explain."""
    metrics: Mapping[str, float] = {}
    """The last value of each metric."""
    damaged_records: int = 0
    """Its records that can be read in part at most, each of which a note names."""


def describe_headline(figures: JobFigures, anchors: Sequence[str] = ()) -> tuple[Phrase, ...]:
    """Return the headline in phrases, which joined are its text. *anchors*: of blocks to which a phrase may lead."""
    if not figures.damaged_records:
        return _describe_end(figures, anchors)
    damaged = "A record is" if figures.damaged_records == 1 else f"{figures.damaged_records} records are"
    note = Phrase(text=f"{damaged} damaged", link="outcome" if "outcome" in anchors else "")
    return *_describe_end(figures, anchors), Phrase(text=" "), note, Phrase(text=": the notes say what is missing.")


def _describe_end(figures: JobFigures, anchors: Sequence[str]) -> tuple[Phrase, ...]:
    if figures.status in ("succeeded", "running"):
        facts = list(_list_facts(figures, anchors))
        if figures.is_measured and not (figures.is_judged or figures.findings):
            facts.insert(0, Phrase(text="no step was measured and no metric captured"))
        if not facts:
            return (Phrase(text=figures.event),)
        facts[0] = Phrase(text=facts[0].text[:1].upper() + facts[0].text[1:], link=facts[0].link)
        joined = [part for fact in facts for part in (Phrase(text="; "), fact)][1:]
        return (*joined, Phrase(text=f". {figures.event}"))
    explaining = find_explanation(figures)
    if explaining is None:
        return (Phrase(text=figures.event),)
    finding = _describe_finding(explaining, figures, anchors)
    event = figures.event.partition(LAST_WORDS)[0].rstrip(".")  # The finding says more than what was printed last.
    return Phrase(text=f"{event}: "), finding, Phrase(text=".")


def sort_findings(findings: Sequence[FoldedFinding]) -> list[FoldedFinding]:
    """Return *findings*, the most costly one first; those of unknown cost follow in their order, but for those of
    RUINOUS, which stand before all.

    The cost of a rule of SYMPTOMS counts in part: one that names a cause has found the same time.
    """
    return sorted(
        findings,
        key=lambda group: (
            group.finding.rule not in RUINOUS,
            -_cost_s(group) * SYMPTOMS.get(group.finding.rule, 1.0),
        ),
    )


def find_explanation(figures: JobFigures) -> FoldedFinding | None:
    """Return the finding that explains the end of the job, None if no finding does."""
    for pattern, rules in EXPLAINS:
        if pattern.search(figures.event):
            explaining = (group for group in figures.findings if group.finding.rule in rules)
            if (group := next(explaining, None)) is not None:
                return group
    return None


def _list_facts(figures: JobFigures, anchors: Sequence[str]) -> Iterator[Phrase]:
    if figures.steps_per_s:
        yield Phrase(text=format_speed(figures.steps_per_s), link="step-time" if "step-time" in anchors else "")
    if left := describe_left(figures.left_s, figures.limit_left_s, format_duration):
        yield Phrase(text=left)
    if figures.findings:
        yield _describe_finding(figures.findings[0], figures, anchors)
    elif figures.is_judged:
        yield Phrase(text="no finding")
        if figures.steps_per_s and figures.unexplained_share >= MOST_UNEXPLAINED:
            share = f"{figures.unexplained_share:.0%}".replace("%", " %")
            yield Phrase(text=f"{share} of the time is unexplained", link="ledger" if "ledger" in anchors else "")
    for name in choose_metrics(figures.metrics):
        anchor = f"metric-{name}"
        yield Phrase(text=f"{name} {format_number(figures.metrics[name])}", link=anchor if anchor in anchors else "")


def choose_metrics(names: Mapping[str, float]) -> list[str]:
    """Return the names of the metrics that say most of a result."""
    telling = [name for name in names if not SILENT.search(name)]

    def order(name: str) -> int:
        return next((number for number, part in enumerate(TELLING) if part in name.lower()), len(TELLING))

    return sorted(telling, key=lambda name: (order(name), name))[:MOST_METRICS]


def shorten_sentence(text: str) -> str:
    """Return the first clause of a finding's *text*, without its end."""
    clause = re.split(r"[;:.](?:\s|$)", text, maxsplit=1)[0].strip()
    if clause.count("(") > clause.count(")"):  # "8 loader workers run on 2 cores (busy: core0)".
        clause = clause.rpartition("(")[0].rstrip()
    return clause if len(clause) <= MOST_CHARACTERS else f"{clause[: MOST_CHARACTERS - 1].rstrip()}…"


def describe_share(group: FoldedFinding, duration_s: float | None) -> str:
    """Return "72 % of the time", the share of the job's that the finding cost; "" if that is not known."""
    cost_s = _cost_s(group)
    if cost_s <= 0 or not duration_s:
        return ""
    share = min(cost_s / duration_s, 1.0)
    return f"{share:.0%} of the time".replace("%", " %") if share >= 0.01 else "less than 1 % of the time"


def _describe_finding(group: FoldedFinding, figures: JobFigures, anchors: Sequence[str]) -> Phrase:
    clause = _lower_first(shorten_sentence(group.finding.text))
    share = describe_share(group, figures.duration_s)
    return Phrase(text=f"{share}: {clause}" if share else clause, link=_find_chart(group, anchors))


def _lower_first(clause: str) -> str:
    """Return *clause* for the middle of a sentence: "GPU" and "Python's" keep their capitals."""
    first = clause.split(" ", 1)[0]
    is_plain = (first[1:].islower() and not first.startswith("Python")) or first == "A"
    return clause[:1].lower() + clause[1:] if is_plain else clause


def _find_chart(group: FoldedFinding, anchors: Sequence[str]) -> str:
    finding = group.finding
    for part, charts in CHARTS:
        if part in finding.rule:
            for chart in charts:
                anchor = chart.format(host=finding.host)
                if anchor in anchors:
                    return anchor
    metric = f"metric-{finding.subject}"
    return metric if metric in anchors else "findings"


def _cost_s(group: FoldedFinding) -> float:
    return max((finding.lost_s or 0.0 for finding in group.all), default=0.0)
