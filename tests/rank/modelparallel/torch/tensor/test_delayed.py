"""Values that modules get after the model is made."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.tensor import delayed

pytestmark = pytest.mark.torch


class Conv1D(nn.Module):
    """As transformers': without reset_parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2, 2), torch.nan))


class Model(nn.Module):
    """As a PreTrainedModel: it knows how its modules begin, but not all."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(Conv1D(), nn.Linear(2, 2))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Conv1D):
            module.weight.data.fill_(7.0)


def test_the_model_around_a_module_gives_its_values_and_reset_parameters_what_the_model_does_not_know() -> None:
    inner: Any = Model()
    model = nn.ModuleDict({"inner": inner})
    first, second = inner.block
    second.weight.data.fill_(torch.nan)

    for path, module in (("inner.block.0", first), ("inner.block.1", second)):
        owner = delayed._owner(model, path)
        assert owner is inner
        delayed._reset(owner, path, module, list(module.parameters()))

    assert first.weight.tolist() == [[7.0, 7.0], [7.0, 7.0]]
    assert not second.weight.isnan().any()


def test_a_module_that_nothing_gives_values_is_refused() -> None:
    module = Conv1D()

    with pytest.raises(SMPError, match=r"reset_parameters, .* module block\.0 \(Conv1D\), found none"):
        delayed._reset(None, "block.0", module, list(module.parameters()))

    assert delayed._owner(nn.Sequential(module), "0") is None
