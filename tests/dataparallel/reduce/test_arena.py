"""Real processes that share an arena, without torch."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.verdict.collateral import is_echo

PROGRAM = Path(__file__).with_name("meets.py")
ROOT = Path(__file__).parents[3]
WITHIN_S = 60


def played(folder: Path, size: int, scene: str) -> list[list[str]]:
    """Return the lines that each of *size* ranks printed in *scene*."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), str(rank), str(size), scene],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        for rank in range(size)
    ]
    try:
        return [_lines(rank) for rank in ranks]
    finally:
        for rank in ranks:
            try:
                os.killpg(rank.pid, signal.SIGKILL)  # A forked child too.
            except ProcessLookupError:
                pass
            rank.wait()
            if rank.stdout is not None:
                rank.stdout.close()


def _lines(rank: "subprocess.Popen[str]") -> list[str]:
    # Not communicate: a forked child may hold the pipe.
    rank.wait(WITHIN_S)
    assert rank.stdout is not None
    os.set_blocking(rank.stdout.fileno(), False)
    return os.read(rank.stdout.fileno(), 65536).decode().splitlines() if rank.returncode == 0 else []


@pytest.mark.parametrize("size", [2, 5])
def test_what_one_writes_before_a_meeting_all_see_after_it(tmp_path: Path, size: int) -> None:
    said = played(tmp_path, size, "they meet")

    assert said == [["met"]] * size


def test_a_killed_rank_is_named_at_once_even_if_its_forked_child_lives_on(tmp_path: Path) -> None:
    said = played(tmp_path, 3, "one is killed")

    assert said[1] == []
    for lines in (said[0], said[2]):
        # Who learns of it first leaves, and may be the one that the other names.
        assert len(lines) == 1 and lines[0].startswith("Connection closed by peer: rank "), said
        assert is_echo(lines[0])
    assert any("rank 1 of this host" in lines[0] for lines in (said[0], said[2]))


def test_who_leaves_after_the_last_meeting_breaks_nobodys(tmp_path: Path) -> None:
    said = played(tmp_path, 4, "one leaves early")

    assert [lines[0] for lines in said] == ["met"] * 4
    assert {lines[1] for lines in said} == {"descriptors 4"}  # 0, 1, 2, and the listing's own


def test_who_does_not_come_in_time_is_named(tmp_path: Path) -> None:
    said = played(tmp_path, 3, "one is late")

    assert said[0] == ["Late: Timed out waiting 0.3 s for rank 1, rank 2 in a test"]
    assert is_echo(said[0][0])


def test_a_rank_that_closes_frees_itself_and_fails_its_peers(tmp_path: Path) -> None:
    said = played(tmp_path, 3, "one closes")

    assert said[0] == ["Closed: a test was given up: its process group is being closed"]
    for lines in said[1:]:
        assert len(lines) == 1 and lines[0].startswith("Gone: Connection closed by peer: rank "), said


def test_a_rank_without_a_socket_keeps_nobody_waiting(tmp_path: Path) -> None:
    said = played(tmp_path, 3, "one has no socket")

    assert said[1] == []
    assert all(lines and lines[0].startswith("not connected: ") for lines in (said[0], said[2])), said
