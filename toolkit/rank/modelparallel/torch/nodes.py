"""The nodes of the autograd graphs at both ends of a call of a module on another partition.

`link_calls` finds calls whose outputs are used as another call's inputs and nowhere else. In the backward pass the rank
of the second module then sends the gradients to the rank of the first one directly. They do not pass through the
caller, whose thread may be busy with a module of its own.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge, get_gradient_edge

from toolkit.rank.frameworks.torch.autograd import is_node_of, observe_node_hooks
from toolkit.rank.modelparallel.torch.remote_tensor import TensorBundle


class ModuleCall(Protocol):
    """A call of a module on another partition.

    `requires_grad`: which outputs need a gradient, after `forward`. `gradient_link`: set by `link_calls`. `hook_use`:
    which gradients hooks of the script read.
    """

    requires_grad: list[bool]
    gradient_link: "GradientLink | None"
    hook_use: "HookUse"

    @property
    def is_retained(self) -> bool:
        """True if `retain_grad` was called on an output."""

    def begin_backward(self) -> None:
        """Drop the state of an earlier backward pass."""

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Return the outputs."""

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the inputs' gradients."""


class HookUse:
    """Records whether hooks of the script read the gradients of a call's outputs, and of its inputs."""

    def __init__(self) -> None:
        self.reads_outputs = False
        self.reads_inputs = False


class GradientLink:
    """Says that all gradients of a call's inputs are the gradients of another call's outputs.

    *target*: the other call. *index_pairs*: for each gradient the index of the input, and that of the other call's
    output.
    """

    def __init__(self, target: Any, index_pairs: list[tuple[int, int]]) -> None:
        self.target = target
        self.index_pairs = index_pairs


class RemoteNode(torch.autograd.Function):
    """The caller's node of a call."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, call: ModuleCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        outputs = call.forward(*tensors)
        ctx.mark_non_differentiable(
            *(output for output, requires_grad in zip(outputs, call.requires_grad, strict=True) if not requires_grad)
        )
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.call.backward(gradients))


@functools.cache
def record_hook_use() -> bool:
    """Let the nodes of calls record which gradients hooks read; False: this release of torch does not allow it."""

    def note(node: Any, is_prehook: bool) -> None:
        node.call.hook_use.reads_outputs = True
        node.call.hook_use.reads_inputs |= not is_prehook

    return observe_node_hooks(RemoteNode, note)


def link_calls(roots: Iterable[Any]) -> None:
    """Set `gradient_link` of every call in the graph of the nodes *roots*, for a backward pass from them alone."""
    users: dict[Any, set[Any]] = {}
    for root in roots:
        users.setdefault(root, set()).add(None)
    pending = list(users)
    while pending:
        node = pending.pop()
        for next_node, _ in node.next_functions:
            if next_node is not None:
                if next_node not in users:
                    users[next_node] = set()
                    pending.append(next_node)
                users[next_node].add(node)
    nodes = [node for node in users if is_node_of(node, RemoteNode)]
    for node in nodes:
        node.call.begin_backward()
    if torch.is_anomaly_enabled():  # It reads every gradient.
        return
    for node in nodes:
        user: Any = next(iter(users[node])) if len(users[node]) == 1 else None
        if is_node_of(user, RemoteNode) and not (
            node.call.hook_use.reads_outputs or node.call.is_retained or user.call.hook_use.reads_inputs
        ):
            inputs = user.next_functions[1:]  # The first is the anchor's.
            if all(next_node is None or next_node is node for next_node, _ in inputs):
                index_pairs = [
                    (input_index, output_index)
                    for input_index, (next_node, output_index) in enumerate(inputs)
                    if next_node is node
                ]
                user.call.gradient_link = GradientLink(node.call, index_pairs)


class CallRecord:
    """The state of a call that its owner keeps until the backward pass."""

    def __init__(self, inputs: Sequence[Tensor], bundle: TensorBundle) -> None:
        self.inputs: Sequence[Tensor] | None = inputs
        self.requires_grad = [meta.requires_grad for meta in bundle.metas]
        self.refs = bundle.refs
        self.gradients: list[Tensor | None] = [None] * len(bundle.metas)
        self.has_calls = False  # True if it called several modules of other partitions itself, which may be linked.
        self._edges: list[GradientEdge | None] = []
        self._missing: set[int] = set()

    @property
    def is_finished(self) -> bool:
        """True once every output's gradient has arrived."""
        return not self._missing

    def keep_graph(self, outputs: Sequence[Tensor]) -> bool:
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
            if self.has_calls:
                link_calls(edge.node for edge, _ in roots)
            torch.autograd.backward([edge for edge, _ in roots], [gradient for _, gradient in roots])
        self._missing -= {number for number, gradient in enumerate(gradients) if gradient is not None}
        input_gradients, self.gradients = self.gradients, [None] * len(self.requires_grad)
        return input_gradients


class EntryNode(torch.autograd.Function):
    """The owner's first node of a call. Its outputs are the call's inputs, which a module may change in place."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, record: CallRecord) -> tuple[Tensor, ...]:
        ctx.record = record
        ctx.set_materialize_grads(False)
        assert record.inputs is not None
        ctx.mark_non_differentiable(
            *(
                tensor
                for tensor, requires_grad in zip(record.inputs, record.requires_grad, strict=True)
                if not requires_grad
            )
        )
        return tuple(record.inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:
        ctx.record.gradients = list(gradients)
        return None, None


class NonLeaf(torch.autograd.Function):
    """Makes a received tensor, which is a leaf of the graph, into one that a module may change in place."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient
