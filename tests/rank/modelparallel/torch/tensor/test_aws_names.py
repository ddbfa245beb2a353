"""AWS's names for the parts of Hugging Face's models."""

import copy
from typing import Any

import pytest

pytest.importorskip("torch")

from torch import nn

from toolkit.rank.modelparallel.torch.tensor import aws_names

pytestmark = pytest.mark.torch


def made(kind: str, **children: nn.Module) -> Any:
    module: nn.Module = type(kind, (nn.Module,), {})()
    for name, child in children.items():
        module.add_module(name, child)
    return module


def test_a_model_has_the_library_s_names_beside_its_own_and_they_are_in_no_state() -> None:
    layer = made("GPTNeoXLayer", attention=nn.Linear(2, 2), mlp=nn.Linear(2, 2))
    inner = made("GPTNeoXModel", layers=nn.ModuleList([layer]))
    model = made("GPTNeoXForCausalLM", gpt_neox=inner)
    old_state = list(model.state_dict())

    aws_names.add_aws_names(model.modules())

    assert model.transformer.seq_layers is inner.layers
    assert layer.output is layer.mlp
    assert list(model.state_dict()) == old_state
    assert [name for name, _ in model.named_modules()] == [
        "",
        "gpt_neox",
        "gpt_neox.layers",
        "gpt_neox.layers.0",
        "gpt_neox.layers.0.attention",
        "gpt_neox.layers.0.mlp",
    ]
    copied = copy.deepcopy(model)
    assert copied.transformer.seq_layers is copied.gpt_neox.layers


def test_a_name_that_the_model_has_itself_stays_and_other_classes_get_none() -> None:
    child = made("GPT2Block", attn=nn.Linear(2, 2), attention=nn.Linear(3, 3), mlp=nn.Linear(2, 2))
    other = made("Block", attn=nn.Linear(2, 2))

    aws_names.add_aws_names([child, other])

    assert child.attention is child._modules["attention"]
    assert child.output is child.mlp
    assert not hasattr(other, "attention")
