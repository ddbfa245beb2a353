import io
import os
import sys

import pytest

from toolkit.commands.simulate import display
from toolkit.commands.simulate.display import LiveDisplay, PlainDisplay
from toolkit.commands.simulate.progress import HostProgress, JobProgress
from toolkit.log import Log
from toolkit.metrics.sample import Sample

LOSS = Sample(name="loss", value=0.123456789, time_s=0, host="algo-1", step=40)
HOSTS = (
    HostProgress(name="algo-1", state="running", samples=(LOSS,)),
    HostProgress(name="algo-2", state="ended with 0"),
)
STANDING = JobProgress(name="digits", elapsed_s=75, hosts=HOSTS)


def test_lines_go_where_the_host_wrote_them(capfd: pytest.CaptureFixture[str]) -> None:
    plain = PlainDisplay(Log(), several=False)

    plain.lines("algo-1", 1, b"out 1\nout 2\n")
    plain.lines("algo-1", 2, b"err\n")

    assert capfd.readouterr() == ("out 1\nout 2\n", "err\n")


def test_of_several_hosts_each_line_says_which(capfd: pytest.CaptureFixture[str]) -> None:
    PlainDisplay(Log(), several=True).lines("algo-2", 1, b"one\n\ntwo\n")

    assert capfd.readouterr().out == "algo-2 | one\nalgo-2 | \nalgo-2 | two\n"


def test_a_line_that_names_its_host_is_not_marked_again() -> None:
    lines = b"[algo-2 rank 3] x\n[1,mpirank:3,algo-2]<stdout>:z\n[toolkit] y\nhalf"

    block = display.marked_block("algo-2", lines, several=True)

    assert block == b"[algo-2 rank 3] x\n[1,mpirank:3,algo-2]<stdout>:z\nalgo-2 | [toolkit] y\nalgo-2 | half\n"


def test_the_standing_is_said_every_ten_seconds(capfd: pytest.CaptureFixture[str]) -> None:
    plain = PlainDisplay(Log(), several=True)

    for second in range(25):
        plain.progress(JobProgress(name="j", elapsed_s=second, hosts=HOSTS[:1]))

    line = "algo-1 running | loss=0.123457"
    assert capfd.readouterr().err == f"[toolkit] 0:10 | {line}\n[toolkit] 0:20 | {line}\n"


def test_without_a_table_a_bars_newest_state_is_a_line_every_five_seconds(capfd: pytest.CaptureFixture[str]) -> None:
    plain = PlainDisplay(Log(), several=True)

    for quarter in range(48):
        bars = (f"algo-1 | {min(quarter, 30)}%",)
        host = HostProgress(name="algo-1", state="running", bars=bars)
        plain.progress(JobProgress(name="j", elapsed_s=quarter / 4, hosts=(host,)))

    assert capfd.readouterr().out == "algo-1 | 20%\nalgo-1 | 30%\n"


@pytest.mark.parametrize("several", [False, True])
def test_a_line_that_was_shown_unfinished_is_shown_again_only_if_it_goes_on(
    several: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = PlainDisplay(Log(), several=several)
    mark = "algo-1 | " if several else ""
    for elapsed_s, text in ((5, "no end \u00e9"), (10, "100%|####| 3/3"), (15, "loading...")):
        host = HostProgress(name="algo-1", state="running", bars=(mark + text,))
        plain.progress(JobProgress(name="j", elapsed_s=elapsed_s, hosts=(host,)))

        plain.lines(
            "algo-1", 1, f"\x1b[1m{text}\x1b[0m\n{text}\n".encode() if text != "loading..." else b"loading... done\n"
        )

    lines = capfd.readouterr().out.splitlines()
    assert lines == [mark + line for line in ("no end \u00e9",) * 2 + ("100%|####| 3/3",) * 2] + [
        mark + line for line in ("loading...", "loading... done")
    ]


def test_a_reader_that_has_gone_does_not_end_the_job(capfd: pytest.CaptureFixture[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    plain = PlainDisplay(Log(), several=False)

    plain.lines("algo-1", write_end, b"lost\n")
    plain.lines("algo-1", write_end, b"lost too\n")

    os.close(write_end)


def test_lines_and_our_own_words_pass_above_the_table_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    log = Log()
    live = LiveDisplay(log, several=False)

    live.lines("algo-1", 2, b"[bold]not markup[/bold] :smile:\n")
    live.progress(STANDING)
    log.info("stopping")
    live.close()

    assert "[bold]not markup[/bold] :smile:\n" in screen.getvalue()
    assert "[toolkit] stopping\n" in screen.getvalue()


@pytest.mark.parametrize(
    ("environ", "plain"),
    [
        ({"TERM": "xterm"}, False),
        ({"TERM": "xterm-256color", "PAGER": "cat"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True),
        ({"TERM": "dumb"}, True),
        ({"TERM": ""}, True),
        ({}, True),
        ({"TERM": "xterm-color", "PAGER": "cat"}, True),
        ({"TERM": "xterm", "JPY_PARENT_PID": "7"}, True),
    ],
)
def test_a_terminal_that_shows_no_escapes_gets_none(environ: dict[str, str], plain: bool) -> None:
    assert display.wants_plain(environ) is plain


@pytest.mark.parametrize("bar", ["#" * 100, "学習" * 50])
def test_each_row_of_the_table_leaves_room_for_two_echoed_ctrl_c(bar: str) -> None:
    cells = pytest.importorskip("rich.cells")
    host = HostProgress(name="algo-1", state="running", error="e" * 100, bars=(bar,))

    text = display._text(JobProgress(name="digits" * 20, elapsed_s=75, hosts=(host,)), 80, 24)

    assert max(cells.cell_len(line) for line in text.plain.split("\n")) == 80 - len("^C^C")
