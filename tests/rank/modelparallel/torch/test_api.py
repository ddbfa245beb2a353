"""smp.init and what ranks know of their place, from outside: real ranks."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.forking import Fork
from tests.rank.modelparallel.started import PROGRAMS, ended, smp_ranks
from toolkit.train.launchers.compat import FOLDER
from toolkit.train.launchers.environment import HOOK

pytestmark = pytest.mark.torch
PROGRAM = PROGRAMS / "smp_positions.py"
KINDS = ("pp", "tp", "rdp", "mp", "dp")


PAIRS = {"pp": [[0, 2], [1, 3]], "rdp": [[0, 1], [2, 3]]}
PAIRS |= {"mp": PAIRS["pp"], "dp": PAIRS["rdp"]}


def groups_of(rank: int) -> dict[str, list[int]]:
    """Return the ranks of each group of *rank*, by kind."""
    pairs = {kind: next(pair for pair in PAIRS[kind] if rank in pair) for kind in PAIRS}
    return {**pairs, "tp": [rank]}


class Positions(NamedTuple):
    """Four ranks of two partitions: what they said of their place, and wrote to stderr."""

    reports: list[dict[str, Any]]
    stderr: list[str]


@pytest.fixture(scope="module")
def positions(tmp_path_factory: pytest.TempPathFactory) -> Positions:
    parameters = {"partitions": 2, "placement_strategy": "spread", "ddp": True}
    streams = ended(smp_ranks(PROGRAM, parameters=parameters, size=4, folder=tmp_path_factory.mktemp("positions")))
    return Positions([json.loads(stdout) for stdout, _ in streams], [stderr for _, stderr in streams])


def test_the_first_rank_says_that_the_jobs_parameters_hold_before_the_scripts(positions: Positions) -> None:
    note = (
        "the job's mp_parameters hold before those of smp.init(config): placement_strategy 'spread' (the script has "
        "'cluster'), partitions 2 (the script has 8)\n"
    )

    assert [stderr.count(note) for stderr in positions.stderr] == [1, 0, 0, 0]
    assert [report["cfg"] for report in positions.reports] == [[2, 2, 3]] * 4


def test_a_call_before_init_is_refused(positions: Positions) -> None:
    for report in positions.reports:
        assert report["early"] == "This call needs the ranks' connections: call smp.init() first"
        assert report["initialized"] == [False, True]


def test_a_second_init_with_other_parameters_is_refused(positions: Positions) -> None:
    message = "smp.init() was called before with other parameters: call it once"

    assert [report["wrong"][3] for report in positions.reports] == [message] * 4


def test_the_version_is_that_of_awss_library(positions: Positions) -> None:
    assert {report["version"] for report in positions.reports} == {"1.15.0"}


def test_ranks_know_their_numbers_and_groups(positions: Positions) -> None:
    for rank, report in enumerate(positions.reports):
        groups = groups_of(rank)
        assert report["rank"] == [rank, 4, rank, 4]
        assert report["groups"] == groups
        assert report["numbers"] == {kind: [groups[kind].index(rank), len(groups[kind])] for kind in KINDS}


def test_the_process_groups_of_torch_have_the_same_ranks(positions: Positions) -> None:
    for rank, report in enumerate(positions.reports):
        assert report["sums"] == {kind: sum(ranks) for kind, ranks in groups_of(rank).items()} | {"world": 6}


def test_an_object_with_a_tensor_is_sent_to_a_rank_of_a_group(positions: Positions) -> None:
    for rank, report in enumerate(positions.reports):
        (peer,) = set(groups_of(rank)["pp"]) - {rank}
        assert report["ring"] == [peer, [peer, peer + 1, peer + 2]]


def test_objects_are_gathered_in_each_group_and_broadcast_to_all(positions: Positions) -> None:
    for rank, report in enumerate(positions.reports):
        groups = groups_of(rank)
        gathered = {f"{kind.upper()}_GROUP": groups[kind] for kind in KINDS}
        assert report["gathered"] == {**gathered, "WORLD": [0, 1, 2, 3]}
        assert report["broadcast"] == ["from two"]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "expected a PP_RANK from 0 to 1, found 2"),
        (1, "expected one of smp.RankType for rank_type, found 'PP_RANK'"),
        (2, "expected one of smp.CommGroup for group, found 'world'"),
    ],
)
def test_a_rank_or_group_that_is_not_there_is_named(positions: Positions, number: int, message: str) -> None:
    assert [report["wrong"][number] for report in positions.reports] == [message] * 4


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (
            '{"partitons": 2}',
            "SM_HP_MP_PARAMETERS: expected a parameter of the model parallel library, found 'partitons'",
        ),
        (
            '{"partitions": 2}',
            "expected a number of ranks that 2 divides (partitions 2 x tensor_parallel_degree 1), found 3",
        ),
        ("[2]", "SM_HP_MP_PARAMETERS: expected a JSON object, found '[2]'"),
        ("", "expected partitions (or pipeline_parallel_degree), the number of parts of the model, found neither"),
    ],
)
def test_wrong_parameters_end_a_rank_before_it_waits_for_others(tmp_path: Path, parameters: str, expected: str) -> None:
    program = tmp_path / "program.py"
    program.write_text("import smdistributed.modelparallel.torch as smp; smp.init()")
    environ = {"RANK": "0", "WORLD_SIZE": "3", "SM_HP_MP_PARAMETERS": parameters}
    compat_environ = {"PYTHONPATH": str(HOOK), "TOOLKIT_COMPAT_PATH": str(FOLDER / "smp"), "PATH": os.environ["PATH"]}

    process = Fork(program, environ=compat_environ | environ)
    _, stderr = process.communicate(timeout=300)

    assert process.wait() == 1
    assert expected in stderr
