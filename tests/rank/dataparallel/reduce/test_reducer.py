"""Real ranks whose gradients go through shared memory, beside gloo in the same processes."""

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.forking import Fork
from tests.ports import free_port
from toolkit.rank.dataparallel.reduce.registry import MAX_GROUPS
from toolkit.train.launchers.environment import HOOK
from toolkit.train.verdict.collateral import is_collateral

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="not installed: torch"),
]
PROGRAM = Path(__file__).parents[3] / "programs/reduces_gradients.py"
ROOT = Path(__file__).parents[4]
WITHIN_S = 300


def run_scene(scene: str, size: int, hosts: int) -> list[tuple[int, list[str], str]]:
    """Return (exit code, lines of stdout, stderr) of each rank."""
    shared = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TOOLKIT_", "SM"))},
        "PYTHONPATH": f"{HOOK}:{ROOT}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        Fork(
            PROGRAM,
            scene,
            environ={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": str(rank * hosts // size)},
        )
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=WITHIN_S) for rank in ranks]
        return [(rank.wait(), out.splitlines(), err) for rank, (out, err) in zip(ranks, outputs, strict=True)]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.fixture(scope="module")
def one_host() -> list[tuple[int, list[str], str]]:
    return run_scene("one host", 2, 1)


def read_results(ran: tuple[int, list[str], str]) -> dict[str, Any]:
    assert ran[1], ran[2]
    results: dict[str, Any] = json.loads(ran[1][0])
    return results


def test_two_ranks_get_gloos_bits_in_every_type_and_through_ddp(one_host: list[tuple[int, list[str], str]]) -> None:
    for ran in one_host:
        results = read_results(ran)

        assert results["as gloo"] == dict.fromkeys(results["as gloo"], True)
        assert [results[name] for name in ("transposed", "mean", "several", "later", "its future", "largest")] == [
            True
        ] * 6
        assert results["DDP as gloo"]


def test_only_sums_of_floats_are_reduced_hierarchically(one_host: list[tuple[int, list[str], str]]) -> None:
    for ran in one_host:
        results = read_results(ran)

        assert (results["calls"], results["calls of others"]) == (5, 0)
        assert results["calls of DDP"] >= 3  # One for each step at least.


def test_the_choice_is_told_on_rank_0(one_host: list[tuple[int, list[str], str]]) -> None:
    assert "[toolkit] smddp: all-reduce: shared memory from 64 KiB (ms, hierarchical/gloo: 64 KiB " in one_host[0][2]
    assert "[toolkit] smddp: all-reduce" not in one_host[1][2]


def test_a_killed_peer_raises_in_gloos_words_from_the_backward_and_from_then_on(
    one_host: list[tuple[int, list[str], str]],
) -> None:
    code, lines, stderr = one_host[0]

    assert one_host[1][0] == -signal.SIGKILL
    assert (code, len(lines)) == (0, 3), stderr
    for line in lines[1:]:
        assert "Connection closed by peer: rank 1 of this host ended or left in an all-reduce of" in line
        assert is_collateral(line)


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.long)])
def several_hosts(request: pytest.FixtureRequest) -> list[tuple[int, list[str], str]]:
    return run_scene("hosts", 2 * request.param, request.param)


def test_groups_of_the_same_ranks_share_what_was_measured_and_a_few_have_threads() -> None:
    for ran in run_scene("groups", 2, 1):
        results = read_results(ran)
        assert results["from threads"]
        assert results["one after the other"]
        assert results["measured again"] == 0
        assert results["hierarchical"] == results["threads"] == MAX_GROUPS
        assert results["after it"] and results["inference"]
    assert "found one of shape (300, 300) and strides (0, 1)" in results["rejected"]


def test_ranks_whose_sizes_differ_are_told_both_sizes() -> None:
    first, second = (ran[1] for ran in run_scene("sizes", 2, 1))

    assert first[0].startswith("an all-reduce of 400,000 bytes on this rank met one of 200,000 bytes on rank 1: every")
    assert second[0].startswith("an all-reduce of 200,000 bytes on this rank met one of 400,000 bytes on rank 0: every")


def test_a_rank_whose_peer_is_in_gloo_with_another_size_is_told() -> None:
    first, second = run_scene("ways", 2, 1)

    assert first[1][0].startswith("an all-reduce of 400,000 bytes on this rank met one of 400 bytes on rank 1: every")
    assert is_collateral(second[1][0] if second[1] else second[2])


def test_where_one_rank_gets_no_memory_all_stay_with_gloo(several_hosts: list[tuple[int, list[str], str]]) -> None:
    for ran in several_hosts:
        results = read_results(ran)

        assert results["refused"] and results["ways of the refused"] == {}
    words = "all-reduce stays with gloo: not every rank could connect: [Errno 1] Operation not permitted"
    assert words in several_hosts[0][2]


def test_hosts_of_two_sum_over_shared_memory_and_tcp(several_hosts: list[tuple[int, list[str], str]]) -> None:
    for ran in several_hosts:
        results = read_results(ran)
        for kind, (smddp_error, theirs) in results["error"].items():
            assert results[f"alike {kind}"]
            assert smddp_error <= theirs, kind
        assert results["DDP"] and results["local_peers"]
        assert list(results["world"]) == ["shared memory and TCP between hosts"]
        assert list(results["group"]) == ["shared memory"]
    sent = [read_results(ran)["world"]["shared memory and TCP between hosts"][2] for ran in several_hosts]
    assert max(sent) / (sum(sent) / len(sent)) < 1.001


def test_a_killed_rank_fails_the_all_reduce_of_every_host(several_hosts: list[tuple[int, list[str], str]]) -> None:
    *others, killed = several_hosts

    assert killed[0] == -signal.SIGKILL
    for code, lines, stderr in others:
        assert (code, len(lines)) == (0, 2), stderr
        assert lines[1].startswith("Connection closed by peer: rank ") and is_collateral(lines[1])
