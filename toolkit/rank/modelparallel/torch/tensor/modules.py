"""smp.nn.DistributedLinear and DistributedEmbedding, and the same for transformers' Conv1D (GPT-2's linear layer).

A Linear is divided along its inputs, an Embedding along its vectors: both along axis 1 of a weight of the same shape,
so that they can share it. The initial values are those of one process, whatever the tensor parallel degree.
"""

import functools
import sys
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.tensor import exchanges
from toolkit.rank.modelparallel.torch.tensor.sharding import divide


class DistributedModule:
    """A module with parameters of which each tensor parallel rank has a part."""

    def distribute(self) -> None:
        """Keep this rank's part of each parameter; the module has whole ones until then."""
        raise NotImplementedError


class DistributedLinear(DistributedModule, nn.Linear):
    """nn.Linear of which each tensor parallel rank has the weights of some inputs; the bias is on all ranks."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__(in_features, out_features, bias, device, dtype)
        self.distribute()

    def distribute(self) -> None:
        """Keep this rank's part."""
        divide(self.weight, 1)

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs for *input*, this rank's samples along axis 0."""
        if input.dim() == 1:
            return self.forward(input.unsqueeze(0)).squeeze(0)
        output = exchanges.sum_out(functional.linear(exchanges.split_in(input), self.weight))
        return output if self.bias is None else output + self.bias


class DistributedEmbedding(DistributedModule, nn.Embedding):
    """nn.Embedding of which each tensor parallel rank has some elements of every vector.

    Raises:
        SMPError: max_norm, scale_grad_by_freq or sparse, which need whole vectors or other gradients.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.distribute()

    def distribute(self) -> None:
        """Keep this rank's part."""
        for name in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(self, name):
                raise SMPError(
                    f"expected an embedding without {name} for tensor parallelism, found {getattr(self, name)}: leave "
                    "it out, or set smp.set_tensor_parallelism(module, False)"
                )
        divide(self.weight, 1)

    def forward(self, input: Tensor) -> Tensor:
        """Return the vectors of *input*, this rank's samples along axis 0."""
        if input.dim() == 0:
            return self.forward(input.unsqueeze(0)).squeeze(0)
        vectors = functional.embedding(exchanges.rows_of_all(input), self.weight, self.padding_idx)
        return exchanges.join_out(vectors, self.embedding_dim)


class _DividedConv1D(DistributedModule):
    """Conv1D of transformers: a Linear whose weight has the shape (inputs, outputs)."""

    weight: Tensor
    bias: Tensor

    def distribute(self) -> None:
        divide(self.weight, 0)

    def forward(self, x: Tensor) -> Tensor:
        return exchanges.sum_out(exchanges.split_in(x) @ self.weight) + self.bias


def get_conv1d_class(module: nn.Module) -> type[DistributedModule] | None:
    """Return the distributed class for *module*, None: it is no Conv1D of transformers."""
    conv1d: Any = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    is_one = type(module) is conv1d
    return _distributed_conv1d(conv1d) if is_one else None


@functools.cache
def _distributed_conv1d(conv1d: Any) -> type[DistributedModule]:
    return type("DistributedConv1D", (_DividedConv1D, conv1d), {})


def distribute_in_place(module: nn.Module, kind: type[DistributedModule]) -> None:
    """Make *module*, a Linear, Embedding or Conv1D, the distributed one *kind*, with its values.

    It and its parameters stay the objects that they are: hooks, marks and sharing are kept.
    """
    module.__class__ = kind  # type: ignore[assignment]
    kind.distribute(module)  # type: ignore[arg-type]
