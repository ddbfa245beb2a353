"""Text that is cut before it is masked is cut between words."""

import pytest

from toolkit.log import Log
from toolkit.masking.excerpt import LONGEST_WORD, beginning, end

TOKEN = "Zq7RtYx9LmN4pWvKc2"
SHAPED = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
TEXTS = {
    "a known value": ("{}", "kn0wnV4lu3Xq9"),
    "a password in an address": ("postgresql://reader:{}@db.example/train", TOKEN),
    "a token of a service": ("{}", SHAPED),
}


@pytest.mark.parametrize(("form", "secret"), TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("around", [" {}\n", '{{"k": "{}"}}'])
def test_wherever_a_text_is_cut_no_part_of_a_secret_stays(form: str, secret: str, around: str) -> None:
    log = Log()
    log.hide({"API_KEY": "kn0wnV4lu3Xq9"})
    text = f"{'word ' * 24}{around.format(form.format(secret))}{' word' * 24}"
    parts = {secret[index : index + 5] for index in range(len(secret) - 4)}

    for room in range(115, len(text) - 115):
        for cut in (beginning(text, room), end(text, room)):
            masked = log.mask(cut)
            assert len(cut) <= room
            assert not any(part in masked for part in parts), masked


def test_a_text_that_fits_stays_and_a_cut_one_keeps_whole_words() -> None:
    assert beginning("one two", 7) == end("one two", 7) == "one two"
    assert beginning("one two three", 10) == "one two..."
    assert beginning("one two three", 12) == "one two..."
    assert end("one two three", 8) == "...three"
    assert end("one two three", 10) == "... three"
    assert beginning("/a/path/that/takes/most/of/the/room", 20) == "/a/path/that/take..."


def test_a_word_that_is_longer_than_any_secret_is_cut_itself() -> None:
    word = "x" * (LONGEST_WORD * 3)

    assert beginning(f"it is {word}", 400) == f"it is {word[:391]}..."
    assert end(f"{word} it was", 400) == f"...{word[:390]} it was"
