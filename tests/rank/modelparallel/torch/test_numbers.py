"""The numbers of a partitioned model in float64, beside plain torch's."""

from pathlib import Path
from typing import Any

import pytest

from tests.rank.modelparallel.started import PROGRAMS, has_chains, reports, smp_ranks

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

EXACT = 1e-9
NOTHING = [pytest.approx(0.0, abs=EXACT)] * 2  # The errors of two ranks.
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


EXACT_CASES = (
    *(f"{where}: {case}" for where in ("near", "far") for case in CHANGES),
    *(f"first: {case}" for case in FIRST_STEPS),
    "changes_and_fails",
)
REFUSED = {
    "near: overlapping": "found its argument x changed: it shares memory with the argument more",
    "far: reshaped": "found its argument x changed: from the shape (1, 6, 6) to (6, 6)",
    "catches: keys key value": "ValueError: v",
}
CATCHES = "catches: all key value os two_arguments not_to_pickle"
OPTIMIZERS = (
    *(f"optimizers: {name} float64" for name in SEPARABLE),
    *(f"optimizers: {name} bfloat16" for name in ("Adagrad", "Adam", "Adafactor")),
    "optimizers: Adam float64 0.1",
    *(f"groups: {when}" for when in ("before", "before-wrapped", "after", "after-wrapped")),
)
STAYS = {"tensor": "loss", "tensor_first": "loss", "list": "inner.losses", "truth": "loss", "equality": "shape"}
LATER = tuple(
    f"later: {how}"
    for how in (
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
)
OF_REPLICAS = tuple(
    f"replicas: {how}" for how in ("replaces_far", "appends", "replaces_a_parameter", "unfreezes", "unfreezes_near")
)
Reports = list[dict[str, Any]]


def run(folder: Path, *cases: str, **more: Any) -> Reports:
    """Return what each of two ranks of smp_numbers.py measured in *cases*."""
    parameters = {"partitions": 2, **more}
    return reports(PROGRAMS / "smp_numbers.py", *cases, parameters=parameters, size=2, folder=folder)


@pytest.fixture(scope="module")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Two partitions, in all cases but those of replicas."""
    cases = (
        *EXACT_CASES,
        *REFUSED,
        CATCHES,
        "first: evaluation",
        "chain",
        "clips: by_name",
        "clips: total",
        *OPTIMIZERS,
        "optimizers: LBFGS float64",
        "lazy",
        "attributes: number",
        *(f"attributes: {which}" for which in STAYS),
        *LATER,
        "alone: 0",
        "alone: 1",
    )
    return run(tmp_path_factory.mktemp("partitions"), *cases)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Two replicas of one partition."""
    return run(tmp_path_factory.mktemp("replicas"), *OF_REPLICAS, "replicas: moves", partitions=1)


@pytest.mark.parametrize("case", EXACT_CASES)
def test_what_a_module_of_another_partition_changes_in_place_reaches_its_caller(partitions: Reports, case: str) -> None:
    assert [report[case] for report in partitions] == NOTHING


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_carried_back_is_refused(partitions: Reports, case: str) -> None:
    assert REFUSED[case] in partitions[0][case]


def test_an_exception_is_raised_in_its_caller_and_where_it_was_raised(partitions: Reports) -> None:
    first, second = partitions

    assert [report[CATCHES][0] < EXACT for report in partitions] == [True, True]
    assert [report[CATCHES][1] for report in partitions] == [CAUGHT * 2, []]
    assert first["catches: keys key value"] != second["catches: keys key value"] == "ValueError: v"


def test_a_chain_plans_once(partitions: Reports) -> None:
    for report in partitions:
        error, plans, why = report["chain"]
        assert error < EXACT
        if has_chains():
            assert (plans, why) == (1, "")
        else:
            assert plans == 0 and why.endswith("is too old for chains")


def test_an_output_of_the_first_step_cannot_be_kept(partitions: Reports) -> None:
    error, late = partitions[0]["first: evaluation"]

    assert error < EXACT
    assert "keep no output of the first call of the step function" in late


@pytest.mark.parametrize(("case", "name"), [("by_name", "clip_grad_norm_"), ("total", "get_total_norm")])
def test_the_first_rank_warns_once_of_the_norm_of_one_ranks_gradients(
    partitions: Reports, case: str, name: str
) -> None:
    before, after = partitions[0][f"clips: {case}"]

    assert before == ""
    assert after.count("\n") == 1
    assert f"torch.nn.utils.{name} takes the norm of one rank's gradients" in after
    assert partitions[1][f"clips: {case}"] == ["", ""]


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_every_optimizer_keeps_its_types_and_state_and_takes_more_groups(partitions: Reports, case: str) -> None:
    assert [report[case] for report in partitions] == NOTHING


def test_an_optimizer_that_does_not_update_each_parameter_by_itself_is_refused(partitions: Reports) -> None:
    message = "expected an optimizer that updates each parameter by itself, found LBFGS"

    assert all(message in report["optimizers: LBFGS float64"] for report in partitions)


def test_a_lazy_module_of_another_partition_gives_its_numbers_once_it_has_parameters(partitions: Reports) -> None:
    for report in partitions:
        error, refused = report["lazy"]
        assert error < EXACT
        assert "found those of lazy modules without: ['far.weight', 'far.bias']" in refused


def test_a_module_of_another_partition_gives_its_numbers(partitions: Reports) -> None:
    assert [report["attributes: number"] for report in partitions] == NOTHING


@pytest.mark.parametrize("which", STAYS)
def test_an_attribute_that_stays_on_another_partition_is_named(partitions: Reports, which: str) -> None:
    path, _, attribute = f"far.{STAYS[which]}".rpartition(".")
    message = f"module {path} of partition 1 returns, found a use of its attribute {attribute}, which its forward pass"

    assert all(message in report[f"attributes: {which}"] for report in partitions)


@pytest.mark.parametrize("case", LATER)
def test_what_the_script_adds_to_a_partitioned_model_has_a_partition_and_is_in_the_whole_state(
    partitions: Reports, case: str
) -> None:
    assert [report[case] for report in partitions] == NOTHING


@pytest.mark.parametrize("alone", [0, 1])
def test_what_one_rank_alone_adds_is_refused_until_it_is_gone(partitions: Reports, alone: int) -> None:
    for report in partitions:
        first, *refused, last = report[f"alone: {alone}"]
        assert (first, last) == ("", "")
        assert all("came on one of the ranks 0 and 1 alone: far.0. Make" in text for text in refused)
        assert len(refused) > 0


@pytest.mark.parametrize("case", OF_REPLICAS)
def test_replicas_share_what_the_script_adds_unfreezes_and_puts_into_buffers(replicas: Reports, case: str) -> None:
    assert [report[case] for report in replicas] == NOTHING


def test_replicas_move_alike(replicas: Reports) -> None:
    assert replicas[0]["replicas: moves"] == replicas[1]["replicas: moves"]


@pytest.mark.parametrize("leaves", [1, 0])
def test_a_rank_that_leaves_the_loop_while_another_is_in_a_step_is_named(tmp_path: Path, leaves: int) -> None:
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
