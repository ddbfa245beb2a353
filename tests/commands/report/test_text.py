"""A page on a terminal fits its width, and says everything in words and plain lines."""

import pytest

from tests.commands.report.pages import page
from toolkit.commands.report.model import Column, Lines, Table
from toolkit.commands.report.text import TextWriter

GOLDEN = """\
digits: FAILED
Rank 1 of host algo-2: ValueError: loss is nan.

Cause: ValueError: loss is nan
What to do: Lower the learning rate.

THE REST

Warning: A note.

Hosts
  host    waits (s)
  algo-1       12.5
  algo-2
  all          12.5
  Means.

loss
  rank 0                  #########################::::::::::::::::::::::::_
                          least 1, greatest 4, last 1
                          from step 1 to step 3
  step 2: restart

algo-1 (%)
  core 0                   =#
  core 1                   #
                          from 11:06:40 to 11:06:42 UTC; darkest: 100 %

Where the time went
  training             75 s   75.0%  ###############
  unexplained          25 s   25.0%  #####
  total               100 s  100.0%

Microbatches by device (s)
  device 0                000000000000.........................aaaaaaaaaaaaa
  device 1                ............0000000000000aaaaaaaaaaaaa............
                          from 0 to 4 s
                          Letters: backward.
  Idle share: 50 %.

algo-1: the last 2 lines
  | step 1 | ok
  | ``` <b>*bold*</b>

Made by toolkit 0.1.0 at 2026-11-18 11:06:40 UTC. Times are UTC.
"""


def test_every_kind_of_block_has_its_lines() -> None:
    assert TextWriter(width=78, plain=True).page(page()) == GOLDEN


@pytest.mark.parametrize("width", [20, 40, 60, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    wide = Table(id="t", title="t", columns=tuple(Column(name=f"column {n}") for n in range(9)), rows=((1.5,) * 9,))
    long = Lines(id="l", title="l", lines=("x" * 500, "  indented " * 30))

    lines = TextWriter(width=width).page(page(*page().sections[0].blocks, *page().sections[1].blocks, wide, long))

    assert max(map(len, lines.splitlines())) <= max(width, 40)


def test_a_line_of_a_log_keeps_its_spaces() -> None:
    log = Lines(id="l", title="l", lines=("    return  x",))

    assert "  |     return  x\n" in TextWriter(width=60).page(page(log, log))


def test_one_long_name_does_not_take_a_table_apart() -> None:
    columns = (Column(name="metric"), Column(name="values"), Column(name="last"))
    table = Table(id="t", title="Values", columns=columns, rows=(("m" * 200, 5, 1.5), ("loss", 7, 0.25)))

    lines = TextWriter(width=80).block(table)

    assert lines[1].split() == ["metric", "values", "last"]
    assert lines[2].split() == ["m" * 23 + "...", "5", "1.5"]
