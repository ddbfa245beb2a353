"""Tensor parallel models, against one process."""

import json
from typing import Any, NamedTuple

import pytest

from tests.rank.modelparallel.started import PROGRAMS, ended, smp_ranks

pytestmark = pytest.mark.torch

REFUSED = (
    "expected an argument of distributed modules, found 'fused_softmx'",
    "smp.set_tensor_parallelism: expected a module, found str",
    "expected all modules that share a parameter to be tensor parallel, or none, found 1.weight (Linear)",
    "expected no parameter of module mixer (Mixer), which a distributed module replaces, outside of it, found one in t",
    "expected at least 2 elements along axis 1 of a parameter of shape (8, 1), one for each tensor parallel rank, fo",
    "expected an embedding without max_norm for tensor parallelism, found 1.0",
    "expected Late to be registered (smp.tp_register) before the model is made, found it later",
    "expected a class of nn.Module, found <class 'dict'>",
    "expected use_alibi false, because DistributedMixer, which replaces a module, does not have it, found true",
    "expected a method reset_parameters, which gives values to the parameters of module  (Bare), found none",
    "expected equal samples on the ranks of a tensor parallel group, because prescaled_batch is true",
    "found [(4, 5)] on rank FIRST and [(6, 5)] on rank SECOND",
    "found no file model_*.pt",
)


ERRORS = (
    "gradients",
    "loss",
    "norm",
    "values after a step",
    "gradients in double precision",
    "transformer's gradients",
    "transformer's loss",
)
CLAIMS = (
    "divided parameters have their reducer",
    "all others have the default one",
    "a module that is left out is whole",
    "batches are scaled unless they are prescaled",
    "the default type is as before model_creation",
    "delay_param_initialization(False) delays nothing",
    "a registered transformer is replaced",
    "values are delayed until the model is partitioned",
    "tied weights stay tied",
    "parts of a delayed parameter differ",
    "delayed values are the same at other degrees",
    "two steps drop different elements",
    "tensor parallel ranks drop the same elements",
    "the whole state has whole masters",
)


class Job(NamedTuple):
    """The measurements of four ranks of smp_tensor.py, and their stderr."""

    reports: list[dict[str, Any]]
    stderr: list[str]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("tensor")
    started = smp_ranks(PROGRAMS / "smp_tensor.py", str(folder / "saved"), parameters={}, size=4, folder=folder)
    streams = ended(started)
    return Job([json.loads(stdout.splitlines()[-1]) for stdout, _ in streams], [stderr for _, stderr in streams])


@pytest.mark.parametrize("case", ERRORS)
def test_tensor_parallel_models_train_as_one_process_and_resume_at_other_degrees(job: Job, case: str) -> None:
    errors = [report["errors"][case] for report in job.reports]

    assert max(errors) < 1


@pytest.mark.parametrize("claim", CLAIMS)
def test_it_holds_on_every_rank_that(job: Job, claim: str) -> None:
    assert [report["holds"].get(claim) for report in job.reports] == [True] * 4


def test_no_error_or_claim_is_left_out(job: Job) -> None:
    for report in job.reports:
        assert set(report["errors"]) == set(ERRORS)
        assert set(report["holds"]) == set(CLAIMS)


def test_each_element_of_a_divided_parameter_is_on_one_rank(job: Job) -> None:
    """Beside `plain` (196) nothing is whole but biases and norms."""
    assert sum(rank["pipelined"][1] for rank in job.reports) == 2702
    assert sum(rank["prescaled"][1] for rank in job.reports) == 2 * 2702
    assert sum(rank["wide"][1] for rank in job.reports) == 2702 + 196
    assert max(rank["wide"][1] for rank in job.reports) < 0.3 * 2898


def test_each_element_of_a_transformer_is_on_one_rank(job: Job) -> None:
    assert [rank["transformer"][0][1] for rank in job.reports] == [2333, 2278, 2018, 1981]
    assert [rank["transformer"][1][1] for rank in job.reports] == 2 * [2333 + 2018, 2278 + 1981]


def test_distributed_modules_and_their_arguments_are_those_that_the_script_asked_for(job: Job) -> None:
    for rank in job.reports:
        assert rank["modules"] == ["DistributedEmbedding", "DistributedLinear"]
        assert rank["fused_softmax"] is False


def test_the_first_rank_names_arguments_without_effect(job: Job) -> None:
    idle = "no effect on what the model computes: flash_attention, zero_init (tensor_parallelism, model_creation)"

    assert [stderr.count(idle) for stderr in job.stderr] == [1, 0, 0, 0]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_tensor_parallel_is_refused(job: Job, number: int) -> None:
    for rank, report in enumerate(job.reports):
        first = rank - rank % 2
        expected = REFUSED[number].replace("FIRST", str(first)).replace("SECOND", str(first + 1))
        assert len(report["refused"]) == len(REFUSED)
        assert expected in report["refused"][number]
