"""One stream by itself: real pipes as a process's output and as the console, and the time as an argument."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.train.supervise.relay import HELD_BYTES, REST_S, TAIL_BYTES, RankFile, Sharing, Stream, Tail
from toolkit.train.supervise.screen import HELD_S, Screen

NOW_S = 100.0


class Console:
    """A screen that writes into a pipe, and the streams that lead to it."""

    def __init__(self) -> None:
        self._end, self._console = os.pipe()
        os.set_blocking(self._end, False)
        self.screen = Screen(self._console)
        self._streams: list[Stream] = []
        self._writers: list[int] = []

    def stream(self, way: Sharing, *, file: RankFile | None = None) -> tuple[Stream, int]:
        """Return a stream, and the descriptor at which its process writes."""
        out_of_it, into_it = os.pipe()
        self._streams.append(Stream(out_of_it, self.screen, way=way, prefix=b"[r] ", files=(file,) if file else ()))
        self._writers.append(into_it)
        return self._streams[-1], into_it

    def shown(self) -> bytes:
        """Return what came since the last call."""
        try:
            return os.read(self._end, 1 << 20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        for stream in self._streams:
            if not stream.ended:
                stream.discard()
        for fd in (*self._writers, self._end, self._console):
            os.close(fd)


@pytest.fixture
def console() -> Iterator[Console]:
    console = Console()
    yield console
    console.close()


def test_a_tail_keeps_the_last_64_kib_from_a_word_on_and_no_byte_more() -> None:
    tail, written = Tail(), b""
    for number in range(3000):
        block = b"%06d " % number * (number % 13)
        tail.add(block)
        written += block

    assert len(written) > TAIL_BYTES
    assert written[-TAIL_BYTES:].endswith(tail.text())
    assert TAIL_BYTES - 7 <= len(tail.text()) <= TAIL_BYTES
    assert tail.text()[6:7] == b" "  # No half of a number: half of a secret is recognised by nothing.


def test_a_block_that_is_larger_than_the_tail_leaves_its_end() -> None:
    tail = Tail()
    tail.add(b"before")
    tail.add(b"x" * TAIL_BYTES + b"the end")

    assert tail.text() == b"x" * (TAIL_BYTES - 7) + b"the end"


def test_an_unfinished_line_of_two_streams_in_one_place_is_shown_after_a_moment(console: Console) -> None:
    stream, fd = console.stream("paired")
    os.write(fd, b"whole\nhal")
    stream.read(NOW_S)

    assert console.shown() == b"whole\n"
    assert stream.due_in_s(NOW_S) == pytest.approx(REST_S)
    stream.refresh(NOW_S + REST_S)
    assert console.shown() == b"hal"
    assert stream.due_in_s(NOW_S + REST_S) is None


def test_a_line_does_not_run_into_the_unfinished_one_of_the_other_stream(console: Console) -> None:
    stdout, out = console.stream("paired")
    stderr, err = console.stream("paired")
    os.write(out, b"Continue? ")
    stdout.read(NOW_S)
    stdout.refresh(NOW_S + REST_S)
    os.write(err, b"a warning\n")
    stderr.read(NOW_S + REST_S)
    stderr.refresh(NOW_S + 2 * REST_S)

    assert console.shown() == b"Continue? "
    os.write(out, b"yes\n")
    stdout.read(NOW_S + 3 * REST_S)
    stderr.refresh(NOW_S + 4 * REST_S)
    assert console.shown() == b"yes\na warning\n"


def test_the_other_streams_unfinished_line_is_waited_for_no_longer_than_a_second(console: Console) -> None:
    stdout, out = console.stream("paired")
    stderr, err = console.stream("paired")
    os.write(out, b"Continue? ")
    stdout.read(NOW_S)
    stdout.refresh(NOW_S)
    os.write(err, b"a warning\n")
    stderr.read(NOW_S)
    stderr.refresh(NOW_S + HELD_S)

    assert console.shown() == b"Continue? a warning\n"


def test_what_is_held_of_an_unfinished_line_is_shown_when_its_process_closes_the_stream(console: Console) -> None:
    paired, second = console.stream("paired")
    shared, other = console.stream("shared")
    os.write(second, b"last words")
    os.write(other, b"the other's")
    paired.read(NOW_S)
    shared.read(NOW_S)
    paired.close()
    shared.close()

    assert console.shown() == b"last words\n[r] the other's\n"
    assert (paired.tail.text(), shared.tail.text()) == (b"last words", b"the other's")


def test_a_stream_that_is_discarded_shows_nothing_of_what_it_holds(console: Console) -> None:
    stream, fd = console.stream("paired")
    os.write(fd, b"mpirun says that a rank was killed")
    stream.read(NOW_S)
    stream.discard()

    assert console.shown() == b""
    assert stream.ended


def test_of_a_bars_endless_line_little_is_held_and_the_file_has_every_byte(console: Console, tmp_path: Path) -> None:
    file = RankFile(tmp_path / "rank.log", 1 << 30, pytest.fail)
    stream, fd = console.stream("shared", file=file)
    states = [b"\r%6d of 20000 |%s|" % (number, b"#" * 40) for number in range(20_000)]
    for start in range(0, len(states), 500):
        os.write(fd, b"".join(states[start : start + 500]))
        stream.read(NOW_S)

        assert stream.lines.held_bytes <= HELD_BYTES
    stream.close()
    file.close()

    # The file's lines end where the held ones were cut.
    assert (tmp_path / "rank.log").read_bytes().replace(b"\n", b"") == b"".join(states)
    assert stream.tail.text().endswith(states[-1])
    assert console.shown() == b"[r] " + states[-1].lstrip(b"\r") + b"\n"


def test_a_ranks_file_is_rotated_and_one_older_piece_is_kept(tmp_path: Path) -> None:
    file = RankFile(tmp_path / "rank.log", 10, pytest.fail)
    for line in (b"first\n", b"second\n", b"third\n"):
        file.add(line)
    file.close()

    assert (tmp_path / "rank.log").read_bytes() == b"third\n"
    assert (tmp_path / "rank.1.log").read_bytes() == b"second\n"


def test_a_later_attempt_of_a_rank_appends_to_its_file_and_the_limit_counts_both(tmp_path: Path) -> None:
    for line in (b"first\n", b"second\n"):
        file = RankFile(tmp_path / "rank.log", 14, pytest.fail, goes_on=line != b"first\n")
        file.add(line)
        file.close()

    assert (tmp_path / "rank.log").read_bytes() == b"first\nsecond\n"
    file = RankFile(tmp_path / "rank.log", 14, pytest.fail, goes_on=True)
    file.add(b"third\n")
    file.close()
    assert (tmp_path / "rank.log").read_bytes() == b"third\n"


def test_a_fifo_where_a_ranks_file_should_be_stops_nothing(tmp_path: Path) -> None:
    notes: list[str] = []
    os.mkfifo(tmp_path / "rank.log")
    reader = os.open(tmp_path / "rank.log", os.O_RDONLY | os.O_NONBLOCK)
    file = RankFile(tmp_path / "rank.log", 10, notes.append)
    file.add(b"first\n")
    file.close()

    assert os.read(reader, 100) == b""
    assert len(notes) == 1 and "no plain file" in notes[0]
    os.close(reader)
