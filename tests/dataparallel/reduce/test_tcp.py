"""Real processes that exchange bytes over TCP, without torch."""

from pathlib import Path

import pytest

from tests.dataparallel.reduce.ranks import played
from toolkit.verdict.collateral import is_collateral

PROGRAM = Path(__file__).with_name("tcp_rank.py")


@pytest.mark.parametrize("size", [2, 5])
def test_everyone_gets_what_everyone_sent_and_who_is_done_may_leave(tmp_path: Path, size: int) -> None:
    said = played(PROGRAM, tmp_path, size, "who is done leaves")

    assert said == [["exchanged", "descriptors 4"]] * size  # 0, 1, 2, and the listing's own


def test_an_address_that_leads_to_somebody_else_is_passed_over(tmp_path: Path) -> None:
    assert played(PROGRAM, tmp_path, 3, "the first address leads elsewhere") == [["exchanged"]] * 3


def test_a_stranger_is_shown_the_door_and_holds_nobody_up(tmp_path: Path) -> None:
    said = played(PROGRAM, tmp_path, 3, "a stranger calls")

    assert said == [["exchanged"], ["b''"] * 3 + ["exchanged"], ["exchanged"]]


def test_a_killed_rank_is_named_even_if_its_forked_child_lives_on(tmp_path: Path) -> None:
    said = played(PROGRAM, tmp_path, 2, "one is killed")

    assert said[1] == []
    assert said[0][1] == "PeerLost: Connection closed by peer: rank 1 on another host ended or left in a test"
    assert is_collateral(said[0][1])


def test_who_does_not_come_in_time_is_named(tmp_path: Path) -> None:
    said = played(PROGRAM, tmp_path, 3, "one is late")

    assert said[0][1] == "PeerTimeout: Timed out waiting 0.3 s for rank 1, rank 2 in a test"
    assert is_collateral(said[0][1])


def test_a_rank_that_closes_frees_itself_and_fails_its_peers(tmp_path: Path) -> None:
    said = played(PROGRAM, tmp_path, 2, "one closes")

    assert said[0][1] == "GroupClosed: a test was given up: its process group is being closed"
    assert said[1][1] == "PeerLost: Connection closed by peer: rank 0 on another host ended or left in a test"


def test_a_rank_without_an_address_keeps_nobody_waiting(tmp_path: Path) -> None:
    said = played(PROGRAM, tmp_path, 3, "one has no address")

    assert said == [["not connected: rank 1 has no address that it could listen on"]] * 3
