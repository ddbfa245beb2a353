"""The nodes of the autograd graphs at both ends of a call of a module on another partition.

`link` finds where one call's outputs were nothing but another call's inputs. In the backward pass the second module's
rank then sends the gradients to the first one's itself. The caller, whose thread may be busy with a module of its own,
does not stand between them.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge, get_gradient_edge

from toolkit.rank.modelparallel.torch.remote_tensor import Parcel


class Callee(Protocol):
    """A call of a module elsewhere. `requires_grad`: which outputs need a gradient, after `forward`. `onward`: set by
    `link`. `looks`: at which gradients somebody here wants to look."""

    requires_grad: list[bool]
    onward: "Onward | None"
    looks: "Looks"

    @property
    def is_retained(self) -> bool:
        """Whether `retain_grad` was called on an output."""

    def begin_backward(self) -> None:
        """Forget an earlier backward pass."""

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Return the outputs."""

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the inputs' gradients."""


class Looks:
    """Whether hooks of the script look at the gradients of a call's outputs, and of its inputs."""

    def __init__(self) -> None:
        self.at_outputs = False
        self.at_inputs = False


class Onward:
    """All gradients of a call's inputs are those of another call's outputs, and of nothing else.

    *callee*: the other call. *places*: (number of the input, number of the other call's output) of each.
    """

    def __init__(self, callee: Any, places: list[tuple[int, int]]) -> None:
        self.callee = callee
        self.places = places


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


_REMOTE: Any = RemoteNode._backward_cls


def _notes_hooks(name: str, *, at_inputs: bool = False) -> None:
    """Let the nodes' method *name*, which registers a hook, also note at what the hook looks."""
    plain = getattr(_REMOTE, name)

    def register(node: Any, *given: Any) -> Any:
        node.call.looks.at_outputs = True
        node.call.looks.at_inputs |= at_inputs
        return plain(node, *given)

    setattr(_REMOTE, name, register)


_notes_hooks("register_hook", at_inputs=True)
_notes_hooks("register_prehook")
_notes_hooks("_register_hook_dict")  # Tensor.register_hook calls it for a node's output.


def link(roots: Iterable[Any]) -> None:
    """Set `onward` of every call in the graph that ends with the nodes *roots*, for a backward pass from them alone."""
    users: dict[Any, set[Any]] = {}
    for root in roots:
        users.setdefault(root, set()).add(None)
    waiting = list(users)
    while waiting:
        node = waiting.pop()
        for behind, _ in node.next_functions:
            if behind is not None:
                if behind not in users:
                    users[behind] = set()
                    waiting.append(behind)
                users[behind].add(node)
    calls = [node for node in users if isinstance(node, _REMOTE)]
    for node in calls:
        node.call.begin_backward()
    if torch.is_anomaly_enabled():  # It looks at every gradient.
        return
    for node in calls:
        (user,) = users[node] if len(users[node]) == 1 else (None,)
        if isinstance(user, _REMOTE) and not (
            node.call.looks.at_outputs or node.call.is_retained or user.call.looks.at_inputs
        ):
            inputs = user.next_functions[1:]  # The first is the anchor's.
            if all(behind is None or behind is node for behind, _ in inputs):
                places = [(number, its) for number, (behind, its) in enumerate(inputs) if behind is node]
                user.call.onward = Onward(node.call, places)


class Served:
    """What the owner keeps of a call until its backward."""

    def __init__(self, inputs: Sequence[Tensor], parcel: Parcel) -> None:
        needed = [form.requires_grad for form in parcel.forms]
        self.inputs: Sequence[Tensor] | None = inputs
        self.needed = needed
        self.places = parcel.places
        self.gradients: list[Tensor | None] = [None] * len(needed)
        self.links = False  # Whether it called several modules of other partitions itself, which may be linked.
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
            if self.links:
                link(edge.node for edge, _ in roots)
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


class NoLeaf(torch.autograd.Function):
    """Gives a received tensor, of which autograd has a leaf, as one that a module may change in place."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient
