"""Parameters of the model parallel library: defaults that depend on others, and what is refused."""

import pytest

from toolkit.errors import ContractError
from toolkit.parallelism import parameters

SHARDED = {"sharded_data_parallel_degree": 2}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"partitions": 1, "fp16": True, "bf16": True}, "expected fp16 or bf16, .* found both"),
        ({"partitions": 2, **SHARDED}, "expected sharded_data_parallel_degree or several partitions"),
        ({"partitions": 1, "tensor_parallel_degree": 2, **SHARDED}, "or tensor_parallel(?s:.*)Keep sharded_data_"),
        ({"partitions": 1, "shard_optimizer_state": True, **SHARDED}, "or shard_optimizer_state"),
    ],
)
def test_parameters_that_exclude_each_other_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        parameters.read(values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"partitions": 2}, {"memory_weight": 0.8, "active_microbatches": 4}),
        ({"partitions": 3, "optimize": "speed"}, {"memory_weight": 0.2, "active_microbatches": 5}),
        ({"partitions": 2, "optimize": "speed", "memory_weight": 0.5}, {"memory_weight": 0.5}),
        ({"pipeline_parallel_degree": 4, "active_microbatches": 3}, {"partitions": 4, "active_microbatches": 3}),
        ({"partitions": 2, "fp16_params": True}, {"fp16": True}),
        (
            {"partitions": 2, "_prescaled_batch": True, "_match_weights": 1},
            {"prescaled_batch": True, "match_weights": True},
        ),
        ({"partitions": "2", "ddp": "true", "memory_weight": "0.3"}, {"partitions": 2, "ddp": True}),
    ],
)
def test_a_parameter_that_depends_on_another_is_filled_in(
    values: dict[str, object], expected: dict[str, object]
) -> None:
    cfg = parameters.read(values)

    assert {name: getattr(cfg, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"partition": 2}, "found 'partition'. Did you mean partitions"),
        ({"partitions": 2, "pipeline": "fast"}, "expected interleaved or simple for pipeline, found 'fast'"),
        ({"partitions": "two"}, r"\$.partitions: expected int, .* docs/modelparallel.md"),
        ({"partitions": 2, "microbatches": 0}, "expected 1 or more for microbatches, found 0"),
        ({"partitions": 2, "optimize": "time"}, "expected memory or speed for optimize, found 'time'"),
        ({"partitions": 2, "active_microbatches": 0}, "expected 1 or more for active_microbatches, found 0"),
        ({"partitions": 2, "memory_weight": 1.5}, "expected a number from 0 to 1 for memory_weight, found 1.5"),
        ({"partitions": 2, "default_partition": 2}, "expected 0 to 1 for default_partition, found 2"),
        ({"partitions": 2, "auto_partition": False}, "expected default_partition, because auto_partition is false"),
        ({"partitions": 2, "pipeline_parallel_degree": 3}, "found partitions 2 and pipeline_parallel_degree 3"),
        ({"microbatches": 2}, r"expected partitions \(or pipeline_parallel_degree\)"),
    ],
)
def test_a_refused_parameter_is_named_with_what_was_expected(values: dict[str, object], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        parameters.read(values)


JOB = {"partitions": 2, "microbatches": "4", "ddp": True, "fp16": False}


def test_the_jobs_parameters_hold_and_the_rest_is_the_scripts() -> None:
    script = {"pipeline_parallel_degree": 4, "microbatches": 4, "fp16_params": True, "optimize": "speed"}

    cfg, differences = parameters.merge(JOB, script)

    assert (cfg.partitions, cfg.microbatches, cfg.ddp, cfg.fp16, cfg.optimize) == (2, 4, True, False, "speed")
    assert differences == (("partitions", 2, 4),)
    assert parameters.merge(JOB, {"optimize": "speed"})[1] == ()
    assert parameters.merge({}, script)[0].partitions == 4


@pytest.mark.parametrize(
    ("job", "script", "message", "device_of"),
    [
        ({}, {}, r"expected partitions \(or", "SM_HP_MP_PARAMETERS"),
        ({}, {"microbatches": 2}, r"expected partitions \(or", "smp.init(config)"),
        (JOB, {"microbatch": 2}, "found 'microbatch'", "smp.init(config)"),
        ({"parts": 1}, {"partitions": 2}, "found 'parts'", "SM_HP_MP_PARAMETERS"),
        (JOB, {"optimize": "time"}, "found 'time'", "SM_HP_MP_PARAMETERS and smp.init(config)"),
    ],
)
def test_a_wrong_parameter_is_reported_with_where_it_is(
    job: dict[str, object], script: dict[str, object], message: str, device_of: str
) -> None:
    with pytest.raises(ContractError, match=message) as refused:
        parameters.merge(job, script)

    assert refused.value.where == device_of
