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
    """What two ranks printed: a line of JSON each, and both stderrs; and the folder they wrote into."""

    said: list[dict[str, Any]]
    stderr: list[str]
    folder: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("smddp")
    ignored = {"SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES": "8192", "SMDATAPARALLEL_USE_SINGLENODE": "1"}
    said = ended(ranks(PROGRAMS / "uses_smddp.py", str(folder), environ=ignored))
    yield Ran([json.loads(out.splitlines()[-1]) for out, _ in said], [error for _, error in said], folder)


def test_every_collective_gives_what_gloo_gives(ran: Ran) -> None:
    for said in ran.said:
        assert said["backends"] == ["smddp", "gloo", True]
        assert {name for name, equal in said["collectives"].items() if not equal} == set()
        assert len(said["collectives"]) == 16
    assert ran.said[1]["group of one"] == [1, 1]


@pytest.mark.parametrize("what", ["DDP", "DDP, bucket view", "DDP, old name", "DDP, compiled", "ZeRO", "FSDP2"])
def test_weights_and_gradients_are_gloos_to_the_last_bit(ran: Ran, what: str) -> None:
    assert [said[what] for said in ran.said] == [True, True]


def test_zero_keeps_half_of_the_optimizers_state_on_each_of_two_ranks(ran: Ran) -> None:
    whole = ran.said[0]["state bytes"][1]

    assert all(0.4 < said["state bytes"][0] / whole < 0.6 for said in ran.said)


def test_the_module_form_works_and_says_that_it_is_deprecated(ran: Ran) -> None:
    for rank, said in enumerate(ran.said):
        average, later, told, many, swapped = said["old"]
        assert (average, later, told, many) == ([0.5] * 3, [0.5] * 3, 1.0, [1.0, 1.0])
        assert swapped == [float(rank), 10.0 + rank]
        assert said["numbers"] == [2, rank, rank, True]
        assert said["before"] == [True, False]
        assert said["one class"]
        assert said["no_sync"]
        (warned,) = said["warned"]
        assert warned.startswith("smdistributed.dataparallel.torch.dist is deprecated")
        assert "init_process_group() before this call" in said["too early"]


def test_the_profiler_writes_a_chrome_trace_for_each_rank(ran: Ran) -> None:
    for rank in range(2):
        events = json.loads((ran.folder / f"trace.json.{rank}").read_text())["traceEvents"]

        names = [event["name"] for event in events]
        assert sorted(names) == ["allgather", "allreduce", "allreduce", "alltoall_base", "broadcast"]
        assert {(event["ph"], event["pid"]) for event in events} == {("X", rank)}
        assert all(event["dur"] >= 1 and event["args"]["bytes"] > 0 for event in events)


def test_rank_0_says_what_ran_in_one_line_and_names_what_it_ignores(ran: Ran) -> None:
    first, second = ran.stderr

    said = [one for one in first.splitlines() if one.startswith("[toolkit] smddp: ")]
    ignored, line = said[0], said[-1]
    assert ignored.endswith("ignored, they are for AWS's own library: SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES")
    assert "2 ranks; all-reduce: " in line
    assert line.endswith("(max/mean 1.00)")
    assert sum("2 ranks; " in one for one in said) == 1
    assert "[toolkit]" not in second
    assert "Warning" not in second


def test_arrays_of_tensorflows_half_go_the_same_way_under_torchrun(ran: Ran) -> None:
    for said in ran.said:
        assert said["arrays"] == ["GlooTransport", [3, 3, 3], [1, 1]]


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
        said = json.loads(out)

        assert len(said["returned"]) == 10
        assert said["overrides of torch"] >= 10
        assert said["without ours"] == []  # torch calls these with the GIL taken.


def test_each_function_of_the_module_form_gives_what_torchs_gives() -> None:
    for out, _ in ended(ranks(PROGRAMS / "compares_old_collectives.py", environ={}, size=3)):
        said = json.loads(out.splitlines()[-1])

        assert said["different"] == []
        assert said["compared"] > 1_800
        assert len(said["refused"]) == 6
        assert all("expected" in text and "got" in text for text in said["refused"])
