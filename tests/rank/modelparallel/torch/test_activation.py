"""Activation checkpointing of modules on two partitions, and the order in which offloaded inputs come back."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rank.modelparallel.started import PROGRAMS, ended, smp_ranks

pytest.importorskip("torch")

import torch
from torch.utils.checkpoint import checkpoint

from toolkit.rank.modelparallel.torch.activation import MARK, set_activation_checkpointing
from toolkit.rank.modelparallel.torch.offload import Offload


@pytest.mark.parametrize("strategy", ["each", "group_2", "contiguous"])
def test_each_module_of_a_module_list_is_checkpointed_by_itself(strategy: str) -> None:
    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])

    set_activation_checkpointing(layers, strategy=strategy)

    assert [MARK in vars(module) for module in (layers, *layers)] == [False, True, True]


def test_layers_are_computed_again_by_the_strategy_and_on_their_partition(tmp_path: Path) -> None:
    parameters = {"partitions": 2, "auto_partition": False, "default_partition": 0}

    first, second = (
        json.loads(out)
        for out, _ in ended(smp_ranks(PROGRAMS / "smp_activation.py", parameters=parameters, size=2, folder=tmp_path))
    )

    assert first["calls"] == {
        "each": "abba",
        "group": "abcdcdab",
        "contiguous": "abcabc",
        "spanning": "aa",
        "unpacked": "a1b2c2b2a1",
        "packed": "a1b1c1b1a1",
        "inside": "abcbca",
        "plain": "ab",
    }
    assert second["calls"] == {"each": "cddc", "group": "ee", "contiguous": "dd", "spanning": "bccb", "inside": "d"}
    assert first["masks"] == {"kept": True, "redrawn": False}
    assert first["evaluated"]["group"] == "abcd"
    wrong = first["refused"]
    assert "expected a module of the model, found function" in wrong[0]
    assert all('"group_N" with N of 1 or more, found' in message for message in wrong[1:3])
    assert all("for an nn.Sequential, found them for Random" in message for message in wrong[3:5])
    assert "found a call of module inside.3 of partition 1" in wrong[5]


def test_offloading_needs_checkpointed_modules(tmp_path: Path) -> None:
    parameters = {"partitions": 2, "auto_partition": False, "default_partition": 0, "offload_activations": True}
    program = PROGRAMS / "smp_activation.py"

    streams = ended(smp_ranks(program, "offload", parameters=parameters, size=2, folder=tmp_path))

    for out, _ in streams:
        refused, trained = json.loads(out)["offload"]
        assert "expected checkpointed modules beside offload_activations, found none" in refused
        assert trained == "no error"


def test_groups_of_layers_of_a_chain_are_computed_again_together(tmp_path: Path) -> None:
    parameters = {"partitions": 2, "auto_partition": False, "default_partition": 0}
    program = PROGRAMS / "smp_activation.py"

    streams = ended(smp_ranks(program, "chain", parameters=parameters, size=2, folder=tmp_path))

    assert [json.loads(out) for out, _ in streams] == [{"chain": "abccab"}, {"chain": "deffde"}]
    steps = (tmp_path / "modelparallel/timeline-0.jsonl").read_text().splitlines()
    assert [json.loads(step)["path"] for step in steps][-1] == "chain"


def test_offloaded_inputs_come_back_some_modules_before_the_backward_pass_needs_them() -> None:
    events: list[str] = []
    host: dict[int, torch.Tensor] = {}

    def store(tensor: torch.Tensor) -> int:
        host[len(host)] = tensor.detach().clone()
        events.append(f"store {len(host) - 1}")
        return len(host) - 1

    def load(number: int) -> Callable[[], torch.Tensor]:
        events.append(f"load {number}")

        def wait() -> torch.Tensor:
            events.append(f"use {number}")
            return host[number]

        return wait

    offload = Offload(store, load, horizon=2)
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
    assert events == [
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
