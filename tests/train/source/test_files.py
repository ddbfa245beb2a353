import errno
import os
from pathlib import Path

import pytest

from tests.folders import unlookable
from toolkit.train.source.files import is_file, is_folder, kind_of


def test_a_descriptor_that_the_kernel_gives_no_kind_is_special(tmp_path: Path) -> None:
    events = os.eventfd(0)
    try:
        (tmp_path / "events").symlink_to(f"/proc/{os.getpid()}/fd/{events}")

        assert kind_of(tmp_path / "events") in ("a special file", "a file")  # Newer kernels may call it a file.
    finally:
        os.close(events)


def test_what_may_be_there_at_another_time_is_an_error_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "round").symlink_to("round")
    for path in (tmp_path / "missing", tmp_path / "round", tmp_path / ("n" * 300), tmp_path / "a NUL \0"):
        assert not is_file(path)
        assert not is_folder(path)
    assert kind_of(tmp_path / ("n" * 300)) == "nothing"
    assert kind_of(tmp_path / "round") == "a link to nothing (round)"

    unlookable(monkeypatch, tmp_path / "away")

    for look in (is_file, is_folder):
        with pytest.raises(OSError, match="Input/output error"):
            look(tmp_path / "away" / "train.py")
    unlookable(monkeypatch, tmp_path / "closed", errno.EACCES)
    assert not is_file(tmp_path / "closed")


def test_what_cannot_be_looked_at_is_not_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlookable(monkeypatch, tmp_path / "away", errno.ESTALE)

    assert kind_of(tmp_path / "away") == "something that cannot be looked at (Stale file handle)"
