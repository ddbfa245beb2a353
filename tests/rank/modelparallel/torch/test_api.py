"""smp.init and what ranks know of their place, from outside: real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rank.modelparallel.started import PROGRAMS, ended, smp_ranks
from toolkit.train.launchers.compat import FOLDER
from toolkit.train.launchers.environment import HOOK

pytestmark = pytest.mark.torch
PROGRAM = PROGRAMS / "smp_positions.py"
KINDS = ("pp", "tp", "rdp", "mp", "dp")


def test_four_ranks_know_their_numbers_and_groups_and_exchange_objects(tmp_path: Path) -> None:
    started = smp_ranks(
        PROGRAM, parameters={"partitions": 2, "placement_strategy": "spread", "ddp": True}, size=4, folder=tmp_path
    )
    streams = ended(started)
    reports = [json.loads(stdout) for stdout, _ in streams]

    note = (
        "the job's mp_parameters hold before those of smp.init(config): placement_strategy 'spread' (the script has "
        "'cluster'), partitions 2 (the script has 8)\n"
    )
    assert [stderr.count(note) for _, stderr in streams] == [1, 0, 0, 0]
    pairs = {"pp": [[0, 2], [1, 3]], "rdp": [[0, 1], [2, 3]]}
    pairs |= {"mp": pairs["pp"], "dp": pairs["rdp"]}
    for rank, report in enumerate(reports):
        groups = {kind: next(pair for pair in rank_groups if rank in pair) for kind, rank_groups in pairs.items()} | {
            "tp": [rank]
        }
        assert report["early"] == "This call needs the ranks' connections: call smp.init() first"
        assert report["initialized"] == [False, True]
        assert report["version"] == "1.15.0"
        assert report["cfg"] == [2, 2, 3]
        assert report["rank"] == [rank, 4, rank, 4]
        assert report["groups"] == groups
        assert report["numbers"] == {kind: [groups[kind].index(rank), len(groups[kind])] for kind in KINDS}
        assert report["sums"] == {kind: sum(groups[kind]) for kind in KINDS} | {"world": 6}
        peer = groups["pp"][1 - groups["pp"].index(rank)]
        assert report["ring"] == [peer, [peer, peer + 1, peer + 2]]
        assert report["gathered"] == {f"{kind.upper()}_GROUP": groups[kind] for kind in KINDS} | {"WORLD": [0, 1, 2, 3]}
        assert report["broadcast"] == ["from two"]
        assert report["wrong"] == [
            "expected a PP_RANK from 0 to 1, found 2",
            "expected one of smp.RankType for rank_type, found 'PP_RANK'",
            "expected one of smp.CommGroup for group, found 'world'",
            "smp.init() was called before with other parameters: call it once",
        ]


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
def test_wrong_parameters_end_a_rank_before_it_waits_for_others(parameters: str, expected: str) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "3", "SM_HP_MP_PARAMETERS": parameters}
    compat_environ = {"PYTHONPATH": str(HOOK), "TOOLKIT_COMPAT_PATH": str(FOLDER / "smp"), "PATH": os.environ["PATH"]}
    code = "import smdistributed.modelparallel.torch as smp; smp.init()"

    process = subprocess.run(
        [sys.executable, "-c", code], env=compat_environ | environ, capture_output=True, text=True, timeout=300
    )

    assert process.returncode == 1
    assert expected in process.stderr
