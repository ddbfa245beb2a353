"""The numbers of a partitioned model in float64, beside plain torch's."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rank.modelparallel.started import PROGRAMS, ended, smp_ranks

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

EXACT = 1e-9
CHANGES = (
    "scaled",
    "scaled without a graph",
    "scaled, without a gradient",
    "scaled under no_grad",
    "gets a gradient",
    "returned",
    "returned as it is",
    "a row",
    "a view",
    "stays there",
    "in containers",
    "containers",
    "a buffer",
    "in inference mode",
    "overlapping not",
)
FIRST_STEPS = ("detached", "second", "several", "keeps")
SEPARABLE = (
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ASGD",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)
CAUGHT = ["KeyError: 'k'", "ValueError: v", "FileNotFoundError: [Errno 2] no file: 'x'", "Own: o", "Local: 'u'"]


def _said(folder: Path, *cases: str, **more: Any) -> list[dict[str, Any]]:
    parameters = {"partitions": 2, **more}
    ranks = smp_ranks(PROGRAMS / "smp_numbers.py", *cases, parameters=parameters, size=2, folder=folder)
    return [json.loads(out.splitlines()[-1]) for out, _ in ended(ranks)]


def test_what_a_module_of_another_partition_changes_in_place_or_raises_reaches_its_caller(tmp_path: Path) -> None:
    exact = [
        *(f"{where}: {case}" for where in ("near", "far") for case in CHANGES),
        *(f"first: {case}" for case in FIRST_STEPS),
        "changes_and_fails",
    ]
    refused = {
        "near: overlapping": "found its argument x changed: it shares memory with the argument more",
        "far: reshaped": "found its argument x changed: from the shape (1, 6, 6) to (6, 6)",
        "catches: keys key value": "ValueError: v",
    }
    caught = "catches: all key value os two_arguments not_to_pickle"

    reports = _said(tmp_path, *exact, *refused, caught, "first: evaluation", "chain", "clips: by_name", "clips: total")

    for rank in reports:
        assert {case: rank[case] for case in exact if not (isinstance(rank[case], float) and rank[case] < EXACT)} == {}
    for case, text in refused.items():
        assert text in reports[0][case]
    assert reports[1]["catches: keys key value"] == "ValueError: v"  # Where it was raised.
    for rank in reports:
        error, names = rank[caught]
        assert error < EXACT
        assert names == (CAUGHT * 2 if rank is reports[0] else [])
        error, plans, why = rank["chain"]
        assert (error < EXACT, plans, why) == (True, 1, "")
    error, late = reports[0]["first: evaluation"]
    assert error < EXACT
    assert "keep no output of the first call of the step function" in late
    for case, name in (("by_name", "clip_grad_norm_"), ("total", "get_total_norm")):
        before, after = reports[0][f"clips: {case}"]
        assert before == ""
        assert after.count("\n") == 1
        assert f"torch.nn.utils.{name} takes the norm of one rank's gradients" in after
        assert reports[1][f"clips: {case}"] == ["", ""]


def test_every_optimizer_keeps_its_types_and_state_and_takes_more_groups(tmp_path: Path) -> None:
    exact = [
        *(f"optimizers: {name} float64" for name in SEPARABLE),
        *(f"optimizers: {name} bfloat16" for name in ("Adagrad", "Adam", "Adafactor")),
        "optimizers: Adam float64 0.1",
        *(f"groups: {when}" for when in ("before", "before-wrapped", "after", "after-wrapped")),
    ]

    reports = _said(tmp_path, *exact, "optimizers: LBFGS float64")

    for rank in reports:
        assert {case: rank[case] for case in exact if not (isinstance(rank[case], float) and rank[case] < EXACT)} == {}
        assert (
            "expected an optimizer that updates each parameter by itself, found LBFGS"
            in (rank["optimizers: LBFGS float64"])
        )


def test_a_module_of_another_partition_gives_its_numbers_and_names_attributes_that_stay_there(tmp_path: Path) -> None:
    stays = {"tensor": "loss", "tensor_first": "loss", "list": "inner.losses", "truth": "loss", "equality": "shape"}

    reports = _said(tmp_path, "lazy", "attributes: number", *(f"attributes: {which}" for which in stays))

    for rank in reports:
        error, refused = rank["lazy"]
        assert error < EXACT
        assert "found those of lazy modules without: ['far.weight', 'far.bias']" in refused
        assert rank["attributes: number"] < EXACT
    for which, name in stays.items():
        path, _, attribute = f"far.{name}".rpartition(".")
        text = f"module {path} of partition 1 returns, found a use of its attribute {attribute}, which its forward pass"
        assert text in reports[0][f"attributes: {which}"]
        assert text in reports[1][f"attributes: {which}"]


LATER = (
    "replaces_far",
    "replaces_a_part",
    "appends",
    "replaces_near",
    "wraps",
    "replaces_a_parameter",
    "ties",
    "copies",
    "unfreezes",
    "ties_new_ones",
)


def test_what_the_script_adds_to_a_partitioned_model_has_a_partition_and_is_in_the_whole_state(tmp_path: Path) -> None:
    exact = [f"later: {how}" for how in LATER]

    alone = [f"alone: {rank}" for rank in (0, 1)]

    reports = _said(tmp_path, *exact, *alone)

    for rank in reports:
        assert {case: rank[case] for case in exact if not (isinstance(rank[case], float) and rank[case] < EXACT)} == {}
        for case in alone:
            first, *refused, last = rank[case]
            assert (first, last) == ("", ""), case
            assert all("came on one of the ranks 0 and 1 alone: far.0. Make" in text for text in refused), case


def test_replicas_share_what_the_script_adds_unfreezes_and_puts_into_buffers(tmp_path: Path) -> None:
    hows = ("replaces_far", "appends", "replaces_a_parameter", "unfreezes", "unfreezes_near")
    exact = [f"replicas: {how}" for how in hows]

    reports = _said(tmp_path, *exact, "replicas: moves", partitions=1)

    for rank in reports:
        assert {case: rank[case] for case in exact if not (isinstance(rank[case], float) and rank[case] < EXACT)} == {}
    assert reports[0]["replicas: moves"] == reports[1]["replicas: moves"]


@pytest.mark.parametrize(("leaves", "says"), [(1, "smp.barrier()"), (0, "smp.barrier()")])
def test_a_rank_that_leaves_the_loop_while_another_is_in_a_step_is_named(
    tmp_path: Path, leaves: int, says: str
) -> None:
    case = f"leaves: {leaves}-barrier"
    ranks = smp_ranks(PROGRAMS / "smp_numbers.py", case, parameters={"partitions": 2}, size=2, folder=tmp_path)
    try:
        streams = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()

    # The program catches what is said; the other rank then fails, or both do.
    assert any(rank.returncode for rank in ranks)
    doing = {leaves: "in smp.barrier()", 1 - leaves: "in a step"}
    # Partition 1 sees it: that of partition 0 sends it what it does.
    assert f"found rank 1 {doing[1]} and rank 0 {doing[0]}: they wait for each other" in streams[1][1]
