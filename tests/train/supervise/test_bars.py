import pytest

from toolkit.train.supervise.bars import collapsed, is_plain, kept_from, last_state, split

# What tqdm 4.67 wrote for tqdm.tqdm(..., position=0) with one of position=1 in it, and a tqdm.write between.
OUTER, INNER, UP = b"  0%|          | 0/2", b" 50%|#####     | 1/2", b"\x1b[A"


@pytest.mark.parametrize(
    ("line", "state"),
    [
        (b"\r 10%\r 20%\r100%", b"100%"),
        (b"100%\r", b"100%"),
        (b"\r 99%\r        \r", b" 99%"),
        (b"\r 99%\r\x1b[2K", b" 99%"),
        (b"\r\x1b[2K\x1b[1A\x1b[2K\x1b[31mrow\x1b[0m", b"\x1b[31mrow\x1b[0m"),
        (b"\x08\x08\x08\r 5/10 [=>..]", b" 5/10 [=>..]"),
        (b"1/10 loss=3\x08\x08\x08\x08\x08\x08\x08\x08\x08\x08\x082/10 loss=2", b"2/10 loss=2"),
        ("é 1%\x08\x08\x08\x08é 2%".encode(), "é 2%".encode()),
        (b"\xff1%\x08\x082%", b"\xff2%"),
        (b"\r 99%\r\x08\x08", b" 99%"),
        (b"\x1b]0;title\x07text", b"text"),
        (b"Downloading... ", b"Downloading... "),
        (b"\r \r\x1b[0m\r", b""),
        (b"", b""),
    ],
)
def test_a_lines_text_is_its_last_state_that_shows_anything(line: bytes, state: bytes) -> None:
    assert last_state(line) == state
    assert line[kept_from(line) :].startswith(state) or b"\x1b" in line or b"\x08" in line


@pytest.mark.parametrize(
    ("block", "lines", "state"),
    [
        (b"plain\n\x1b[32mgreen\x1b[0m\n", b"plain\n\x1b[32mgreen\x1b[0m\n", b""),
        (b"dos\r\n\r\nmore\r\n", b"dos\r\n\r\nmore\r\n", b""),
        (b"dos\r\n\r 1%\r 2%\n", b"dos\r\n 2%\n", b""),
        (b"\r 10%\r100%\nnext\n", b"100%\nnext\n", b""),
        (b"\r" + OUTER + b"\n\r" + INNER + UP + b"\n", OUTER + b"\n", INNER),
        (b"\r" + INNER + UP + b"\r      \r\n", b"", INNER),
        (b"\r        \r" + UP + b"a word\n\r" + OUTER + b"\n", b"a word\n" + OUTER + b"\n", b""),
        ("━━━ 2\r\x1b[2K\x1b[1A\x1b[2K━━━ 1\n".encode(), b"", "━━━ 1".encode()),
        (b"\r\x1b[2K\x1b[1A\x1b[2Kloss=1\n", b"loss=1\n", b""),
        (b"\n\n", b"\n\n", b""),
    ],
)
def test_lines_that_are_written_over_are_states_and_no_other_line_is_left_out(
    block: bytes, lines: bytes, state: bytes
) -> None:
    assert split(block) == (lines, state)


def test_lines_without_states_stay_byte_for_byte() -> None:
    for block in (b"a\r\nb\r\n", b"\x1b[1mbold\x1b[0m\n", b"\xff\xfe\n", b"no end"):
        assert is_plain(block)
        assert collapsed(block) == block


def test_what_metrics_see_of_a_bar_is_its_last_state() -> None:
    assert collapsed(b"\rloss=3\rloss=2\rloss=1\n") == b"loss=1\n"
    assert collapsed(b"\r" + INNER + UP + b"\nend\n") == INNER + b"\nend\n"
    assert collapsed(b"loss=3\x08\x08\x08\x08\x08\x08loss=1\n") == b"loss=1\n"
    assert collapsed(b"loss=3" + b"\x08 \x08" * 6 + b"loss=1\n") == b"loss=1\n"


def test_blank_states_after_the_last_visible_one_are_passed_over() -> None:
    assert last_state(b"\r 10%\r 20%  \r   \r\r \t\r") == b" 20%  "
    assert kept_from(b"\r 10%\r 20%  \r   \r\r") == 6
    assert last_state(b"\r \r") == b"" and kept_from(b"\r \r") == 0
