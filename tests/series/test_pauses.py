"""The monitor's file of places in pauses, and the words for them."""

from pathlib import Path

import pytest

from toolkit.series import pauses
from toolkit.series.pauses import PausePlace, PauseStack, RankPauses, describe_wait, find_place

LOCK = PauseStack(count=9, call="fcntl.flock", place="train.py:41", wait="locks_lock_inode_wait")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    ranks = {0: RankPauses(samples=10, stacks=(LOCK,)), 7: RankPauses(samples=2)}

    pauses.write(tmp_path, ranks)

    assert pauses.read(tmp_path) == ranks


@pytest.mark.parametrize("content", [None, "", "[]", '{"0": {"samples": "many"}}', '{"x": {}}'])
def test_a_file_that_is_damaged_or_not_there_tells_nothing(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / pauses.NAME).write_text(content)

    assert pauses.read(tmp_path) == {}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("locks_lock_inode_wait", "a file lock"),
        ("wait_woken", "a socket"),
        ("unix_stream_read_generic", "a socket"),
        ("futex_do_wait", "another thread"),
        ("hrtimer_nanosleep", "a sleep"),
        ("folio_wait_bit_common", "a disk"),
        ("do_wait", "a child process"),
        ("", ""),
        ("something_new", ""),
    ],
)
def test_the_function_of_the_kernel_tells_what_is_waited_for(function: str, words: str) -> None:
    assert describe_wait(PauseStack(count=1, wait=function)) == words


def test_the_most_frequent_place_is_named_with_its_share() -> None:
    runs = PauseStack(count=1, call="fcntl.flock", place="train.py:41")
    other = PauseStack(count=2, call="time.sleep", place="train.py:9", wait="hrtimer_nanosleep")

    place = find_place(RankPauses(samples=20, stacks=(LOCK, other, runs)))

    assert place == PausePlace(share=50.0, where="fcntl.flock (train.py:41)", wait="a file lock")
    assert find_place(RankPauses()) is None
