from hypothesis import given
from hypothesis import strategies as st

from toolkit.supervise.lines import Lines, collapsed, prefixed

PIECES = st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"a\nb", b"\r", b"xx\r\nyy\n"]), max_size=30)


@given(PIECES, st.integers(1, 20))
def test_no_byte_is_changed_lost_or_moved(pieces: list[bytes], limit: int) -> None:
    lines = Lines(limit)
    given_out = [part for piece in pieces for part in lines.feed(piece)]

    assert b"".join((*given_out, lines.flush())) == b"".join(pieces)


@given(PIECES)
def test_only_whole_lines_are_given_out_below_the_limit(pieces: list[bytes]) -> None:
    lines = Lines()

    for piece in pieces:
        whole, over = lines.feed(piece)
        assert over == b""
        assert whole == b"" or whole.endswith(b"\n")


@given(PIECES, st.integers(1, 20))
def test_memory_stays_below_the_limit_and_one_piece(pieces: list[bytes], limit: int) -> None:
    lines = Lines(limit)

    for piece in pieces:
        lines.feed(piece)
        assert lines.held_bytes <= limit


def test_an_overlong_line_is_counted_once_however_many_pieces_it_takes() -> None:
    lines = Lines(10)
    for _ in range(9):
        lines.feed(b"0123456")
    lines.feed(b"end\nshort\n")
    lines.feed(b"01234567890123")

    assert lines.long_lines == 2


def test_finished_states_of_a_bar_are_given_out_and_the_unfinished_one_is_kept() -> None:
    lines = Lines()
    lines.feed(b"\r10%\r20%\r30")

    assert lines.states() == b"\r10%\r20%\r"
    assert lines.feed(b"%\n") == (b"30%\n", b"")


def test_each_line_gets_the_prefix_and_a_last_line_its_newline() -> None:
    assert b"".join(prefixed(b"a\n\nb\n", b"[x] ")) == b"[x] a\n[x] \n[x] b\n"
    assert b"".join(prefixed(b"cut", b"[x] ")) == b"[x] cut\n"
    assert b"".join(prefixed(b"a\nb", b"")) == b"a\nb\n"
    assert b"".join(prefixed(b"a\nb\n", b"")) == b"a\nb\n"


def test_a_file_keeps_a_bars_last_state_and_windows_line_ends() -> None:
    assert collapsed(b"plain\n\r 1%\r 50%\r100%\nlast\r\n") == b"plain\n100%\nlast\n"
    assert collapsed(b"no bar\n") == b"no bar\n"
