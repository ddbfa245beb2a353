"""A page with every kind of block."""

import math

from toolkit.commands.report.model import (
    Axis,
    Box,
    Boxes,
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

AT_S = 1_795_000_000.0  # 2026-11-18 11:06:40 UTC
BLOCKS = (
    Words(name="Cause", text="ValueError: loss is nan", tone="bad", advice="Lower the learning rate."),
    Words(text="A note.", tone="warn"),
    Table(
        id="hosts",
        title="Hosts",
        columns=(Column(name="host"), Column(name="waits", unit="s")),
        rows=(("algo-1", 12.5), ("algo-2", None)),
        total=("all", 12.5),
        note="Means.",
    ),
    Chart(
        id="loss",
        title="loss",
        x=Axis(name="step", kind="step"),
        y=Axis(name="loss"),
        lines=(
            Line(
                name="rank 0", x=(1.0, 2.0, 3.0), mean=(3.0, math.nan, 1.0), low=(2.5, 1.0, 1.0), high=(4.0, 2.0, 1.0)
            ),
        ),
        marks=(Mark(start=2.0, text="restart"),),
    ),
    HeatMap(
        id="cores",
        title="algo-1",
        x=Axis(name="time", kind="time"),
        value=Axis(name="busy", unit="%"),
        rows=("core 0", "core 1"),
        columns=(AT_S, AT_S + 1, AT_S + 2),
        values=((0.0, 50.0, 100.0), (None, 100.0, 0.0)),
        top=100.0,
    ),
    Shares(
        id="ledger",
        title="Where the time went",
        unit="s",
        parts=(Part(name="training", value=75.0), Part(name="unexplained", value=25.0)),
        total=100.0,
    ),
    Boxes(
        id="schedule",
        title="Microbatches by device",
        x=Axis(name="time", unit="s"),
        rows=("device 0", "device 1"),
        boxes=(
            Box(row=0, start=0.0, end=1.0, mark="0", label="0", text="forward of microbatch 0"),
            Box(row=1, start=1.0, end=2.0, mark="0", label="0", text="forward of microbatch 0"),
            Box(row=1, start=2.0, end=3.0, kind=1, mark="a", label="0", text="backward of microbatch 0"),
            Box(row=0, start=3.0, end=4.0, kind=1, mark="a", label="0", text="backward of microbatch 0"),
        ),
        kinds=("forward", "backward"),
        key="Letters: backward.",
        note="Idle share: 50 %.",
    ),
    Lines(id="log", title="algo-1: the last 2 lines", lines=("step 1 | ok", "``` <b>*bold*</b>")),
)


def page(*blocks: object, status: str = "failed") -> Page:
    """Return a page of *blocks*, all of BLOCKS if there are none."""
    page_blocks = blocks or BLOCKS
    return Page(
        title="digits",
        status=status,
        tone="bad",
        summary="Rank 1 of host algo-2: ValueError: loss is nan.",
        sections=(
            Section(id="outcome", title="Outcome", blocks=page_blocks[:1]),  # type: ignore[arg-type]
            Section(id="rest", title="The rest", blocks=page_blocks[1:]),  # type: ignore[arg-type]
        ),
        made_by="toolkit 0.1.0",
        made_at_s=AT_S,
    )
