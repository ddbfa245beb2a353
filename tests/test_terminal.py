import pytest

from toolkit.terminal import without_backspaces


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain", "plain"),
        ("1/3 loss=0.9\b\b\b\b\b\b\b\b\b\b\b\b2/3 loss=0.5", "2/3 loss=0.5"),
        ("10/10 loss=0.10" + "\b" * 15 + "9/10 loss=0.5", "9/10 loss=0.5"),
        ("loss: 0.9\b\b\b0.5\b\b\b0.1", "loss: 0.1"),
        ("a\b\b\b\bb", "b"),
        ("100%\b\b\b\b", "100%"),
        ("100%\b\b\b\b   ", "100%"),
        ("é=1\b\b\bé=2", "é=2"),
        ("\b\b", ""),
    ],
)
def test_backspaces_move_back_and_what_follows_overwrites(line: str, expected: str) -> None:
    assert without_backspaces(line) == expected


def test_a_line_of_a_mebibyte_of_backspaces_is_read_in_linear_time() -> None:
    assert len(without_backspaces("x" * (1 << 19) + "\b1" * (1 << 18))) == 1 << 19
