"""What a DistributedModel says of its tensor parallel modules and parameters."""

from collections.abc import Iterator

from torch import Tensor, nn

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.torch.replicas import is_distributed
from toolkit.rank.modelparallel.torch.tensor.modules import Distributed


class TensorParallel:
    """The methods of DistributedModel, whose module is `module`."""

    module: nn.Module

    def distributed_modules(self) -> Iterator[nn.Module]:
        """Yield the tensor parallel modules."""
        return (each for each in self.module.modules() if isinstance(each, Distributed))

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
        return ((name, one) for name, one in self._own_named_parameters() if not is_distributed(one))

    def scaled_batch_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters whose gradients are averaged over the reduced data parallel group alone."""
        return ((name, one) for name, one in self._own_named_parameters() if is_distributed(one))

    def _own_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, one) for name, one in self.module.named_parameters() if not one.is_meta)
