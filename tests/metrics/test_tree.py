import re
import string
import sys

import pytest

from toolkit.metrics.tree import Literal, mandatory


@pytest.mark.parametrize(
    ("regex", "text", "folded"),
    [
        (r"'loss': ([0-9.]*)", b"'loss': ", False),
        (r"^epoch\b: (\d+)$", b"epoch: ", False),
        (r"a(b)c(?:d)(?P<e>e)[f]g", b"abcdefg", False),
        (r"(?:ab)+xyz(\d)", b"xyz", False),
        (r"(?:abcd){2}xyz(\d)", b"abcd", False),
        (r"(?:loss|accuracy)=([0-9.]+)", b"=", False),
        (r"lo+ss=(\d)", b"ss=", False),
        ("Größe=(\\d)", "Größe=".encode(), False),
        (r"(?i)Epoch=([0-9.]+)", b"epoch=", True),
        (r"(?i)Loss=([0-9.]+)", b"lo", True),
        (r"(?i)(?-i:Loss)=([0-9.]+)", b"Loss", False),
        (r"x(?i:Epoch)y([0-9.]+)", b"epoch", True),
        (r"(?x) loss \  = # comment", b"loss =", False),
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
