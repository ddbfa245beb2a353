"""A page as Markdown, for a pull request or an issue: GitHub's dialect, charts as tables of their numbers."""

import math
import re
from datetime import datetime, timezone

from toolkit.commands.report.folded import split_folded
from toolkit.commands.report.model import Block, Boxes, Cell, Chart, Column, HeatMap, Lines, Page, Shares, Table, Words
from toolkit.commands.report.text import TextWriter, format_cell, format_head, format_x

WORDS = {"good": "", "plain": "", "warn": "**Warning:** ", "bad": ""}
MOST_LINES = 30  # Of a log: a comment is read, not searched.
MOST_ROWS = 40


def write_markdown(page: Page) -> str:
    """Return *page* as Markdown, which ends with a newline."""
    parts = [f"# {escape(page.title)}: {page.status}", escape(page.summary)]
    for section in page.sections:
        if section.id != "outcome":
            parts.append(f"## {escape(section.title)}")
        blocks, folded_note = split_folded(section.blocks)
        parts += ["\n\n".join(text for text in (*map(_write_block, blocks), escape(folded_note)) if text)]
    made_at = datetime.fromtimestamp(page.made_at_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    return "\n\n".join([*parts, f"*Made by {escape(page.made_by)} at {made_at}. Times are UTC.*"]) + "\n"


def escape(text: str) -> str:
    """Return *text* so that Markdown shows it as it is, on one line."""
    plain = re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", " ".join(text.split()))
    return re.sub(r"^([-+]|\d+[.)])(?=\s)", r"\\\1", plain)


def fence_lines(lines: tuple[str, ...]) -> str:
    """Return *lines* as a block of code, within a fence that is longer than any in them."""
    longest = max((len(backticks) for line in lines for backticks in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def _write_block(block: Block) -> str:
    if isinstance(block, Words):
        return _write_words(block)
    if isinstance(block, Table):
        return _write_table(block)
    if isinstance(block, Shares):
        return _write_shares(block)
    if isinstance(block, Chart):
        return _write_chart(block)
    if isinstance(block, HeatMap):
        return _write_heat_map(block)
    if isinstance(block, Boxes):
        return fence_lines(tuple(TextWriter().boxes(block)))
    return _write_lines(block)


def _write_words(words: Words) -> str:
    name = f"**{escape(words.name)}:** " if words.name else WORDS[words.tone]
    advice = f"\n\n**What to do:** {escape(words.advice)}" if words.advice else ""
    return f"{name}{escape(words.text)}{advice}"


def _write_table(table: Table) -> str:
    rows = [*table.rows[:MOST_ROWS], *([table.total] if table.total else [])]
    parts = [f"**{escape(table.title)}**", _write_grid(table.columns, rows)]
    if len(table.rows) > MOST_ROWS:
        parts.append(f"The first {MOST_ROWS} of {len(table.rows)} rows.")
    return "\n\n".join([*parts, *([escape(table.note)] if table.note else [])])


def _write_grid(columns: tuple[Column, ...], rows: list[tuple[Cell, ...]]) -> str:
    heads = [escape(format_head(column)) for column in columns]
    numeric = [all(isinstance(row[index], int | float | None) for row in rows) for index in range(len(columns))]
    lines = [heads, ["---:" if is_numeric else "---" for is_numeric in numeric]]
    lines += [
        [escape(format_cell(cell, column.unit)) for cell, column in zip(row, columns, strict=True)] for row in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _write_shares(shares: Shares) -> str:
    columns = (Column(name="part"), Column(name="value", unit=shares.unit), Column(name="share"))
    rows: list[tuple[Cell, ...]] = [
        (part.name, part.value, f"{part.value / shares.total:.1%}" if shares.total else "") for part in shares.parts
    ]
    grid = _write_grid(columns, [*rows, ("total", shares.total, "")])
    return "\n\n".join([f"**{escape(shares.title)}**", grid, *([escape(shares.note)] if shares.note else [])])


def _write_chart(chart: Chart) -> str:
    names = ("first", "least", "greatest", "last")
    rows: list[tuple[Cell, ...]] = []
    for line in chart.lines:
        finite = [value for value in line.mean if math.isfinite(value)]
        if finite and line.is_shown:
            low = min(value for value in (*finite, *line.low) if value == value)
            high = max(value for value in (*finite, *line.high) if value == value)
            rows.append((line.name, finite[0], low, high, finite[-1]))
    if not rows:
        return ""
    columns = (Column(name="line"), *(Column(name=name, unit=chart.y.unit) for name in names))
    grid = _write_grid(columns, rows[:MOST_ROWS])
    marks = [f"- {format_x(mark.start, chart.x)}: {escape(mark.text)}" for mark in chart.marks]
    return "\n\n".join([f"**{escape(chart.title)}**", grid, *(["\n".join(marks)] if marks else [])])


def _write_heat_map(heat: HeatMap) -> str:
    rows: list[tuple[Cell, ...]] = []
    for name, values in zip(heat.rows, heat.values, strict=True):
        measured = [value for value in values if value is not None]
        if measured:
            rows.append((name, math.fsum(measured) / len(measured), max(measured)))
    rows.sort(key=lambda row: -float(row[1] or 0))
    if not rows:
        return ""
    unit = heat.value.unit
    columns = (Column(name="row"), Column(name="mean", unit=unit), Column(name="greatest", unit=unit))
    more = f"\n\nThe {MOST_ROWS} of {len(rows)} rows with the greatest means." if len(rows) > MOST_ROWS else ""
    return f"**{escape(heat.title)}**\n\n{_write_grid(columns, rows[:MOST_ROWS])}{more}"


def _write_lines(block: Lines) -> str:
    cut = block.lines[-MOST_LINES:]
    title = block.title if len(cut) == len(block.lines) else f"{block.title} (here the last {MOST_LINES})"
    return f"**{escape(title)}**\n\n{fence_lines(cut)}"
