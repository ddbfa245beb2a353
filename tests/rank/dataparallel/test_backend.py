"""Backend "smddp" in two real ranks: everything once, compared with gloo in the same processes, bit by bit."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.started import PROGRAMS, ROOT, ended, ranks
from toolkit.train.launchers.environment import HOOK

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="not installed: torch"),
]


class Ran(NamedTuple):
    """The output of two ranks: a line of JSON each, and both stderrs; and the folder they wrote into."""

    said: list[dict[str, Any]]
    stderr: list[str]
    folder: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("smddp")
    ignored = {"SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES": "8192", "SMDATAPARALLEL_USE_SINGLENODE": "1"}
    outputs = ended(ranks(PROGRAMS / "uses_smddp.py", str(folder), environ=ignored))
    yield Ran([json.loads(out.splitlines()[-1]) for out, _ in outputs], [error for _, error in outputs], folder)


def test_every_collective_gives_what_gloo_gives(ran: Ran) -> None:
    for result in ran.said:
        assert result["backends"] == ["smddp", "gloo", True]
        assert {name for name, equal in result["collectives"].items() if not equal} == set()
        assert len(result["collectives"]) == 16
    assert ran.said[1]["group of one"] == [1, 1]


@pytest.mark.parametrize("key", ["DDP", "DDP, bucket view", "DDP, old name", "DDP, compiled", "ZeRO", "FSDP2"])
def test_weights_and_gradients_are_gloos_to_the_last_bit(ran: Ran, key: str) -> None:
    assert [result[key] for result in ran.said] == [True, True]


def test_zero_keeps_half_of_the_optimizers_state_on_each_of_two_ranks(ran: Ran) -> None:
    full_bytes = ran.said[0]["state bytes"][1]

    assert all(0.4 < result["state bytes"][0] / full_bytes < 0.6 for result in ran.said)


def test_the_module_form_works_and_says_that_it_is_deprecated(ran: Ran) -> None:
    for rank, result in enumerate(ran.said):
        average, later, broadcast, many, swapped = result["old"]
        assert (average, later, broadcast, many) == ([0.5] * 3, [0.5] * 3, 1.0, [1.0, 1.0])
        assert swapped == [float(rank), 10.0 + rank]
        assert result["numbers"] == [2, rank, rank, True]
        assert result["before"] == [True, False]
        assert result["one class"]
        assert result["no_sync"]
        (warned,) = result["warned"]
        assert warned.startswith("smdistributed.dataparallel.torch.dist is deprecated")
        assert "init_process_group() before this call" in result["too early"]


def test_the_profiler_writes_a_chrome_trace_for_each_rank(ran: Ran) -> None:
    for rank in range(2):
        events = json.loads((ran.folder / f"trace.json.{rank}").read_text())["traceEvents"]

        names = [event["name"] for event in events]
        assert sorted(names) == ["allgather", "allreduce", "allreduce", "alltoall_base", "broadcast"]
        assert {(event["ph"], event["pid"]) for event in events} == {("X", rank)}
        assert all(event["dur"] >= 1 and event["args"]["bytes"] > 0 for event in events)


def test_rank_0_says_what_ran_in_one_line_and_names_what_it_ignores(ran: Ran) -> None:
    first, second = ran.stderr

    notes = [line for line in first.splitlines() if line.startswith("[toolkit] smddp: ")]
    ignored, line = notes[0], notes[-1]
    assert ignored.endswith("ignored, they are for AWS's own library: SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES")
    assert "2 ranks; all-reduce: " in line
    assert line.endswith("(max/mean 1.00)")
    assert sum("2 ranks; " in line for line in notes) == 1
    assert "[toolkit]" not in second
    assert "Warning" not in second


def test_arrays_of_tensorflows_half_go_the_same_way_under_torchrun(ran: Ran) -> None:
    for result in ran.said:
        assert result["arrays"] == ["GlooTransport", [3, 3, 3], [1, 1]]


def test_tensorflows_half_shuts_down_without_a_rank_that_is_gone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os; from toolkit.rank.dataparallel.tf.api import Library; library = Library(); library.init()\n"
        "if library.rank(): os._exit(0)\n"
        "library.shutdown(); print('goes on')\n"
    )

    assert ended(ranks(program, environ={}))[0][0] == "goes on\n"


def test_a_collective_returns_though_gloo_still_releases_the_one_before_it() -> None:
    for out, _ in ended(ranks(PROGRAMS / "queues_collectives.py", environ={"PYTHONPATH": f"{HOOK}:{ROOT}"})):
        result = json.loads(out)

        assert len(result["returned"]) == 10
        assert result["overrides of torch"] >= 10
        assert result["without ours"] == []  # torch calls these with the GIL taken.


def test_each_function_of_the_module_form_gives_what_torchs_gives() -> None:
    for out, _ in ended(ranks(PROGRAMS / "compares_old_collectives.py", environ={}, size=3)):
        result = json.loads(out.splitlines()[-1])

        assert result["different"] == []
        assert result["compared"] > 1_800
        assert len(result["refused"]) == 6
        assert all("expected" in text and "got" in text for text in result["refused"])
