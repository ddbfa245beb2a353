"""Activation checkpointing of modules on two partitions, and the order in which offloaded inputs come back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.rank.modelparallel.started import PROGRAMS, has_chains, reports

pytest.importorskip("torch")

import torch
from torch.utils.checkpoint import checkpoint

from toolkit.rank.modelparallel.torch.checkpointing import MARK, set_activation_checkpointing
from toolkit.rank.modelparallel.torch.offload import Offload


@pytest.mark.parametrize("strategy", ["each", "group_2", "contiguous"])
def test_each_module_of_a_module_list_is_checkpointed_by_itself(strategy: str) -> None:
    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])

    set_activation_checkpointing(layers, strategy=strategy)

    assert [MARK in vars(module) for module in (layers, *layers)] == [False, True, True]


class Job(NamedTuple):
    """The measurements of two ranks of smp_activation.py, and their job's folder."""

    first: dict[str, Any]
    second: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    parameters = {"partitions": 2, "auto_partition": False, "default_partition": 0}
    folder = tmp_path_factory.mktemp("activation")
    first, second = reports(PROGRAMS / "smp_activation.py", parameters=parameters, size=2, folder=folder)
    return Job(first, second, folder)


@pytest.mark.parametrize(
    ("part", "calls_of_first", "calls_of_second"),
    [
        ("each", "abba", "cddc"),
        ("group", "abcdcdab", "ee"),
        ("contiguous", "abcabc", "dd"),
        ("spanning", "aa", "bccb"),
        ("unpacked", "a1b2c2b2a1", None),
        ("packed", "a1b1c1b1a1", None),
        ("inside", "abcbca", "d"),
        ("plain", "ab", None),
    ],
)
def test_layers_are_computed_again_by_the_strategy_and_on_their_partition(
    job: Job, part: str, calls_of_first: str, calls_of_second: str | None
) -> None:
    assert job.first["calls"][part] == calls_of_first
    assert job.second["calls"].get(part) == calls_of_second


def test_gradients_are_those_of_one_process(job: Job) -> None:
    """Those of `redrawn` are not: it drew other numbers when it was computed again."""
    errors: dict[str, float] = {
        name: error for rank in (job.first, job.second) for name, error in rank["errors"].items() if error is not None
    }
    redrawn = {name: error for name, error in errors.items() if name.startswith("redrawn")}

    assert len(errors) > 2 * 20
    assert {name for name, error in errors.items() if not error < 1e-6} == redrawn.keys()
    assert len(redrawn) == 2


def test_random_numbers_are_drawn_again_unless_the_script_says_otherwise(job: Job) -> None:
    assert job.first["masks"] == {"kept": True, "redrawn": False}


def test_an_evaluation_computes_nothing_again(job: Job) -> None:
    assert job.first["evaluated"]["group"] == "abcd"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "expected a module of the model, found function"),
        (1, '"group_N" with N of 1 or more, found'),
        (2, '"group_N" with N of 1 or more, found'),
        (3, "for an nn.Sequential, found them for Random"),
        (4, "for an nn.Sequential, found them for Random"),
        (5, "found a call of module inside.3 of partition 1"),
    ],
)
def test_what_cannot_be_checkpointed_is_refused(job: Job, number: int, message: str) -> None:
    assert message in job.first["refused"][number]


def test_offloading_needs_checkpointed_modules(job: Job) -> None:
    for rank in (job.first, job.second):
        refused, trained = rank["offload"]
        assert "expected checkpointed modules beside offload_activations, found none" in refused
        assert trained == "no error"


def test_groups_of_layers_of_a_chain_are_computed_again_together(job: Job) -> None:
    """In the module server only those of the first rank: it calls the layers of another one by one."""
    expected = ("chain", ["abccab", "deffde"]) if has_chains() else ("server", ["abccab", "deffed"])
    steps = (job.folder / "modelparallel/timeline-0.jsonl").read_text().splitlines()
    path = json.loads(steps[-1])["path"]

    assert (path, [rank["chain"]["calls"] for rank in (job.first, job.second)]) == expected
    assert max(error for rank in (job.first, job.second) for error in rank["chain"]["errors"].values()) < 1e-5


class HostMemory:
    """Stores tensors as a GPU's offloading does, and notes each event."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.events: list[str] = []

    def store(self, tensor: torch.Tensor) -> int:
        self.tensors.append(tensor.detach().clone())
        self._note("store", len(self.tensors) - 1)
        return len(self.tensors) - 1

    def load(self, number: int) -> Callable[[], torch.Tensor]:
        self._note("load", number)

        def wait() -> torch.Tensor:
            self._note("use", number)
            return self.tensors[number]

        return wait

    def _note(self, event: str, number: int) -> None:
        if self.tensors[number].numel():  # torch 2.9 saves an empty tensor beside each call's inputs.
            full = [index for index, tensor in enumerate(self.tensors) if tensor.numel()]
            self.events.append(f"{event} {full.index(number)}")


def check_gradient(offload: Offload) -> None:
    """Train five layers under *offload*, and assert that the gradient is that of layers without it."""
    layers = [torch.nn.Linear(3, 3) for _ in range(5)]
    first = x = torch.randn(2, 3, requires_grad=True)
    for layer in layers:
        with offload.call():
            x = checkpoint(lambda x, layer=layer: torch.tanh(layer(x)), x, use_reentrant=False)
    torch.autograd.backward(x.sum())
    gradient = first.grad
    first.grad, y = None, first
    for layer in layers:
        y = torch.tanh(layer(y))
    torch.autograd.backward(y.sum())
    torch.testing.assert_close(gradient, first.grad)


def test_offloaded_inputs_come_back_some_modules_before_the_backward_pass_needs_them() -> None:
    memory = HostMemory()

    check_gradient(Offload(memory.store, memory.load, horizon=2, device=torch.device("cpu")))

    assert memory.events == [
        *(f"store {number}" for number in range(5)),
        "load 4",
        "load 3",
        "load 2",
        "use 4",
        "load 1",
        "use 3",
        "load 0",
        "use 2",
        "use 1",
        "use 0",
    ]


def test_inputs_that_are_not_on_the_device_stay_where_they_are() -> None:
    memory = HostMemory()

    check_gradient(Offload(memory.store, memory.load, horizon=2, device=torch.device("cuda")))

    assert memory.events == []
