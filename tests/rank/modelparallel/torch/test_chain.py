"""Partitions that form a chain, seen from a user's script."""

import json
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.forking import Fork
from tests.rank.modelparallel.started import PROGRAMS, has_chains, reports, smp_ranks
from toolkit.parallelism.timeline import FOLDER, PREFIX, RankStep

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not has_chains(), reason="its pipeline stages have another form; the module server runs chains"),
]

RUNS: dict[int, list[list[object]]] = {
    2: [["interleaved", 1], ["simple", 2]],
    4: [["interleaved", 2], ["interleaved", 16], ["simple", 4]],
}


class Chain:
    """The output of smp_chain.py as *partitions* ranks: `reports` before the first rank died, `ends` afterwards."""

    def __init__(self, partitions: int, folder: Path) -> None:
        runs = json.dumps(RUNS[partitions])
        self.partitions = partitions
        self.folder = folder
        started = smp_ranks(
            PROGRAMS / "smp_chain.py", runs, parameters={"partitions": partitions}, size=partitions, folder=folder
        )
        self.codes, streams = outcome(started)
        lines = [[json.loads(line) for line in stdout.splitlines()[-2:]] for stdout in streams]
        self.reports: list[dict[str, Any]] = [report for report, _ in lines]
        self.ends: list[dict[str, Any]] = [end for _, end in lines]


def outcome(processes: list[Fork]) -> tuple[list[int], list[str]]:
    """Return the exit codes and what each said on stdout, and on stderr where it failed before its last line."""
    try:
        streams = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [process.wait() for process in processes], [out or err for out, err in streams]


def recorded_paths(folder: Path, rank: int) -> list[str]:
    """Return the path of each recorded step of *rank*."""
    lines = (folder / FOLDER / f"{PREFIX}{rank}.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=RankStep).path for line in lines]


@pytest.fixture(scope="module", params=RUNS, ids="{} partitions".format)
def chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(request.param, tmp_path_factory.mktemp("chain"))


@pytest.mark.parametrize("number", ["gradients", "losses", "evaluation"])
def test_a_chain_has_one_processs_numbers(chain: Chain, number: str) -> None:
    errors = [run[number] for report in chain.reports for run in report["runs"]]

    assert len(errors) == chain.partitions * len(RUNS[chain.partitions])
    assert max(errors) <= 1e-6


def test_the_first_rank_runs_the_users_function_in_the_first_step_and_the_last_one_in_the_others(chain: Chain) -> None:
    ends = (0, chain.partitions - 1)

    for rank, report in enumerate(chain.reports):
        assert [run["ran on"] for run in report["runs"]] == [[rank] if rank in ends else []] * len(report["runs"])


def test_random_numbers_depend_on_the_seed_alone(chain: Chain) -> None:
    for report in chain.reports:
        assert report["dropout"] == chain.reports[0]["dropout"]
    for losses in chain.reports[0]["dropout"]:
        assert all(run == pytest.approx(losses[0], rel=1e-6) for run in losses[1:])
        assert len(set(losses[0])) == len(losses[0])


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, ["ValueError: by the user"]),
        (2, ["the end of the step function where a call of model.backward came"]),
        (3, ["a call of the model where the end of the step function came", "TOOLKIT_SMP_CHAIN=off"]),
    ],
    ids=["raises", "without backward", "calls the model twice"],
)
def test_a_step_that_does_something_else_is_an_error_on_all_ranks(chain: Chain, number: int, words: list[str]) -> None:
    for report in chain.reports:
        for word in words:
            assert word in report["mistakes"][number]


def test_a_step_after_one_that_failed_works(chain: Chain) -> None:
    assert [(report["mistakes"][0], report["mistakes"][-1]) for report in chain.reports] == [
        ("", "")
    ] * chain.partitions


def test_the_others_end_soon_after_a_rank_was_killed(chain: Chain) -> None:
    died_s = chain.ends[0]["at"]

    assert chain.codes == [-signal.SIGKILL] + [1] * (chain.partitions - 1)
    for end in chain.ends[1:]:
        assert "PeerLost: Connection closed by peer: rank 0 (partition 0" in end["error"]
        assert end["at"] - died_s < 10


def test_the_timeline_names_the_path_of_each_step(chain: Chain) -> None:
    for rank in range(chain.partitions):
        assert set(recorded_paths(chain.folder, rank)) == {"server", "chain"}


class Changes:
    """The output of smp_chain_changes.py as two ranks."""

    def __init__(self, folder: Path) -> None:
        program = PROGRAMS / "smp_chain_changes.py"
        self.folder = folder
        self.reports: list[dict[str, Any]] = reports(program, parameters={"partitions": 2}, size=2, folder=folder)


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> Changes:
    return Changes(tmp_path_factory.mktemp("changes"))


def test_a_chain_that_the_script_changes_has_one_processs_losses(changes: Changes) -> None:
    for report in changes.reports:
        assert len(report["changes"]) == 11
        assert {name: error for name, error in report["changes"].items() if not error <= 1e-9} == {}


def test_plain_arguments_may_select_what_the_step_does(changes: Changes) -> None:
    assert max(report["arguments"] for report in changes.reports) <= 1e-9


@pytest.mark.parametrize(
    ("case", "why"), [("attributes", "0 sets its attribute size, which"), ("first attributes", "")]
)
def test_a_step_that_reads_what_a_module_keeps_is_right(changes: Changes, case: str, why: str) -> None:
    """The first partition says why it leaves the chain, if it does."""
    first = changes.reports[0][case][1]

    assert max(report[case][0] for report in changes.reports) <= 1e-9
    assert why in first and bool(why) == bool(first)


def test_a_step_may_set_the_models_mode(changes: Changes) -> None:
    for report in changes.reports:
        error, different_losses = report["modes"]
        assert error <= 1e-9
        assert different_losses == 4  # Dropout differs between steps of training.


def test_a_change_that_one_rank_alone_sees_is_refused_and_one_that_all_see_is_not(changes: Changes) -> None:
    for report in changes.reports:
        assert [report["unseen"][number] for number in (0, 1, 3)] == ["", "", ""]
        assert "a call of the model in other modes" in report["unseen"][2]
        assert "other modules, modes or hooks of the model, on this rank alone" in report["unseen"][4]


def test_steps_go_along_the_chain_also_after_changes(changes: Changes) -> None:
    assert recorded_paths(changes.folder, 0).count("chain") > 20
