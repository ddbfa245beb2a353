"""A page made by hand, with every kind of block and every odd value: what a failed job's report looks like."""

import math
from pathlib import Path

from toolkit.commands.report.model import (
    Axis,
    Block,
    Chart,
    Column,
    HeatMap,
    Line,
    Lines,
    Mark,
    Page,
    Part,
    Section,
    Shares,
    Table,
    Words,
)

START = 1_763_862_485.0  # 2025-11-23 01:48:05 UTC
SECONDS = 600
HOSTILE = "</script><img src=x onerror=\"document.title='broken'\"><!-- & ]]> \u2028 <b>bold</b>"
GIB = 2.0**30
END = START + SECONDS
TIMES = tuple(START + second for second in range(SECONDS))


def wave(second: float, period: float, low: float, high: float) -> float:
    return low + (high - low) * (0.5 + 0.5 * math.sin(second / period))


def gpu(number: int, *, starved: bool = False) -> Line:
    mean = tuple(round(wave(index + 7 * number, 23, 52, 91) if index < 540 else 0.0, 2) for index in range(SECONDS))
    if starved:
        mean = tuple(round(value * 0.35, 2) for value in mean)
    low = tuple(round(max(0.0, value - 9 - 40 * (index % 97 == 0)), 2) for index, value in enumerate(mean))
    high = tuple(round(min(100.0, value + 8), 2) for value in mean)
    gap = range(200, 215)  # The driver did not answer.
    mean, low, high = (
        tuple(math.nan if index in gap else value for index, value in enumerate(values)) for values in (mean, low, high)
    )
    return Line(
        name=f"GPU {number}", x=TIMES, mean=mean, low=low, high=high, source=f"samples: gpu/{number}/used_percent"
    )


FINDING = Mark(start=START + 300, end=START + 420, text="CPUBottleneck: core 3 at 100 %, GPUs at 31 %", tone="warn")
FAILURE = Mark(start=START + 540, text="rank 1 raised ValueError", tone="bad")
MARKS = (FINDING, FAILURE)
PERCENT = Axis(name="busy", unit="percent", low=0, high=100)
TIME = Axis(name="time", kind="time")


def outcome() -> Section:
    return Section(
        id="outcome",
        title="Outcome",
        blocks=(
            Words(
                name="Cause",
                text="ValueError: loss is nan at step 1,204 (train.py:88)",
                tone="bad",
                advice="Lower the learning rate, or clip gradients: the loss grew for 40 steps before it.",
            ),
            Words(name="Rank", text="rank 1 (local rank 1) on algo-1, pid 4242"),
            Words(name="Exit code", text="1"),
            Words(name="Ran for", text="10 min 0 s, 9 min 0 s of it training"),
            Words(name="Finding", text="One core is busy while the GPUs wait (see Findings).", tone="warn"),
            Words(text="All ranks of this host printed the same traceback; it is shown once."),
        ),
    )


def minutes() -> Section:
    memory = tuple(round(GIB * (9 + index / 120), 0) for index in range(SECONDS))
    limit = (15 * GIB,) * SECONDS
    blocks: tuple[Block, ...] = (
        Chart(
            id="gpu-busy",
            title="GPUs",
            x=TIME,
            y=PERCENT,
            lines=(gpu(0), gpu(1), gpu(2, starved=True)),
            marks=MARKS,
            cursor="time",
            formula="Utilisation as NVML reports it: the share of time in which a kernel ran. "
            "The line is the mean of a second, the band its minimum and maximum.",
        ),
        Chart(
            id="memory",
            title="Memory of the container",
            x=TIME,
            y=Axis(name="memory", unit="bytes"),
            lines=(
                Line(name="used", x=TIMES, mean=memory, source="samples: memory/container/used_bytes"),
                Line(name="limit", x=TIMES, mean=limit, source="samples: memory/container/limit_bytes"),
            ),
            marks=(FAILURE,),
            cursor="time",
        ),
        HeatMap(
            id="cores",
            title="Cores and GPUs of algo-1",
            x=TIME,
            value=PERCENT,
            rows=(*(f"core {core}" for core in range(16)), "GPU 0", "GPU 1"),
            columns=TIMES[::5],
            values=tuple(
                tuple(
                    None
                    if 200 <= index < 215 and row > 15
                    else round(100.0 if row == 3 else wave(index + 31 * row, 40 + row, 2, 70), 1)
                    for index in range(0, SECONDS, 5)
                )
                for row in range(18)
            ),
            top=100.0,
            marks=MARKS,
            cursor="time",
            formula="A cell is the mean of 5 s.",
        ),
    )
    return Section(id="last-minutes", title="The last two minutes", blocks=blocks)


def metrics() -> Section:
    steps = tuple(float(step) for step in range(0, 1205, 5))
    loss = tuple(2.3 * math.exp(-step / 400) + 0.05 * math.sin(step) for step in steps)
    losses = Chart(
        id="loss",
        title="Loss",
        x=Axis(name="step", kind="step"),
        y=Axis(name="loss"),
        lines=(
            Line(name="train:loss", x=steps, mean=loss, source="metrics.jsonl: train:loss"),
            Line(name="eval:loss", x=steps[::20], mean=tuple(value + 0.1 for value in loss[::20]), is_shown=True),
            Line(name="learning rate", x=steps, mean=tuple(1e-3 * (1 - step / 1300) for step in steps), is_shown=False),
        ),
    )
    many = Chart(
        id="ranks",
        title="Step time by rank",
        x=Axis(name="step", kind="step"),
        y=Axis(name="step time", unit="s"),
        lines=tuple(
            Line(
                name=f"rank {rank}",
                x=steps,
                mean=tuple(
                    round(0.2 + 0.02 * math.sin(step / 17 + rank) + (0.11 if rank == 5 else 0), 4) for step in steps
                ),
            )
            for rank in range(16)
        ),
    )
    bars = Chart(
        id="histogram",
        title="How long steps took",
        x=Axis(name="step time", unit="s", kind="value"),
        y=Axis(name="steps"),
        lines=(
            Line(name="rank 0", x=(0.2, 0.25, 0.3, 0.35, 0.4), mean=(12, 140, 71, 9, 1)),
            Line(name="rank 1", x=(0.2, 0.25, 0.3, 0.35, 0.4), mean=(2, 40, 131, 49, 11)),
        ),
        style="bars",
    )
    points = Chart(
        id="outliers",
        title="Steps that took twice the median or longer",
        x=Axis(name="since the start", kind="elapsed"),
        y=Axis(name="step time", unit="s"),
        lines=(Line(name="rank 0", x=(12.5, 80.25, 431.0), mean=(0.81, 0.9, 1.7)),),
        style="points",
        marks=(Mark(start=540, text="rank 1 raised ValueError", tone="bad"),),
    )
    apart = Chart(
        id="billed",
        title="Billable seconds",
        x=Axis(name="job"),
        y=Axis(name="billable", unit="s"),
        lines=(Line(name="native", x=(1.0,), mean=(600.0,)), Line(name="optimised", x=(2.0,), mean=(410.5,))),
        style="bars",
    )
    return Section(id="metrics", title="Metrics", blocks=(losses, many, bars, points, apart))


def money() -> Section:
    parts = (
        Part(name="training", value=431.5, formula="Steps of rank 0, less the waits below.", tone="good"),
        Part(name="data wait", value=88.25, formula="Time inside the DataLoader's __next__."),
        Part(name="start-up", value=31.0),
        Part(name="work lost", value=40.0, formula="From the last checkpoint to the failure.", tone="bad"),
        Part(name="unexplained", value=9.25),
    )
    return Section(
        id="where-time-went",
        title="Where the time went",
        blocks=(
            Shares(
                id="ledger", title="600 billable seconds", unit="s", parts=parts, total=600.0, note="One host of 600 s."
            ),
        ),
    )


def tables() -> Section:
    kernels = Table(
        id="kernels-top",
        title="Kernels",
        columns=(
            Column(name="kernel"),
            Column(name="calls"),
            Column(name="time", unit="s", formula="Sum over the sampled steps."),
            Column(name="memory", unit="bytes"),
        ),
        rows=(
            ("volta_sgemm_128x64_nn", 1200, 3.25, 5 * GIB),
            ("elementwise_kernel", 48000, 1.0625, 2.5 * GIB),
            (HOSTILE, 3, None, None),
            ("=cmd|' /C calc'!A0", 7, 0.0001234, 1024.0),
        ),
        total=("all", 49210, 4.3126234, None),
        note="Three windows of 10 steps: 2 % of the run.",
    )
    empty = Table(id="nothing", title="Memory operations", columns=(Column(name="operation"),), rows=())
    return Section(
        id="kernels",
        title="Kernels",
        blocks=(kernels, empty, Words(text="No GPU trace was taken: set TOOLKIT_PROFILE to take one.")),
    )


def log() -> Section:
    lines = (
        *(f"2025-11-23 01:57:{second:02} INFO step {1190 + second} loss 0.11{second}" for second in range(40)),
        HOSTILE,
        "Traceback (most recent call last):",
        '  File "train.py", line 88, in <module>',
        '    raise ValueError("loss is nan")',
        "ValueError: loss is nan",
    )
    return Section(id="log", title="Log", blocks=(Lines(id="log-tail", title="Rank 1, last lines", lines=lines),))


def failed(*, live: bool = False, refresh_s: float = 2.0) -> Page:
    return Page(
        title="distill-digits-2025-11-23",
        status="failed",
        tone="bad",
        summary="Rank 1 on algo-1 raised ValueError: loss is nan, after 9 min 0 s of training. 40 s of work were lost.",
        sections=(outcome(), minutes(), money(), metrics(), tables(), log()),
        made_by="toolkit 0.1.0",
        made_at_s=END,
        live=live,
        refresh_s=refresh_s,
    )


if __name__ == "__main__":
    import sys

    from toolkit.commands.report.html.page import render

    Path(sys.argv[1]).write_text(render(failed()), encoding="utf-8")
