import re
import string
import sys

import pytest

from toolkit.metrics.literal import Literal, mandatory


@pytest.mark.parametrize(
    ("regex", "text", "folded"),
    [
        (r"'loss': ([0-9.]*)", b"'loss': ", False),
        (r"^epoch\b: (\d+)$", b"epoch: ", False),
        (r"a(b)cde(?:d|f)fg(?P<h>h)", b"cde", False),
        (r"(?:abcd){2}xyz(\d)", b"xyz", False),
        (r"\[x\] y{z}: {2}[]|()(]+ab{0,2}\.c(\d)", b"[x] y{z}: ", False),
        (r"(?:loss|accuracy)=([0-9.]+)", b"=", False),
        (r"lo+ss=(\d)", b"ss=", False),
        (r"loss+=(\d)", b"loss", False),
        ("Größe=(\\d)", "Größe=".encode(), False),
        (r"(?i)Epoch=([0-9.]+)", b"epoch=", True),
        (r"(?i)Loss=([0-9.]+)", b"lo", True),
        (r"(?i)(?-i:Loss)=([0-9.]+)", b"=", True),
    ],
)
def test_the_longest_certain_literal_is_found(regex: str, text: bytes, folded: bool) -> None:
    assert mandatory(re.compile(regex)) == Literal(text=text, folded=folded)


@pytest.mark.parametrize(
    "regex",
    [
        r"([0-9.]+)",
        r"(?:loss=)?([0-9.]+)",
        r"(?:loss=)*([0-9.]+)",
        r"loss=(\d)|acc:(\d)",
        r"(?=loss)(\d)",
        r"(?<=loss)(\d)",
        r"(?!loss)(\d)",
        r"(\d)?(?(1)loss|acc)",
        r"(?x) loss \  = # comment",
        "(?x: loss=([0-9.]+)  # ms) of step\n)",
        r"(?#(loss)(\d)",
        r"\x41lpha(\d)",
        r"(?:a(b)c)",
        "\ufffd(\\d)",
        "\ud800(\\d)",
        r"(?i)(s)",
        r"",
    ],
)
def test_nothing_is_claimed_that_is_not_certain(regex: str) -> None:
    assert mandatory(re.compile(regex)) is None


def test_no_other_letters_match_a_folded_ascii_letter() -> None:
    """The letters that have relatives beyond ASCII are k, s and i; all of Unicode is asked."""
    beyond = "".join(chr(code) for code in range(128, sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF)

    with_relatives = {letter for letter in string.printable if re.search(re.escape(letter), beyond, re.IGNORECASE)}

    assert with_relatives == set("kKsSiI")
