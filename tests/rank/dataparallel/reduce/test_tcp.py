"""Real processes that exchange bytes over TCP, without torch."""

from pathlib import Path

import pytest

from tests.rank.dataparallel.reduce.ranks import run_scene
from toolkit.train.verdict.collateral import is_collateral

PROGRAM = Path(__file__).with_name("tcp_rank.py")


@pytest.mark.parametrize("size", [2, 5])
def test_every_rank_receives_what_every_other_sent_and_may_leave_when_done(tmp_path: Path, size: int) -> None:
    outputs = run_scene(PROGRAM, tmp_path, size, "who is done leaves")

    assert outputs == [["exchanged", "descriptors 4"]] * size  # 0, 1, 2, and the listing's own


def test_an_address_of_another_process_is_skipped(tmp_path: Path) -> None:
    assert run_scene(PROGRAM, tmp_path, 3, "the first address leads elsewhere") == [["exchanged"]] * 3


def test_connections_of_other_processes_are_closed_and_delay_nobody(tmp_path: Path) -> None:
    outputs = run_scene(PROGRAM, tmp_path, 3, "a stranger calls")

    assert outputs == [["exchanged"], ["b''"] * 3 + ["exchanged"], ["exchanged"]]


def test_a_killed_rank_is_named_even_if_its_forked_child_lives_on(tmp_path: Path) -> None:
    outputs = run_scene(PROGRAM, tmp_path, 2, "one is killed")

    assert outputs[1] == []
    assert outputs[0][1] == "PeerLost: Connection closed by peer: rank 1 on another host ended or left in a test"
    assert is_collateral(outputs[0][1])


def test_a_rank_that_does_not_arrive_in_time_is_named(tmp_path: Path) -> None:
    outputs = run_scene(PROGRAM, tmp_path, 3, "one is late")

    assert outputs[0][1] == "PeerTimeout: Timed out waiting 0.3 s for rank 1, rank 2 in a test"
    assert is_collateral(outputs[0][1])


def test_a_rank_that_closes_returns_at_once_and_its_peers_raise(tmp_path: Path) -> None:
    outputs = run_scene(PROGRAM, tmp_path, 2, "one closes")

    assert outputs[0][1] == "GroupClosed: a test was given up: its process group is being closed"
    assert outputs[1][1] == "PeerLost: Connection closed by peer: rank 0 on another host ended or left in a test"


def test_peers_of_a_rank_without_an_address_do_not_wait(tmp_path: Path) -> None:
    outputs = run_scene(PROGRAM, tmp_path, 3, "one has no address")

    assert outputs == [["not connected: rank 1 has no address that it could listen on"]] * 3
