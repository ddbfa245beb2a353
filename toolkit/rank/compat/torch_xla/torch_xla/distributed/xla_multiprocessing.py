from typing import Any

import torch

from torch_xla import rank as _rank

spawn = _rank.spawn


class MpModelWrapper:
    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def to(self, device: Any) -> torch.nn.Module:
        return self._model.to(device)


class MpSerialExecutor:
    def run(self, fn: Any) -> Any:
        return fn()
