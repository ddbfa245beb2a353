"""Real processes that share a shared-memory group, without torch."""

from pathlib import Path

import pytest

from tests.rank.dataparallel.reduce.ranks import run_scene
from toolkit.train.verdict.collateral import is_collateral

PROGRAM = Path(__file__).with_name("shared_memory_rank.py")


@pytest.mark.parametrize("size", [2, 5])
def test_what_a_rank_writes_before_a_barrier_all_see_after_it(tmp_path: Path, size: int) -> None:
    outputs = run_scene(PROGRAM, tmp_path, size, "they meet")

    assert outputs == [["met"]] * size


def test_a_killed_rank_is_named_at_once_even_if_its_forked_child_lives(tmp_path: Path) -> None:
    outputs = run_scene(PROGRAM, tmp_path, 3, "one is killed")

    assert outputs[1] == []
    for lines in (outputs[0], outputs[2]):
        # Who learns of it first leaves, and may be the one that the other names.
        assert len(lines) == 1 and lines[0].startswith("Connection closed by peer: rank "), outputs
        assert is_collateral(lines[0])
    assert any("rank 1 of this host" in lines[0] for lines in (outputs[0], outputs[2]))


def test_a_rank_that_leaves_after_the_last_barrier_fails_no_peer(tmp_path: Path) -> None:
    outputs = run_scene(PROGRAM, tmp_path, 4, "one leaves early")

    assert [lines[0] for lines in outputs] == ["met"] * 4
    assert {lines[1] for lines in outputs} == {"descriptors 4"}  # 0, 1, 2, and the listing's own


def test_a_rank_that_does_not_arrive_in_time_is_named(tmp_path: Path) -> None:
    outputs = run_scene(PROGRAM, tmp_path, 3, "one is late")

    assert outputs[0] == ["PeerTimeout: Timed out waiting 0.3 s for rank 1, rank 2 in a test"]
    assert is_collateral(outputs[0][0])


def test_a_rank_that_closes_returns_at_once_and_its_peers_raise(tmp_path: Path) -> None:
    outputs = run_scene(PROGRAM, tmp_path, 3, "one closes")

    assert outputs[0] == ["GroupClosed: a test was given up: its process group is being closed"]
    for lines in outputs[1:]:
        assert len(lines) == 1 and lines[0].startswith("PeerLost: Connection closed by peer: rank "), outputs


def test_peers_of_a_rank_without_a_socket_do_not_wait(tmp_path: Path) -> None:
    outputs = run_scene(PROGRAM, tmp_path, 3, "one has no socket")

    assert outputs[1] == []
    assert all(lines and lines[0].startswith("not connected: ") for lines in (outputs[0], outputs[2])), outputs
