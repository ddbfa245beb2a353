import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.commands.simulate import feed
from toolkit.commands.simulate.feed import Feed
from toolkit.train.supervise.children import fork_call
from toolkit.train.supervise.kernel import prctl


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, ...]:
    for name, content in (("a", b"first\n"), ("b", bytes(300_000)), ("c", b"last\n")):
        (tmp_path / name).write_bytes(content)
    return tuple(tmp_path / name for name in "abc")


@pytest.fixture
def fed(tmp_path: Path, files: tuple[Path, ...]) -> Iterator[Feed]:
    """A channel with its writer running."""
    pipe_feed = Feed(fifo=tmp_path / "train", files=files)
    feed.prepare(pipe_feed, 0)
    pid = fork_call(lambda: feed.run(pipe_feed), prctl=prctl())
    yield pipe_feed
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_each_epoch_is_all_files_in_the_order_of_their_names(fed: Feed) -> None:
    epochs = [fed.epoch(number).read_bytes() for number in range(3)]

    assert epochs == [b"first\n" + bytes(300_000) + b"last\n"] * 3


def test_the_next_epoch_is_there_while_the_present_one_is_read(fed: Feed) -> None:
    with fed.epoch(0).open("rb") as reader:
        reader.read(1)

        assert stat.S_ISFIFO(fed.epoch(1).stat().st_mode)


def test_an_epoch_may_be_left_early(fed: Feed) -> None:
    with fed.epoch(0).open("rb") as reader:
        assert reader.read(6) == b"first\n"

    assert fed.epoch(1).read_bytes().endswith(b"last\n")


def test_what_nobody_read_is_taken_away(tmp_path: Path, files: tuple[Path, ...]) -> None:
    pipe_feed = Feed(fifo=tmp_path / "train", files=files)
    feed.prepare(pipe_feed, 0)
    feed.prepare(pipe_feed, 1)
    (tmp_path / "train_notes").write_text("not a FIFO")

    feed.withdraw(pipe_feed)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "train_notes"]


def test_a_file_that_has_gone_ends_the_writer(tmp_path: Path) -> None:
    pipe_feed = Feed(fifo=tmp_path / "train", files=(tmp_path / "gone",))
    feed.prepare(pipe_feed, 0)
    pid = fork_call(lambda: feed.run(pipe_feed), prctl=prctl())

    assert pipe_feed.epoch(0).read_bytes() == b""
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
