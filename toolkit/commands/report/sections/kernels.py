"""Builds the section "kernels" from traces: kernels (on a CPU operators), waiting ranks, slow beside healthy ranks."""

from collections.abc import Mapping, Sequence

import msgspec

from toolkit.commands.report.model import (
    Axis,
    Block,
    Cell,
    Chart,
    ColumnSpec,
    Line,
    Lines,
    Part,
    Shares,
    Table,
    Words,
    make_table,
)
from toolkit.commands.report.sections import compared, slow_rank_traces
from toolkit.commands.report.sections.compared import MILLI, shorten_name
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.traced import TracedJob
from toolkit.commands.report.sections.words import count_words, format_duration
from toolkit.traces.figures import TOP, Activity, AnnotationTimes, Operator, TraceFigures, compute_figures
from toolkit.traces.rank_comparison import RankComparison, compare_ranks

MISSING = 'No trace was taken. Set TOOLKIT_PROFILE="steps 10-20" for the job, or call smppy in its script.'
BINS = 20
MOST_ANNOTATIONS = 12
# Histograms of annotations: those that took the most time.
MOST_CHARTS = 3
MICRO = 1e6


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "kernels"."""
    shown_ids = {id(pair) for pair in slow_rank_traces.find_pairs(material)}  # They are shown with their finding.
    other_pairs = tuple(pair for pair in material.traced.pairs if id(pair) not in shown_ids)
    step_counts = {} if material.job.restarts else {rank: len(table) for rank, (_, table) in material.ranks.items()}
    return build_trace_blocks(msgspec.structs.replace(material.traced, pairs=other_pairs), step_counts)


def build_trace_blocks(traced: TracedJob, step_counts: Mapping[int, int] | None = None) -> list[Block]:
    """Return the blocks of *traced*. The tables by name are of the first rank. *step_counts*: how many steps of each
    rank the monitor counted."""
    blocks: list[Block] = [Words(text=text, tone="warn", name="Trace not read") for text in traced.unread]
    all_figures = [compute_figures(trace) for trace in traced.traces]
    ran = [trace_figures for trace_figures in all_figures if trace_figures.operators]
    if not ran:
        return [*blocks, Words(text=MISSING if not traced.traces else "The traces hold no kernel and no operator.")]
    first = ran[0]
    blocks.append(Words(text=_describe_sample(traced, ran, step_counts or {}), name="Sampled"))
    ranks = compare_ranks(traced.traces)
    blocks += _describe_straggler(ranks)
    blocks += _build_activity(ran)
    blocks.append(_build_utilisation_chart(ran))
    blocks += [_build_table_by_time(first), _build_table_by_calls(first), *_list_full_names(first)]
    blocks += _build_precision(first)
    blocks += _build_step_histogram(first)
    blocks += _build_annotations(first)
    if len(ranks.ranks) > 1:
        blocks.append(_build_rank_table(ranks))
    return blocks + [compared.compare_pair(pair) for pair in traced.pairs]


def _describe_sample(traced: TracedJob, ran: Sequence[TraceFigures], step_counts: Mapping[int, int]) -> str:
    """Return a sentence on the share of the run that was traced."""
    first = ran[0]
    text = f"The tables are of rank {first.rank or 0}" if len(ran) > 1 else "The tables are of one rank"
    text += f", {format_duration(first.span_s)} with {count_words(len(first.steps), 'step')}"
    text += f" (window {traced.window})." if traced.window not in ("", ".") else "."
    listing = next((rank_listing for rank_listing in traced.listings if rank_listing.rank == first.rank), None)
    if listing is not None and listing.steps_run:
        # A rank that a signal ended could not write how many there were: the monitor has counted them, too.
        steps = max(listing.steps_run, step_counts.get(listing.rank, 0))
        share = listing.steps_traced / steps
        text += f" {listing.steps_traced:,} of {steps:,} steps of the run were traced: {share:.2%}."
    if traced.ranks > len(traced.traces):
        text += f" {traced.ranks} ranks traced this window; {len(traced.traces)} of them are read here."
    return text


def _operator_noun(ran: TraceFigures) -> str:
    return "kernel" if ran.on == "gpu" else "operator"


def _build_activity(ran: Sequence[TraceFigures]) -> list[Block]:
    """Return the split of the GPUs' time, mean of the ranks."""
    activities = [rank.activity for rank in ran if rank.activity is not None]
    if not activities:
        return []
    names = {
        "kernel_s": ("Kernels", "time with a kernel on the GPU"),
        "memcpy_s": ("Copies", "time with a copy and no kernel"),
        "memset_s": ("Memory sets", "time with a memset alone"),
        "sync_s": ("Host waits for the GPU", "nothing runs and the host is in a synchronising call"),
        "idle_s": ("Idle", "nothing runs and nobody waits for the GPU"),
    }

    def mean(field: str) -> float:
        return sum(float(getattr(activity, field)) for activity in activities) / len(activities)

    parts = tuple(
        Part(name=name, value=mean(field) * MILLI, formula=formula) for field, (name, formula) in names.items()
    )
    assert set(names) == set(Activity.__struct_fields__)
    total = sum(part.value for part in parts)
    of = f"mean of {count_words(len(activities), 'rank')}"
    return [Shares(id="gpu-activity", title=f"GPU time, {of}", unit="ms", parts=parts, total=total)]


def _build_utilisation_chart(ran: Sequence[TraceFigures]) -> Chart:
    noun = _operator_noun(ran[0])
    lines = []
    for rank in ran:
        width = rank.span_s * MILLI / len(rank.utilisation) if rank.utilisation else 0.0
        x = tuple(number * width for number in range(len(rank.utilisation)))
        mean = tuple(100 * share for share in rank.utilisation)
        lines.append(Line(name=f"rank {rank.rank or 0}", x=x, mean=mean, source=rank.source))
    device = "GPU" if noun == "kernel" else "CPU operators"
    active = ", ".join(f"rank {rank.rank or 0} {rank.active_share:.0%}" for rank in ran)
    return Chart(
        id="device-active",
        title=f"{device} active during the window: {active}",
        x=Axis(name="time in the window", unit="ms"),
        y=Axis(name="active", unit="percent", low=0, high=100),
        lines=tuple(lines),
        formula=f"share of each hundredth of the window in which a {noun}, or on a GPU a copy or memset, ran"
        if noun == "kernel"
        else "share of each hundredth of the window in which an operator ran on any thread",
    )


def _build_table_by_time(ran: TraceFigures) -> Table:
    noun = _operator_noun(ran)
    steps = len(ran.steps)
    self_time = "sum of its kernels' times" if ran.on == "gpu" else "sum of its self times: less the operators within"
    columns: list[ColumnSpec] = [
        noun,
        ("share", "percent", f"its time / time of all {noun}s"),
        ("time", "ms", self_time),
        ("calls a step" if steps else "calls", "", "calls / steps traced" if steps else ""),
        ("mean", "µs", "time / calls"),
        ("longest", "µs"),
    ]
    if ran.on == "gpu":
        columns.append(("precision (a guess)", "", "by patterns in the kernel's name"))
    rows: list[tuple[Cell, ...]] = []
    for operator in ran.operators[:TOP]:
        times = (100 * operator.share, operator.total_s * MILLI, operator.calls / (steps or 1))
        row = (shorten_name(operator.name), *times, operator.mean_s * MICRO, operator.most_s * MICRO)
        rows.append((*row, operator.precision) if ran.on == "gpu" else row)
    whole_ms = sum(operator.total_s for operator in ran.operators) * MILLI
    total: tuple[Cell, ...] = (
        f"all {len(ran.operators)} {noun}s",
        100.0,
        whole_ms,
        ran.launches / (steps or 1),
        None,
        None,
    )
    return make_table(
        f"{noun}s-by-time",
        f"{noun.capitalize()}s by time: the first {min(TOP, len(ran.operators))} of {len(ran.operators)}",
        columns,
        rows,
        total=(*total, None) if ran.on == "gpu" else total,
        note=_describe_communication(ran.operators),
    )


def _describe_communication(operators: Sequence[Operator]) -> str:
    share = sum(operator.share for operator in operators if operator.communicates)
    return f"{share:.0%} of this time is communication, with the wait for other ranks in it." if share else ""


def _build_table_by_calls(ran: TraceFigures) -> Table:
    noun = _operator_noun(ran)
    most = sorted(ran.operators, key=lambda operator: (-operator.calls, operator.name))[:TOP]
    calls = "launches" if ran.on == "gpu" else "calls"
    note = ""
    if ran.queue_s is not None:
        note = f"From the launching call to the {noun}'s start: {format_duration(ran.queue_s)} (median)."
    return make_table(
        f"{noun}s-by-calls",
        f"{noun.capitalize()}s by {calls}: {ran.launches:,} in all",
        (
            noun,
            calls,
            ("share", "percent", f"its {calls} / all {calls}"),
            ("mean", "µs", f"time / {calls}"),
        ),
        (
            (shorten_name(operator.name), operator.calls, 100 * operator.calls / ran.launches, operator.mean_s * MICRO)
            for operator in most
        ),
        note=note,
    )


def _list_full_names(ran: TraceFigures) -> list[Block]:
    """Return the whole names of kernels that the tables cut, and C++'s arguments with them."""
    most = sorted(ran.operators, key=lambda operator: (-operator.calls, operator.name))[:TOP]
    shown_operators = dict.fromkeys([*ran.operators[:TOP], *most])
    lines = tuple(
        operator.full_name or operator.name
        for operator in shown_operators
        if shorten_name(operator.name) != (operator.full_name or operator.name)
    )
    return [Lines(id="full-names", title="Whole names", lines=lines)] if lines else []


def _build_precision(ran: TraceFigures) -> list[Block]:
    if not ran.precisions:
        return []
    whole_ms = sum(operator.total_s for operator in ran.operators) * MILLI
    parts = tuple(Part(name=name, value=share * whole_ms) for name, share in ran.precisions)
    note = "A guess: by patterns in the kernels' names, which are not documented."
    title = "Kernel time by precision (a guess)"
    return [Shares(id="kernel-precision", title=title, unit="ms", parts=parts, total=whole_ms, note=note)]


def _build_step_histogram(ran: TraceFigures) -> list[Block]:
    durations = sorted(step.duration_s for step in ran.steps)
    if len(durations) < 2:
        return []
    median, longest = format_duration(durations[len(durations) // 2]), format_duration(durations[-1])
    title = f"Step times: {count_words(len(durations), 'step')}, median {median}, longest {longest}"
    return [_build_histogram("traced-step-times", title, {"steps": durations}, "steps")]


def _build_annotations(ran: TraceFigures) -> list[Block]:
    longest = ran.annotations[:MOST_ANNOTATIONS]
    if not longest:
        return []
    rows = tuple(
        (
            shorten_name(annotation.name),
            len(annotation.durations_s),
            annotation.total_s * MILLI,
            annotation.durations_s[0] * MILLI,
            annotation.durations_s[len(annotation.durations_s) // 2] * MILLI,
            annotation.durations_s[-1] * MILLI,
        )
        for annotation in longest
    )
    columns = ("annotation", "times", ("total", "ms"), ("shortest", "ms"), ("median", "ms"), ("longest", "ms"))
    title = f"Annotations: {len(longest)} of {len(ran.annotations)}, the longest first"
    blocks: list[Block] = [make_table("annotations", title, columns, rows)]
    often = [annotation for annotation in longest if len(annotation.durations_s) > 4]
    return blocks + [
        _build_annotation_chart(number, annotation) for number, annotation in enumerate(often[:MOST_CHARTS])
    ]


def _build_annotation_chart(number: int, annotation: AnnotationTimes) -> Chart:
    title = f"How long {annotation.name} took: {len(annotation.durations_s)} times"
    return _build_histogram(f"annotation-{number}", title, {annotation.name: annotation.durations_s}, "times")


def _build_histogram(name: str, title: str, groups: Mapping[str, Sequence[float]], count: str) -> Chart:
    """Return bars: how many of the durations lie in each of BINS equal parts of their range."""
    groups = {label: [duration_ms * MILLI for duration_ms in durations] for label, durations in groups.items()}
    least, most = min(map(min, groups.values())), max(map(max, groups.values()))
    width = (most - least) / BINS or max(most, 1e-9) / BINS
    x = tuple(least + width * number for number in range(BINS))
    lines = []
    for label, durations in groups.items():
        counts = [0.0] * BINS
        for duration_ms in durations:
            counts[min(int((duration_ms - least) / width), BINS - 1)] += 1
        lines.append(Line(name=label, x=x, mean=tuple(counts)))
    return Chart(
        id=name,
        title=title,
        x=Axis(name="duration from", unit="ms"),
        y=Axis(name=count, low=0),
        lines=tuple(lines),
        style="bars",
        formula=f"how many lie in each of {BINS} equal parts of the range",
    )


def _describe_straggler(ranks: RankComparison) -> list[Block]:
    """Name the rank that the others wait for; return nothing for a single rank."""
    clocks = (
        "" if ranks.clocks == "same host" else " Clocks of the hosts were laid upon each other by collectives' ends."
    )
    if len(ranks.ranks) < 2 or not ranks.collectives:
        return []
    if ranks.straggler is not None:
        rank = next(rank_times for rank_times in ranks.ranks if rank_times.rank == ranks.straggler)
        waits = max(ranks.ranks, key=lambda rank_times: rank_times.waited_s)
        text = (
            f"The others wait for rank {ranks.straggler}: it came last to {rank.last} of {len(ranks.collectives)} "
            f"collectives, and rank {waits.rank} waited {format_duration(waits.waited_s)} in them.{clocks}"
        )
        advice = "Compare its operators with those of a rank that waits: the time outside of operators is Python's."
        return [Words(text=text, name="Straggler", tone="warn", advice=advice)]
    text = f"No rank is late: {count_words(len(ranks.collectives), 'collective')} were compared.{clocks}"
    return [Words(text=text, name="Straggler", tone="good")]


def _build_rank_table(ranks: RankComparison) -> Table:
    rows = tuple(
        (
            rank_times.rank,
            None if rank_times.step_s is None else rank_times.step_s * MILLI,
            rank_times.computation_s * MILLI,
            rank_times.communication_s * MILLI,
            (rank_times.communication_s - rank_times.overlapped_s) * MILLI,
            rank_times.waited_s * MILLI,
            rank_times.last,
        )
        for rank_times in ranks.ranks
    )
    columns = (
        "rank",
        ("step", "ms", "median of the traced steps"),
        ("computation", "ms", "time with a kernel or operator that does not communicate"),
        ("communication", "ms", "time in collectives"),
        ("of it not overlapped", "ms", "communication less its part beside computation"),
        ("waited", "ms", "in collectives, until the last rank came"),
        ("came last", "", "collectives to which it came last"),
    )
    return make_table("ranks-traced", "Who waits for whom", columns, rows)
