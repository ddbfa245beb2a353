"""The nodes of the autograd graphs at both ends of a call of a module on another partition."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge, get_gradient_edge

from toolkit.modelparallel.torch.far import Parcel


class Callee(Protocol):
    """A call of a module elsewhere. `requires_grad`: which outputs need a gradient, after `forward`."""

    requires_grad: list[bool]

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Return the outputs."""

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the inputs' gradients."""


class RemoteNode(torch.autograd.Function):
    """The caller's node of a call."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, call: Callee, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        outputs = call.forward(*tensors)
        ctx.mark_non_differentiable(
            *(output for output, needed in zip(outputs, call.requires_grad, strict=True) if not needed)
        )
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.call.backward(gradients))


class Served:
    """What the owner keeps of a call until its backward."""

    def __init__(self, inputs: Sequence[Tensor], parcel: Parcel) -> None:
        needed = [form.requires_grad for form in parcel.forms]
        self.inputs: Sequence[Tensor] | None = inputs
        self.needed = needed
        self.places = parcel.places
        self.gradients: list[Tensor | None] = [None] * len(needed)
        self._edges: list[GradientEdge | None] = []
        self._missing: set[int] = set()

    @property
    def is_finished(self) -> bool:
        """Whether every output's gradient has come."""
        return not self._missing

    def keep(self, outputs: Sequence[Tensor]) -> bool:
        """Keep the graph of *outputs*; False: none of them has one."""
        self.inputs = None
        self._edges = [get_gradient_edge(output) if output.requires_grad else None for output in outputs]
        self._missing = {number for number, edge in enumerate(self._edges) if edge is not None}
        return bool(self._missing)

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Add to the parameters' gradients, and return those of the inputs."""
        roots = [
            (edge, gradient)
            for edge, gradient in zip(self._edges, gradients, strict=True)
            if edge is not None and gradient is not None
        ]
        if roots:
            torch.autograd.backward([edge for edge, _ in roots], [gradient for _, gradient in roots])
        self._missing -= {number for number, gradient in enumerate(gradients) if gradient is not None}
        found, self.gradients = self.gradients, [None] * len(self.needed)
        return found


class Entry(torch.autograd.Function):
    """The owner's first node of a call: gives out the inputs, which a module may change in place as any others."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, served: Served) -> tuple[Tensor, ...]:
        ctx.served = served
        ctx.set_materialize_grads(False)
        assert served.inputs is not None
        ctx.mark_non_differentiable(
            *(tensor for tensor, needed in zip(served.inputs, served.needed, strict=True) if not needed)
        )
        return tuple(served.inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:
        ctx.served.gradients = list(gradients)
        return None, None
