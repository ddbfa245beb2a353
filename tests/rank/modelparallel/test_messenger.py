"""Real processes that send each other messages, over unix sockets and over TCP, without a framework."""

from pathlib import Path

import pytest

from tests.rank.dataparallel.reduce.ranks import run_scene
from toolkit.train.verdict.collateral import is_collateral

PROGRAM = Path(__file__).with_name("messenger_rank.py")
FAMILIES = {"near": "{'AF_UNIX'}", "far": "{'AF_INET'}"}


@pytest.mark.parametrize("where", FAMILIES)
def test_messages_of_any_size_arrive_whole_in_order_and_at_callbacks(tmp_path: Path, where: str) -> None:
    said = run_scene(PROGRAM, tmp_path, 3, f"exchange, {where}")

    waits = [f"TimeoutError: Timed out waiting 0.01 s for rank {other} (nothing)" for other in (1, 0, 0)]
    assert said == [[FAMILIES[where], each, "exchanged"] for each in waits]


@pytest.mark.parametrize("where", FAMILIES)
def test_a_killed_rank_ends_every_wait_even_if_its_forked_child_lives_on(tmp_path: Path, where: str) -> None:
    said = run_scene(PROGRAM, tmp_path, 3, f"one is killed, {where}")

    lost = "PeerLost: Connection closed by peer: rank 1 ended or left"
    assert said[1] == []
    assert said[0] == [FAMILIES[where], *[lost] * 3, "still here", "[(1, False)]"]
    assert said[2] == [FAMILIES[where], *[lost] * 3, "[(1, False)]"]
    assert is_collateral(lost)


def test_the_goodbye_of_a_rank_comes_after_its_messages_and_ends_only_waits_for_it(tmp_path: Path) -> None:
    said = run_scene(PROGRAM, tmp_path, 3, "one says goodbye, far")

    lost = "PeerLost: Connection closed by peer: rank 1 reached its end"
    assert said[0] == [FAMILIES["far"], lost, "8000000", "[(1, True)]"]
    assert said[2] == [FAMILIES["far"], lost, "[(1, True)]"]


def test_an_error_in_a_callback_reaches_the_threads_that_wait(tmp_path: Path) -> None:
    said = run_scene(PROGRAM, tmp_path, 2, "a callback fails, near")

    assert said == [[FAMILIES["near"], "ValueError: in the callback"]] * 2
