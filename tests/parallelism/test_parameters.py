"""Parameters of the model parallel library that are refused."""

import pytest

from toolkit.errors import ContractError
from toolkit.parallelism import parameters

SHARDED = {"sharded_data_parallel_degree": 2}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"partitions": 1, "fp16": True, "bf16": True}, "expected fp16 or bf16, .* found both"),
        ({"partitions": 2, **SHARDED}, "expected sharded_data_parallel_degree or several partitions"),
        ({"partitions": 1, "tensor_parallel_degree": 2, **SHARDED}, "or tensor_parallel_degree"),
        ({"partitions": 1, "shard_optimizer_state": True, **SHARDED}, "or shard_optimizer_state"),
    ],
)
def test_parameters_that_exclude_each_other_are_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        parameters.read(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"partition": 2}, "found 'partition'. Did you mean partitions"),
        ({"partitions": 2, "pipeline": "fast"}, "expected interleaved or simple for pipeline, found 'fast'"),
        ({"partitions": "two"}, r"\$.partitions: expected int, .* docs/modelparallel.md"),
        ({"partitions": 2, "microbatches": 0}, "expected 1 or more for microbatches, found 0"),
    ],
)
def test_a_refused_parameter_is_named_with_what_was_expected(given: dict[str, object], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        parameters.read(given)
