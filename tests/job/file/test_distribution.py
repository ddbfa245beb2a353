"""The `distribution` dictionary: what SageMaker's SDK would ignore is named, with the nearest key that it knows."""

from typing import Any

import pytest

from toolkit.errors import ContractError
from toolkit.job.file.distribution import dictionary, strategy_of
from toolkit.job.file.options import Origin

ON = {"enabled": True}


@pytest.mark.parametrize(
    ("distribution", "words"),
    [
        ({"mpi": {**ON, "process_per_host": 2}}, (".mpi", "'process_per_host'", "Did you mean processes_per_host?")),
        ({"mpi": {**ON, "custom_mpi_option": "-x A"}}, (".mpi", "Did you mean custom_mpi_options?")),
        ({"mpi": {"enable": True}}, (".mpi", "'enable'", "Did you mean enabled?")),
        ({"pytorchddp": {**ON, "processes_per_host": 2}}, (".pytorchddp", "--processes-per-host", "SDK ignores it")),
        ({"torch_distributed": {**ON, "processes_per_host": 2}}, (".torch_distributed", "--processes-per-host")),
        ({"torch_distributed": {}}, (".torch_distributed", "expected the key enabled", '"enabled": true')),
        ({"parameter_server": {}}, (".parameter_server", "expected the key enabled")),
        ({"torch_distributed": {**ON, "parameters": {}}}, (".torch_distributed", "'parameters'")),
        ({"smdistributed": {"data_parallel": ON}}, (".smdistributed", "Did you mean dataparallel?")),
        ({"smdistributed": {"dataparallel": {**ON, "parameters": {}}}}, (".dataparallel", "'parameters'")),
        ({"smdistributed": {"dataparallel": {}}}, (".smdistributed.dataparallel", "expected the key enabled")),
        ({"smdistributed": {"modelparallel": {**ON, "parameter": {}}}}, ("Did you mean parameters?",)),
        ({"torch_distribute": ON}, ("'torch_distribute'", "Did you mean torch_distributed?")),
        # Values of the wrong type, also within.
        ({"mpi": {"enabled": "yes"}}, (".mpi.enabled", "expected bool")),
        ({"mpi": True}, (".mpi", "expected")),
        ({"mpi": {**ON, "custom_mpi_options": ["-x"]}}, (".custom_mpi_options", "expected str")),
        ({"smdistributed": {"modelparallel": {**ON, "parameters": []}}}, ("parameters", "expected")),
    ],
)
def test_what_would_be_ignored_is_refused(distribution: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ContractError) as caught:
        strategy_of(distribution, {"a"}, Origin(where="job.json"))

    assert [word for word in ("job.json: $.distribution", *words) if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    "distribution",
    [
        {"mpi": {**ON, "processes_per_host": 2, "custom_mpi_options": "-x A=b"}},
        {"pytorchddp": {**ON, "custom_mpi_options": "-x A=b"}},
        {"jax": {**ON, "processes_per_host": 2}},
        {"torch_distributed": ON},
    ],
)
def test_what_the_sdk_knows_is_kept(distribution: dict[str, Any]) -> None:
    strategy, groups = strategy_of(distribution, {"a"}, Origin(where="job.json"))

    assert dictionary(strategy, groups) == distribution


def test_an_entry_that_is_off_starts_nothing() -> None:
    assert strategy_of({"mpi": {"enabled": False}}, {"a"}, Origin(where="x"))[0].name == "script"


@pytest.mark.parametrize(
    ("distribution", "groups"),
    [
        ({}, ()),
        ({"mpi": {**ON, "processes_per_host": 2, "custom_mpi_options": "-x A"}}, ()),
        ({"mpi": ON, "pytorchddp": ON, "instance_groups": ["a"]}, ("a",)),
        ({"mpi": ON, "smdistributed": {"modelparallel": {**ON, "parameters": {"partitions": 2}}}}, ()),
        ({"smdistributed": {"dataparallel": ON}}, ()),
    ],
)
def test_a_strategy_written_as_a_dictionary_is_read_as_the_same(
    distribution: dict[str, Any], groups: tuple[str, ...]
) -> None:
    strategy, group_names = strategy_of(distribution, {"a"}, Origin(where="job.json"))

    assert group_names == groups
    assert strategy_of(dictionary(strategy, groups), {"a"}, Origin(where="job.json")) == (strategy, groups)
