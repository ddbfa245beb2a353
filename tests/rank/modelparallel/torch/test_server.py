"""The module server: calls of modules on other partitions, seen from a user's script."""

import json
from pathlib import Path

import pytest

from tests.rank.modelparallel.started import PROGRAMS, ended, smp_ranks

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RUNS = [(pipeline, count, far) for pipeline in ("interleaved", "simple") for count in (1, 4, 16) for far in (0, 1)]


def test_nested_branching_reused_and_tied_modules_have_one_processs_gradients_and_losses(tmp_path: Path) -> None:
    streams = ended(
        smp_ranks(PROGRAMS / "smp_server.py", json.dumps(RUNS), parameters={"partitions": 3}, size=3, folder=tmp_path)
    )

    ranks = [json.loads(stdout.splitlines()[-1]) for stdout, _ in streams]
    names: list[str] = []
    for rank in ranks:
        for run in rank:
            assert run["gradients"] <= 1e-6
            assert run["losses"] <= 1e-6
            assert run["evaluation"] <= 1e-6
            assert run["whole"]
        names += rank[0]["parameters"]
    # No rank holds what is another's: each parameter is once somewhere, the tied one with the first of its modules.
    assert len(names) == len(set(names)) == 18
    assert "words.weight" in ranks[0][0]["parameters"]
    # Embedding 12 x 8, Inner 2 x (8 x 8 + 8), BatchNorm 16, the gain 8; left.inner is on partition 0, right on 1.
    assert [rank[0]["bytes"] for rank in ranks] == [4 * (96 + 144 + 8), 4 * (144 + 144 + 16), 4 * 16]


def test_a_step_names_its_errors_and_the_next_one_works_until_a_rank_dies(tmp_path: Path) -> None:
    parameters = {"partitions": 3, "microbatches": 4, "auto_partition": False, "default_partition": 0}
    parameters["active_microbatches"] = 2

    ranks = smp_ranks(PROGRAMS / "smp_steps.py", parameters=parameters, size=3, folder=tmp_path)
    try:
        streams = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for process in ranks:
            process.kill()

    assert [rank.returncode for rank in ranks] == [0, 0, -9], streams
    first, second, third = [json.loads(stdout.splitlines()[0]) for stdout, _ in streams]
    for rank in (0, 1):  # They end at once, and `train` sees that they only follow.
        dead = json.loads(streams[rank][0].splitlines()[1])
        assert "PeerLost: Connection closed by peer: rank 2" in dead["dead"]
        assert dead["dead after s"] < 20
    for report in (first, second, third):
        assert "of another partition: use model.local_parameters()" in report["norm"]
        assert "DistributedModel.local_named_parameters after the model is partitioned" in report["early"][0]
        for text in (*report["outside"], report["early"][1]):
            assert "to be called inside a function with @smp.step, found a call outside of one" in text
        assert len(report["first"]) == 4
        assert report["again"] == report["first"]
        assert "one DistributedModel in this process, found a second" in report["second"]
        assert 'expected trace_device "gpu" or "cpu", found \'tpu\'' in report["keyword"]
        assert report["modes"][0] == "[True, True, True, True]"
        assert report["modes"][1] == report["modes"][2] == "[False, False, False, False]"
        assert report["modes"][3] == str(["torch.bfloat16"] * 4).replace("'", "")
        assert report["modes"][4] == "[False, False, False, False]"
        assert report["modes"][5] == "[True, True, True, True]"
        assert report["modes"][7] == str(["torch.float32"] * 4).replace("'", "")
        assert report["drops"][0] == report["drops"][1]
        assert len(set(report["drops"][0])) == 4
        # The script's own random numbers are the same everywhere, whatever the step drew where.
        assert [report["next"], report["next but one"]] == [first["next"], first["next but one"]]
        assert report["untraced"][0].endswith("ValueError: too early")
        assert report["untraced"][1] == "no error"
        assert report["hooked"] == [True]
        assert report["assignment"] == {
            "": 0,
            "first": 0,
            "second": 1,
            "second.linear": 1,
            "second.inner": 2,
            "second.inner.linear": 2,
        }
        assert report["state"][0] == sorted(
            ["seen", "first.weight", "first.bias"]
            + [f"second.{path}linear.{kind}" for path in ("", "inner.") for kind in ("weight", "bias")]
        )
        assert report["state"][1]
        assert report["restored"]
        assert report["names"]
        assert report["of the module"]
        assert "with the unknown ['unknown']" in report["strict"]
    # The rank at fault says what happened there, the others who it was.
    assert "found 7 along axis 0 of argument x" in first["batch"]
    assert second["batch"].startswith("RemoteStepError: the step failed on rank 0: SMPError")
    assert first["module raises"].startswith(
        "RemoteStepError: module second.inner (Part) failed on partition 2 (rank 2): KeyE"
    )
    assert second["module raises"].startswith(
        "RemoteStepError: module second.inner (Part) failed on partition 2 (rank 2)"
    )
    assert third["module raises"] == "KeyError: 'no such thing on partition 2'"
    assert (
        "expected model.backward(loss) in a function with @smp.step, found loss.backward()" in first["plain backward"]
    )
    assert "expected a loss of one element, or grad_tensors, found the shape (2, 4)" in first["no loss"]
    assert "found linear with second.linear.weight of another partition" in first["foreign weight"]
    assert "found one called inside another" in first["nested"]
    assert first["raise"] == "ValueError: the script is at fault"
    assert second["raise"] == "RemoteStepError: the step failed on rank 0: ValueError: the script is at fault"
    assert first["most"] == 2
    assert first["attached"]
    assert not second["attached"]
    assert first["gathered"] == first["state"][0]
    assert second["gathered"] == []
    assert second["partial"] == ["_smp_is_partial", "second.linear.bias", "second.linear.weight"]


def test_ranks_keep_one_order_where_they_must_and_send_tensors_to_their_users_alone(tmp_path: Path) -> None:
    streams = ended(smp_ranks(PROGRAMS / "smp_order.py", parameters={}, size=4, folder=tmp_path))

    ranks = [json.loads(stdout.splitlines()[-1]) for stdout, _ in streams]
    # 6 steps of 8 microbatches: partition 0 is called twice in each. Every pair met with the same microbatch.
    assert sorted(rank["met"] for rank in ranks) == [[48, 0.0], [48, 0.0], [96, 0.0], [96, 0.0]]
    first, second, third = ranks[0]["any order"]
    assert first[-1] in (0, 2)
    assert second[-1] in (1, 3)
    first, second, third = ranks[0]["one order"]
    assert first == second == third
    # Forward from 0 to 1, 1 to 2, 2 to 3, 3 to 0; backward 0 to 3, 3 to 2, 2 to 1. Partition 0 calls all blocks.
    assert [rank["tensors sent"] for rank in ranks] == [[1, 3], [2], [1, 3], [0, 2]]


# Whom partition 0 asks for a backward pass of blocks on 1, 1, 2 and 1, with two microbatches: the rank
# of the last block alone, unless the script looks at what lies between two of them.
BETWEEN = ("hook", "changing hook", "hook on the node", "retained", "past torch's functions", "used twice", "in place")
ASKS = {
    **{how: [1, 1] for how in ("plain", "two roots", "twice the same")},
    **{how: [1, 1, 1, 1] for how in BETWEEN},
    "hook behind the node": [1, 1, 1, 1, 1, 1],
    "skips": [1, 1, 2, 2],
    "anomaly": [1, 1, 1, 1, 1, 1, 2, 2],
}


def test_gradients_go_from_module_to_module_and_the_scripts_hooks_see_the_true_ones(tmp_path: Path) -> None:
    ranks = smp_ranks(
        PROGRAMS / "smp_gradient_hops.py", *ASKS, "fails", parameters={"partitions": 3}, size=3, folder=tmp_path
    )
    reports = [json.loads(stdout.splitlines()[-1]) for stdout, _ in ended(ranks)]

    for width in (8, 1024):  # Below and above the size from which tensors stay where they were made.
        for how, asks in ASKS.items():
            case_reports = [rank[f"{how}, {width}"] for rank in reports]
            assert max(report["error"] for report in case_reports) <= 1e-6, (how, width)
            assert case_reports[0]["asked"] == asks, (how, width)
            assert case_reports[0]["finite"], (how, width)
            hook_calls, error = case_reports[0]["seen"]
            assert hook_calls == (2 if how in ("hook", "hook on the node", "retained") else 0), (how, width)
            assert error <= 1e-5, (how, width)
        failed = [rank[f"fails, {width}"]["failed"] for rank in reports]
        assert failed[0].startswith("RemoteStepError: a backward pass failed on partition 2 (rank 2): KeyError: 'no gr")
        assert failed[2] == "KeyError: 'no gradient on partition 2'"


# What a script does between or with blocks on 1, 1, 2 and 1, always or once after a step without. Partition 0 asks for
# the first block of each of four microbatches alone where that changes nothing of what it asks.
UNSEEN = ("always plain", "always lays out", "once reads", "once prints", "once keeps", "once hooks", "once detaches")
WIDE = (
    "once changes it",
    "once changes its data",
    "once changes it as numpy",
    "once computes",
    "once draws",
    "once changes its argument",
    "once returns two",
    "once raises",
    "once is its argument",
    "once fails",
    "once leaves out",
    "once thaws and leaves out",
    "once calls twice",
    "once without gradients",
    "always counts",
    "once counts in a buffer",
)
SMALL = (
    "once changes a part",
    "once turns",
    "once ends early",
    "once another argument",
    "once adds another's",
    "once evaluates",
    "always draws",
    "always changes its argument",
)


def test_results_go_from_module_to_module_and_a_step_that_does_something_else_is_right(tmp_path: Path) -> None:
    arguments = json.dumps({8: (*UNSEEN, *WIDE, *SMALL), 516: (*UNSEEN[:-1], *WIDE)})
    ranks = smp_ranks(PROGRAMS / "smp_speculation.py", arguments, parameters={"partitions": 3}, size=3, folder=tmp_path)
    first, *others = [json.loads(stdout.splitlines()[-1]) for stdout, _ in ended(ranks)]

    assert [rank.pop("late") for rank in (first, *others)] == [8] * 3
    for case, report in first.items():
        how, _, _ = case.partition(",")
        assert max(report["error"], *(rank[case]["error"] for rank in others)) <= 1e-9, case
        assert report["asked"][0] == 16, case
        if how in UNSEEN:
            assert report["asked"][1:] == [4, 4], case
        if how in UNSEEN or how.startswith("always"):  # No module runs for nothing.
            assert [rank[case]["ran"] for rank in others] == [[12] * 3, [4] * 3], case
        if how == "always counts":  # A module that changes itself, and the one after it, run when they are called.
            assert report["asked"][1:] == [16, 16], case
        if how == "once counts in a buffer":  # Begins to change itself.
            assert report["asked"][2] > 4, case


def test_a_rank_ends_the_backward_pass_of_one_microbatch_before_it_begins_the_next(tmp_path: Path) -> None:
    options = json.dumps({"pad_s": 0.04, "modules": 4})
    parameters = {"partitions": 2}

    streams = ended(
        smp_ranks(PROGRAMS / "smp_bench.py", "backward_order", options, parameters=parameters, size=2, folder=tmp_path)
    )

    assert json.loads(streams[1][0]) == [number for number in range(4) for _ in range(4)]


def test_a_rank_answers_others_between_its_own_modules_and_never_inside_one(tmp_path: Path) -> None:
    streams = ended(smp_ranks(PROGRAMS / "smp_yielding.py", parameters={"partitions": 2}, size=2, folder=tmp_path))

    gives_way, deterministic = json.loads(streams[0][0].splitlines()[-1])
    first = ["one 0", "two 0", "second 0", "asks 0", "one 1", "two 1"]
    # The answer for microbatch 0 has come while "one" ran for microbatch 1.
    assert gives_way[:10] == [*first, "answered 0", "second 1", "asks 1", "answered 1"]
    assert deterministic[:10] == [*first, "second 1", "asks 1", "answered 0", "answered 1"]
    # That for the backward pass of microbatch 1 has come while "second" ran backward for microbatch 0.
    last = [f"{name}' {number}" for number in (0, 1) for name in ("asks", "second", "two", "one")]
    assert gives_way[10:] == [*last[:2], "asks' 1", *last[2:4], *last[5:]]
    assert deterministic[10:] == last


def test_the_scripts_own_python_never_runs_in_two_threads_at_once(tmp_path: Path) -> None:
    streams = ended(smp_ranks(PROGRAMS / "smp_alone.py", parameters={"partitions": 3}, size=3, folder=tmp_path))

    ranks = [json.loads(stdout.splitlines()[-1]) for stdout, _ in streams]
    # 8 microbatches, of which each calls one module on every rank. Partition 0 counts twice more in the step function,
    # and three times each in the model's forward and in its hooks.
    assert ranks == [[[1, 8 * 9]] * 3, [[1, 8]] * 3, [[1, 8]] * 3]


def test_survivors_of_a_rank_that_exits_at_once_end_by_themselves(tmp_path: Path) -> None:
    ranks = smp_ranks(PROGRAMS / "smp_exits.py", parameters={"partitions": 3}, size=3, folder=tmp_path)
    try:
        streams = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()

    assert [rank.returncode for rank in ranks] == [1, 7, 1], streams
    for _, stderr in (streams[0], streams[2]):
        assert "PeerLost: Connection closed by peer: rank 1 (partition 1" in stderr


@pytest.mark.parametrize(("computes", "seconds"), [(0, 0.5), (0, 600), (1, 600)])
def test_a_rank_that_computes_when_another_one_dies_ends_soon_and_by_its_exception(
    tmp_path: Path, computes: int, seconds: float
) -> None:
    """Half a second: the interpreter must not end while the thread is inside the autograd engine (SIGABRT). Ten
    minutes: nor must the rank wait for it."""
    program, words = PROGRAMS / "smp_unwinds.py", (str(computes), str(seconds), str(tmp_path / "begun"))
    ranks = smp_ranks(program, *words, parameters={"partitions": 2}, size=2, folder=tmp_path)
    try:
        _, stderr = ranks[computes].communicate(timeout=300)
        ranks[1 - computes].communicate(timeout=300)
    finally:
        for rank in ranks:
            rank.kill()

    assert [ranks[computes].returncode, ranks[1 - computes].returncode] == [1, 7], stderr
    assert f"PeerLost: Connection closed by peer: rank {1 - computes}" in stderr.strip().splitlines()[-1]
