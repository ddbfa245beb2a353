from typing import Any

import torch

from torch_xla import rank as _rank


def autocast(device: Any = None, enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> Any:
    kind = torch.device(device if device is not None else _rank.device()).type
    return torch.autocast(kind, enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        use_zero_grad: bool = False,
    ) -> None:
        super().__init__(_rank.device().type, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
