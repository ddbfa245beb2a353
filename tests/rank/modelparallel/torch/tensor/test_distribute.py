"""Tensor parallel models, against one process."""

import json
from pathlib import Path

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


def test_tensor_parallel_models_train_as_one_process_and_resume_at_other_degrees(tmp_path: Path) -> None:
    said = ended(smp_ranks(PROGRAMS / "smp_tensor.py", str(tmp_path / "saved"), parameters={}, size=4, folder=tmp_path))

    ranks = [json.loads(stdout.splitlines()[-1]) for stdout, _ in said]
    idle = "no effect on what the model computes: flash_attention, zero_init (tensor_parallelism, model_creation)"
    assert [stderr.count(idle) for _, stderr in said] == [1, 0, 0, 0]
    # Elements of divided parameters: each is on one rank of a model's ranks. Beside `plain` (196) nothing is whole but
    # biases and norms.
    assert sum(rank["pipelined"][1] for rank in ranks) == 2702
    assert sum(rank["prescaled"][1] for rank in ranks) == 2 * 2702
    assert sum(rank["wide"][1] for rank in ranks) == 2702 + 196
    assert max(rank["wide"][1] for rank in ranks) < 0.3 * 2898
    assert [rank["transformer"][0][1] for rank in ranks] == [2333, 2278, 2018, 1981]
    assert [rank["transformer"][1][1] for rank in ranks] == 2 * [2333 + 2018, 2278 + 1981]
    for number, rank in enumerate(ranks):
        assert rank["modules"] == ["DistributedEmbedding", "DistributedLinear"]
        assert rank["fused_softmax"] is False
        first, second = number - number % 2, number - number % 2 + 1
        for expected, message in zip(REFUSED, rank["refused"], strict=True):
            assert expected.replace("FIRST", str(first)).replace("SECOND", str(second)) in message, message
