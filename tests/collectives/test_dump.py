"""Dumps of torch's Flight Recorder are read in the form of each torch, and damaged ones raise nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.collectives.comparison import compare
from toolkit.collectives.dump import MOST_BYTES, read_dump
from toolkit.collectives.records import MOST_CALLS, CollectiveCall, RankCalls

DUMPS = Path(__file__).parents[1] / "data" / "flight_recorder"
TORCHES = ("torch-2.9.1", "torch-2.13.0")


def entry(number: int, operation: str = "gloo:all_reduce", **more: Any) -> dict[str, Any]:
    record = {
        "record_id": number,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": operation,
        "input_sizes": [[2, 3], [4]],
        "input_dtypes": ["Float", "Float"],
        "output_sizes": [[8]],
        "output_dtypes": ["Float"],
        "retired": True,
    }
    return {**record, **more}


def read(*entries: dict[str, Any], **more: Any) -> RankCalls:
    rank_calls = read_dump(json.dumps({"entries": entries, **more}).encode(), 0)
    assert rank_calls is not None
    return rank_calls


@pytest.mark.parametrize("torch", TORCHES)
def test_dumps_of_three_ranks_of_gloo_name_the_one_that_saves(torch: str) -> None:
    dumps = [read_dump((DUMPS / f"{torch}-rank-{rank}.json").read_bytes()) for rank in range(3)]

    assert dumps[0] is not None
    assert [group.title for group in dumps[0].groups] == ["the default group", "group 1 (pair)"]
    assert [group.ranks for group in dumps[0].groups] == [(0, 1, 2), (0, 1)]
    assert dumps[0].groups[0].calls[-1] == CollectiveCall(
        number=3,
        operation="all_reduce",
        payload="4 Float",
        is_complete=False,
        file="/opt/ml/code/train.py",
        line=10,
        function="step",
    )
    default, pair = compare([dump for dump in dumps if dump is not None])
    assert (default.state, default.number, default.absent, default.blamed) == ("missing", 3, (2,), (2,))
    assert (pair.state, pair.common_number) == ("idle", 1)


@pytest.mark.parametrize(
    ("operation", "payload"),
    [
        ("gloo:all_reduce", "10 Float"),
        ("nccl:broadcast", "10 Float"),
        ("gloo:scatter", "8 Float"),
        ("gloo:all_gather", "8 Float"),
        ("nccl:_reduce_scatter_base", "10 Float"),
        ("gloo:all_to_all", "Float"),
        ("xccl:something_new", "Float"),
    ],
)
def test_the_elements_that_must_be_equal_depend_on_the_operation(operation: str, payload: str) -> None:
    (call,) = read(entry(0, operation)).groups[0].calls

    assert (call.operation, call.payload) == (operation.partition(":")[2], payload)


def test_a_call_without_tensors_has_no_payload() -> None:
    none: dict[str, Any] = {"input_sizes": [], "input_dtypes": [], "output_sizes": [], "output_dtypes": []}

    (call,) = read(entry(0, "gloo:barrier", **none)).groups[0].calls

    assert call.payload == ""


def test_parts_of_a_coalesced_call_are_one_and_transfers_between_two_ranks_none() -> None:
    parts = [entry(7, retired=False), entry(7, "nccl:_allgather_base"), entry(0, "nccl:send", is_p2p=True)]

    (call,) = read(*parts).groups[0].calls

    assert (call.number, call.operation, call.payload) == (7, "all_reduce + _allgather_base", "10 Float + 8 Float")
    assert not call.is_complete


def test_a_ring_that_has_dropped_calls_is_not_whole_and_begins_with_a_whole_call() -> None:
    rank_calls = read(entry(6), entry(6), entry(7))

    assert not rank_calls.is_whole
    assert [call.number for call in rank_calls.groups[0].calls] == [7]
    assert read(entry(0), entry(1)).is_whole
    assert read().is_whole


def test_no_more_than_the_ring_is_read() -> None:
    rank_calls = read(*map(entry, range(MOST_CALLS + 5)))

    assert [call.number for call in rank_calls.groups[0].calls] == list(range(6, MOST_CALLS + 5))
    assert not rank_calls.is_whole
    assert read_dump(b" " * (MOST_BYTES + 1), 0) is None


def test_of_two_groups_of_one_name_the_newer_one_counts() -> None:
    rank_calls = read(entry(8), entry(9), entry(1, pg_id=3))

    assert [call.number for call in rank_calls.groups[0].calls] == [1]


def test_the_innermost_frame_of_the_users_own_code_is_the_place() -> None:
    library = {"filename": "/opt/lib/python3.12/site-packages/lightning/step.py", "line": 5, "name": "run"}
    own = {"filename": "/opt/ml/code/train.py", "line": 61, "name": "step"}

    calls = read(entry(0, frames=[library, own]), entry(1, frames=[library]), entry(2, frames=[])).groups[0].calls

    assert [(call.file.rpartition("/")[2], call.line) for call in calls] == [("train.py", 61), ("step.py", 5), ("", 0)]


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"\xff", b'{"entries": 1}', b'{"entries": []}', b'{"entries": [], "rank": -1}', b"[" * 100_000],
)
def test_a_dump_that_is_none_or_has_no_rank_is_not_read(text: bytes) -> None:
    assert read_dump(text) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
DAMAGED = st.dictionaries(st.sampled_from([*entry(0), "frames", "state", "is_p2p"]), JSON, max_size=4)


@given(damaged=st.lists(DAMAGED, max_size=4), config=JSON, cut=st.integers(0, 400))
def test_a_damaged_dump_raises_nothing(damaged: list[dict[str, Any]], config: Any, cut: int) -> None:
    entries = [{**entry(number), **changes} for number, changes in enumerate(damaged)]
    text = json.dumps({"entries": entries, "pg_config": {"0": config}, "rank": 1}).encode()

    read_dump(text[:cut])
    read_dump(text[cut:])
    whole = read_dump(text)

    assert whole is not None
    compare([whole])


@pytest.mark.parametrize("ranks", ["[0, 1", "[-1]", "[0.5]", 7, str(list(range(1001)))])
def test_ranks_of_a_group_in_another_form_are_not_known(ranks: Any) -> None:
    rank_calls = read(entry(0), pg_config={"0": {"ranks": ranks}})

    assert rank_calls.groups[0].ranks == ()
