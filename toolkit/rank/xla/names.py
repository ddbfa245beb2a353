"""Adds names that scripts of torch_xla 1.x and the SageMaker Training Compiler use, but torch_xla 2.9 no longer has."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

SPAWN = "torch_xla.distributed.xla_spawn"


def add() -> None:
    """Give torch_xla the old names that it lacks; names that it has are not changed."""
    import torch_xla.amp as amp
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    for module, name, value in (
        (xm, "xrt_world_size", lambda defval=1: xr.world_size()),
        (xm, "get_ordinal", lambda defval=0: xr.global_ordinal()),
        (xm, "get_local_ordinal", lambda defval=0: xr.local_ordinal()),
        (xr, "using_pjrt", lambda: True),
        (amp, "GradScaler", _grad_scaler()),
    ):
        if not hasattr(module, name):
            setattr(module, name, value)
    if importlib.util.find_spec(SPAWN) is None:
        # `python -m torch_xla.distributed.xla_spawn` looks for a file below the package's folders.
        sys.modules["torch_xla.distributed"].__path__.append(str(Path(__file__).parent / "old"))


def _grad_scaler() -> Any:
    import torch

    class GradScaler(torch.amp.GradScaler):
        """torch's own loss scaler on XLA tensors. The old `use_zero_grad` is ignored: it never changed results."""

        def __init__(
            self,
            init_scale: float = 2.0**16,
            growth_factor: float = 2.0,
            backoff_factor: float = 0.5,
            growth_interval: int = 2000,
            enabled: bool = True,
            use_zero_grad: bool = False,
        ) -> None:
            super().__init__("xla", init_scale, growth_factor, backoff_factor, growth_interval, enabled)

    return GradScaler


def run_in_place(torch_xla: ModuleType, rank: int) -> None:
    """Make torch_xla.launch and xmp.spawn call their function in this process: the launcher has started the ranks."""
    import torch_xla.distributed.xla_multiprocessing as xmp

    def launch(
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        start_method: str = "spawn",
        debug_single_process: bool = False,
    ) -> None:
        fn(rank, *args)

    def spawn(
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int | None = None,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> None:
        fn(rank, *args)

    xmp.spawn = spawn
    torch_xla.launch = launch  # type: ignore[attr-defined]
    sys.modules["torch_xla.torch_xla"].launch = launch  # type: ignore[attr-defined]
