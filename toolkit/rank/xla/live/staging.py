"""Copies XLA tensors to the host and back, all tensors of a call in one transfer."""

from collections.abc import Sequence
from typing import Any

import torch
import torch_xla
from torch import Tensor

from toolkit.rank.frameworks import torch_xla as private


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return a copy of each of *tensors* in the host's memory, contiguous.

    All operations that torch_xla has recorded are computed. If only the tensors were copied, torch_xla would compute
    the rest of the step a second time.
    """
    on_device = [tensor for tensor in tensors if tensor.device.type == "xla"]
    fetched = iter(private.copy_to_host(on_device) if on_device else ())
    return [
        next(fetched).detach().contiguous() if tensor.device.type == "xla" else tensor.detach().clone().contiguous()
        for tensor in tensors
    ]


def write_back(targets: Sequence[Tensor], hosts: Sequence[Tensor]) -> None:
    """Write each of *hosts* into the same entry of *targets*."""
    with torch.no_grad():
        for target, host in zip(targets, hosts, strict=True):
            target.copy_(host.view(target.shape) if host.shape != target.shape else host)


class HostStaging:
    """Transfers torch_xla's tensors through the host's memory (collectives.Staging)."""

    def copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return to_host(tensors)

    def write_back(self, targets: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
        write_back(targets, copies)

    def settle(self) -> None:
        torch_xla.sync()

    def portable(self, data: Any) -> Any:
        return private.convert_to_cpu(data)
