from hypothesis import given
from hypothesis import strategies as st

from toolkit.train.supervise.lines import LineBuffer, prefixed

PIECES = st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"a\nb", b"\r", b"xx\r\nyy\n"]), max_size=30)


@given(PIECES, st.integers(1, 20))
def test_no_byte_is_changed_lost_or_moved(pieces: list[bytes], limit: int) -> None:
    lines = LineBuffer(limit)
    given_out = [part for piece in pieces for part in lines.feed(piece)]

    assert b"".join((*given_out, lines.flush())) == b"".join(pieces)


@given(PIECES)
def test_only_whole_lines_are_given_out_below_the_limit(pieces: list[bytes]) -> None:
    lines = LineBuffer()

    for piece in pieces:
        complete, over = lines.feed(piece)
        assert over == b""
        assert complete == b"" or complete.endswith(b"\n")


@given(PIECES, st.integers(1, 20))
def test_memory_stays_below_the_limit_and_one_piece(pieces: list[bytes], limit: int) -> None:
    lines = LineBuffer(limit)

    for piece in pieces:
        lines.feed(piece)
        assert lines.held_bytes <= limit


def test_an_overlong_line_is_counted_once_however_many_pieces_it_takes() -> None:
    lines = LineBuffer(10)
    for _ in range(9):
        lines.feed(b"0123456")
    lines.feed(b"end\nshort\n")
    lines.feed(b"01234567890123")

    assert lines.long_lines == 2


def test_the_beginning_of_an_unfinished_line_can_be_taken_and_the_rest_is_kept() -> None:
    lines = LineBuffer()
    lines.feed(b"\r10%\r2")
    lines.feed(b"0%\r30")

    assert lines.held() == b"\r10%\r20%\r30"
    assert lines.take(9) == b"\r10%\r20%\r"
    assert (lines.held(), lines.held_bytes) == (b"30", 2)
    assert lines.take(0) == b""
    assert lines.feed(b"%\n") == (b"30%\n", b"")


def test_each_line_gets_the_prefix_and_a_last_line_its_newline() -> None:
    assert b"".join(prefixed(b"a\n\nb\n", b"[x] ")) == b"[x] a\n[x] \n[x] b\n"
    assert b"".join(prefixed(b"cut", b"[x] ")) == b"[x] cut\n"
    assert b"".join(prefixed(b"a\nb", b"")) == b"a\nb\n"
    assert b"".join(prefixed(b"a\nb\n", b"")) == b"a\nb\n"
