"""Partitions that form a chain, seen from a user's script."""

import json
import signal
from pathlib import Path

import msgspec
import pytest

from tests.forking import Fork
from tests.rank.modelparallel.started import PROGRAMS, smp_ranks
from toolkit.parallelism.timeline import FOLDER, PREFIX, RankStep

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def left(processes: list[Fork]) -> tuple[list[int], list[str]]:
    """Return the exit codes and what each said on stdout, and on stderr where it failed before its last line."""
    try:
        streams = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [process.wait() for process in processes], [out or err for out, err in streams]


@pytest.mark.parametrize(
    ("partitions", "runs"),
    [(2, [["interleaved", 1], ["simple", 2]]), (4, [["interleaved", 2], ["interleaved", 16], ["simple", 4]])],
)
def test_a_chain_has_one_processs_gradients_losses_and_random_numbers_and_ends_with_a_rank_that_dies(
    partitions: int, runs: list[list[object]], tmp_path: Path
) -> None:
    started = smp_ranks(
        PROGRAMS / "smp_chain.py",
        json.dumps(runs),
        parameters={"partitions": partitions},
        size=partitions,
        folder=tmp_path,
    )

    codes, streams = left(started)

    assert codes == [-signal.SIGKILL] + [1] * (partitions - 1), streams
    died_s = json.loads(streams[0].splitlines()[-1])["at"]
    for rank, stdout in enumerate(streams):
        found, end = (json.loads(line) for line in stdout.splitlines()[-2:])
        for run in found["runs"]:
            assert run["gradients"] <= 1e-6
            assert run["losses"] <= 1e-6
            assert run["evaluation"] <= 1e-6
            # The first rank runs the user's function in the first step, the last one in the others.
            assert run["ran on"] == ([rank] if rank in (0, partitions - 1) else [])
        assert found["dropout"] == json.loads(streams[0].splitlines()[-2])["dropout"]
        for losses in found["dropout"]:
            assert all(run == pytest.approx(losses[0], rel=1e-6) for run in losses[1:])
            assert len(set(losses[0])) == len(losses[0])
        first, raises, without, twice, again = found["mistakes"]
        assert first == again == ""
        assert "ValueError: by the user" in raises
        assert "the end of the step function where a call of model.backward came" in without
        assert "a call of the model where the end of the step function came" in twice
        assert "TOOLKIT_SMP_CHAIN=off" in twice
        if rank:
            assert "PeerLost: Connection closed by peer: rank 0 (partition 0" in end["error"]
            assert end["at"] - died_s < 10
        lines = (tmp_path / FOLDER / f"{PREFIX}{rank}.jsonl").read_bytes().splitlines()
        steps = [msgspec.json.decode(line, type=RankStep) for line in lines]
        assert {step.path for step in steps} == {"server", "chain"}


def test_a_chain_that_the_script_changes_has_one_processs_losses(tmp_path: Path) -> None:
    codes, streams = left(
        smp_ranks(PROGRAMS / "smp_chain_changes.py", parameters={"partitions": 2}, size=2, folder=tmp_path)
    )

    assert codes == [0, 0], streams
    for rank, stdout in enumerate(streams):
        ran = json.loads(stdout.splitlines()[-1])
        assert {name: difference for name, difference in ran["changes"].items() if difference > 1e-9} == {}
        assert ran["arguments"] <= 1e-9
        for case, says in (("attributes", "0 sets its attribute size, which"), ("first attributes", "")):
            difference, why = ran[case]
            assert difference <= 1e-9, case
            assert rank or (says in why and bool(says) == bool(why)), case
        difference, losses = ran["modes"]
        assert (difference <= 1e-9, losses) == (True, 4)  # Dropout differs between steps of training.
        assert ran["unseen"][:2] == ["", ""]
        assert "a call of the model in other modes" in ran["unseen"][2]
        assert ran["unseen"][3] == ""
        assert "other modules, modes or hooks of the model, on this rank alone" in ran["unseen"][4], rank
    lines = (tmp_path / FOLDER / f"{PREFIX}0.jsonl").read_bytes().splitlines()
    paths = [msgspec.json.decode(line, type=RankStep).path for line in lines]
    assert paths.count("chain") > 20  # Also after changes.
