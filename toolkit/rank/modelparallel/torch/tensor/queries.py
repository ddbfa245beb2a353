"""The methods of a DistributedModel about its tensor parallel modules and parameters."""

from collections.abc import Iterator

from torch import Tensor, nn

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.torch.replicas import is_distributed
from toolkit.rank.modelparallel.torch.tensor.modules import DistributedModule


class TensorParallel:
    """The methods of DistributedModel, whose module is `module`."""

    module: nn.Module

    def distributed_modules(self) -> Iterator[nn.Module]:
        """Yield the tensor parallel modules."""
        return (module for module in self.module.modules() if isinstance(module, DistributedModule))

    def is_distributed_parameter(self, param: Tensor) -> bool:
        """Return whether each tensor parallel rank has a part of its own of *param*."""
        return is_distributed(param)

    def is_distributed_buffer(self, buf: Tensor) -> bool:
        """Return whether each tensor parallel rank has a part of its own of *buf*: none does."""
        return is_distributed(buf)

    def is_scaled_batch_parameter(self, param: Tensor) -> bool:
        """Return whether *param* works on the samples of all tensor parallel ranks: not with prescaled_batch."""
        return is_distributed(param) and not world.current().cfg.prescaled_batch

    def is_scaled_batch_buffer(self, buf: Tensor) -> bool:
        """Return whether *buf* works on the samples of all tensor parallel ranks."""
        return self.is_scaled_batch_parameter(buf)

    def default_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters whose gradients are averaged over the data parallel group, with their names."""
        return ((name, parameter) for name, parameter in self._own_named_parameters() if not is_distributed(parameter))

    def scaled_batch_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters whose gradients are averaged over the reduced data parallel group alone."""
        return ((name, parameter) for name, parameter in self._own_named_parameters() if is_distributed(parameter))

    def _own_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, parameter) for name, parameter in self.module.named_parameters() if not parameter.is_meta)
