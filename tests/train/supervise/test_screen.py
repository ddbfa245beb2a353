"""Bars and whole lines of several sources on one console: a file, a terminal, a reader that knows of states."""

import os
import pty
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.train.supervise.relay import RankFile, Stream
from toolkit.train.supervise.screen import HELD_S, LINES_S, LIVE_S, Progress, Screen, shown_rows


class Source:
    """A process that writes to one stream of *screen*, at moments that are given."""

    def __init__(self, screen: Screen, prefix: bytes = b"[rank 0] ", file: RankFile | None = None) -> None:
        read_end, self._write_end = os.pipe()
        self.heard: list[bytes] = []
        files = () if file is None else (file,)
        self.stream = Stream(read_end, screen, way="shared", prefix=prefix, monitor=self.heard.append, files=files)
        self._screen = screen

    def write(self, text: bytes, now_s: float = 0.0) -> None:
        os.write(self._write_end, text)
        self.stream.read(now_s)

    def pass_time(self, now_s: float) -> None:
        """Do what the loop does when *now_s* has come."""
        for part in (self.stream, self._screen):
            due_in_s = part.due_in_s(now_s)
            if due_in_s is not None and due_in_s <= 0:
                part.refresh(now_s)

    def end(self) -> None:
        os.close(self._write_end)
        self.stream.read(0.0)


class Shown:
    """A console that is a file."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self.screen = Screen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        self.screen.show_progress(progress, terminal=True)
        self.screen.served = True

    @property
    def text(self) -> bytes:
        return self._path.read_bytes()


@pytest.fixture
def log(tmp_path: Path) -> Shown:
    """A console that collects lines."""
    return Shown(tmp_path / "console", "auto")


@pytest.fixture
def live(tmp_path: Path) -> Shown:
    """A console whose reader takes a state that ends with a carriage return for one."""
    return Shown(tmp_path / "console", "live")


@pytest.fixture
def terminal() -> Iterator[tuple[int, Screen]]:
    main_end, theirs = pty.openpty()
    screen = Screen(theirs)
    screen.show_progress("auto", terminal=True)
    screen.served = True
    os.set_blocking(main_end, False)
    yield main_end, screen
    os.close(main_end)
    os.close(theirs)


def read_until(terminal: int, end: bytes) -> bytes:
    """Return what the terminal is given until that ends with *end*, or for 5 s."""
    output = b""
    while not output.endswith(end) and select.select([terminal], [], [], 5.0)[0]:
        output += os.read(terminal, 1 << 16)
    return output


def test_a_collector_of_logs_gets_a_bars_newest_state_as_a_line_now_and_then(log: Shown) -> None:
    source = Source(log.screen)

    for tenth in range(120):
        source.write(b"\r%3d%%" % tenth, tenth / 10)
        source.pass_time(tenth / 10)
    source.write(b"\r100%\n", 12.0)

    assert log.text == b"[rank 0]  50%\n[rank 0] 101%\n[rank 0] 100%\n"
    assert source.heard == [b"100%\n"]


def test_a_state_that_did_not_change_is_not_shown_again(log: Shown) -> None:
    source = Source(log.screen)

    source.write(b"Downloading... ")
    for second in range(20):
        source.pass_time(float(second))
    source.write(b"done\n")
    source.write(b"\r 50%")
    source.pass_time(LINES_S)
    source.write(b"\n")

    assert log.text == b"[rank 0] Downloading... \n[rank 0] Downloading... done\n[rank 0]  50%\n"
    assert source.heard == [b"Downloading... done\n", b" 50%\n"]


def test_a_line_that_comes_in_two_halves_is_shown_once(log: Shown) -> None:
    source = Source(log.screen)

    source.write(b"loss=1", 0.0)
    source.pass_time(LINES_S - 0.1)
    source.write(b"2.5\n", LINES_S - 0.1)
    source.pass_time(LINES_S)

    assert log.text == b"[rank 0] loss=12.5\n"


def test_bars_below_each_other_are_shown_at_the_same_rate_and_every_other_line_at_once(log: Shown) -> None:
    source = Source(log.screen)

    for tenth in range(100):
        source.write(b"\r outer\n\r" if not tenth else b"\n\r", tenth / 10)
        source.write(b"inner %d%%|#\x1b[A" % tenth, tenth / 10)
        source.pass_time(tenth / 10)
        if tenth == 70:
            source.write(b"\r       \r\n\r        \r\x1b[Aa word\n\r outer", tenth / 10)
    source.write(b"\n", 10.0)
    source.end()

    assert log.text.splitlines() == [
        b"[rank 0]  outer",
        b"[rank 0] inner 50%|#",
        b"[rank 0] a word",
        b"[rank 0]  outer",
        b"[rank 0] inner 99%|#",
    ]


def test_windows_line_ends_stay(log: Shown) -> None:
    source = Source(log.screen)

    source.write(b"one\r\ntwo\r\n")

    assert log.text == b"[rank 0] one\r\n[rank 0] two\r\n"


def test_the_ranks_file_keeps_every_byte_of_an_hour_of_states(log: Shown, tmp_path: Path) -> None:
    file = RankFile(tmp_path / "rank.log", 1 << 30, print)
    source = Source(log.screen, file=file)
    states = [b"\r%5d/36000 [loss=%d]" % (n, n) for n in range(36_000)]

    for start in range(0, len(states), 100):
        source.write(b"".join(states[start : start + 100]), start / 10)
    source.write(b"\n")
    source.end()

    assert source.stream.lines.long_lines == 0
    assert source.heard == [b"35999/36000 [loss=35999]\n"]
    assert log.text.count(b"\n") == 1
    file.close()
    assert (tmp_path / "rank.log").read_bytes().replace(b"\n", b"") == b"".join(states)


def test_a_reader_that_knows_states_gets_them_a_few_times_a_second(live: Shown) -> None:
    first, second = Source(live.screen), Source(live.screen, b"[rank 1] ")

    first.write(b"\r 1%\r 2%", 0.0)
    first.pass_time(LIVE_S)
    second.write(b"word\n", LIVE_S)
    second.write(b"\r 7%", LIVE_S)
    second.pass_time(2 * LIVE_S)
    first.write(b"\r100%\n", 1.0)

    assert live.text == b"[rank 0]  2%\r[rank 1] word\n[rank 1]  7%\r[rank 0] 100%\n"


def test_on_a_terminal_bars_stand_below_the_lines(terminal: tuple[int, Screen]) -> None:
    main_end, screen = terminal
    first, second = Source(screen), Source(screen, b"[rank 1] ")

    first.write(b"\r 1%", 0.0)
    second.write(b"\r 2%", 0.0)
    for source in (first, second):
        source.pass_time(LIVE_S)
    second.pass_time(2 * LIVE_S)
    both = b"[rank 0]  1%\r\n[rank 1]  2%\x1b[0m"
    assert read_until(main_end, both).endswith(both)

    first.write(b"\r100%\n", 3.0)
    line = b"\r\x1b[1A\x1b[J[rank 0] 100%\r\n"
    assert read_until(main_end, line) == line
    screen.refresh(4.0)
    other = b"[rank 1]  2%\x1b[0m"
    assert read_until(main_end, other) == other
    screen.settle()
    assert read_until(main_end, b"\x1b[J") == b"\r\x1b[J"


def test_rows_of_bars_never_exceed_the_terminal() -> None:
    states = {b"[rank %02d] " % rank: b"\x1b[31m" + b"x" * 200 for rank in range(40)}

    rows = shown_rows(states, columns=40, lines=24)

    assert len(rows) == 8
    assert {len(row) for row in rows[:-1]} == {39}
    assert rows[-1] == "... and 33 more progress bars"


def test_a_line_of_ours_waits_for_the_end_of_a_scripts_line(log: Shown) -> None:
    log.screen.put(b"half a ")
    log.screen.say(b"[toolkit] one\n")
    log.screen.put_lines(b"[service] two\n")
    log.screen.put(b"line\nand ")

    assert log.text == b"half a line\n[toolkit] one\n[service] two\nand "


def test_a_line_of_ours_does_not_wait_for_long(log: Shown) -> None:
    log.screen.put(b"Password: ")
    log.screen.say(b"[toolkit] one\n")
    due_in_s = log.screen.due_in_s(0.0)

    assert due_in_s is not None
    log.screen.refresh(due_in_s - HELD_S / 2)
    assert log.text == b"Password: "
    log.screen.refresh(due_in_s)
    assert log.text == b"Password: \n[toolkit] one\n"
