"""Measures the costs of a model's modules, each by itself, in whole runs of one microbatch on one rank.

One run counts: calls, tensors in and out, saved activations, floating-point operations. With `times`, two more runs are
timed, forward and backward, and modules of equal class, parameters and tensors have the time of the fastest of them. A
node of the backward pass belongs to the module whose forward pass made it; autograd numbers nodes in the order of their
making. Recomputation inside the backward pass (activation checkpointing) is time of the recomputed modules.

Everything of a run is on the calling thread. The caller puts back what the runs change (deciding.py).
"""

import contextlib
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from toolkit.rank.frameworks.torch.autograd import count_saved, get_next_node_number, get_node_number, is_in_backward
from toolkit.rank.frameworks.torch.modules import get_own_parameters
from toolkit.rank.frameworks.torch.tensors import (
    TorchDispatchMode,
    get_operator,
    get_storage_id,
    is_attention_on_cpu,
    pytree,
)

TIMED_RUNS = 2
# The rates of a processor, for estimates of the time of untimed modules. Only their ratio matters to the partition.
OPERATIONS_PER_S = 1e11
BYTES_PER_S = 1e10
# The backward pass of a layer computes the gradients of its input and of its parameters.
WITH_BACKWARD = 3


class ModuleCosts:
    """The costs of one module by itself, without the modules that it calls."""

    def __init__(self) -> None:
        self.first_call = -1  # The number of its first call among those of all modules, -1: it is never called.
        self.calls = 0
        self.recomputations = 0  # Calls inside the backward pass.
        self.input_bytes = 0
        self.output_bytes = 0
        self.saved_bytes = 0  # Saved for the backward pass.
        self.operations = 0  # Floating-point operations.
        self.result_bytes = 0  # Of the results of all operations.
        self.time_s = 0.0  # Forward and backward.

    @property
    def estimated_s(self) -> float:
        """Seconds of forward and backward by operations and by bytes of results."""
        return WITH_BACKWARD * (self.operations / OPERATIONS_PER_S + self.result_bytes / BYTES_PER_S)


class Measurement:
    """The costs of the modules of *root* by path, after `run`.

    `uses`: (module, owner) where the module computes with a parameter that only the owner holds: the two need one
    device, as an attention layer and the projection whose weight it takes without calling it.
    """

    def __init__(self, root: nn.Module, call_once: Callable[[], Any]) -> None:
        self.costs = {path: ModuleCosts() for path, _ in root.named_modules()}
        self._root = root
        self._call_once = call_once
        self.uses: set[tuple[str, str]] = set()
        self._kept = {get_storage_id(buffer) for buffer in root.buffers()}
        self._owners: dict[int, list[str]] = {}
        for path, module in root.named_modules():
            for parameter in get_own_parameters(module).values():
                self._owners.setdefault(get_storage_id(parameter), []).append(path)
        self._kept |= self._owners.keys()
        self._order = 0

    def run(self, *, times: bool) -> None:
        """Run the microbatch once, and with *times* twice more."""
        self._count()
        if times:
            runs = [self._time() for _ in range(TIMED_RUNS)]
            best: dict[Any, float] = {}
            for path, costs in self.costs.items():
                if costs.calls:
                    kind = self._kind(path)
                    here_s = min(times_s.get(path, 0.0) for times_s in runs) / costs.calls
                    best[kind] = min(here_s, best.get(kind, here_s))
            for path, costs in self.costs.items():
                costs.time_s = best[self._kind(path)] * costs.calls if costs.calls else 0.0

    def _kind(self, path: str) -> Any:
        """Return a key that modules of equal cost have in common."""
        module, costs = self._root.get_submodule(path), self.costs[path]
        shapes = tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())
        per_call = (
            costs.input_bytes / costs.calls,
            costs.output_bytes / costs.calls,
            costs.recomputations / costs.calls,
        )
        return type(module), module.extra_repr(), shapes, per_call

    def _count(self) -> None:
        stack: list[str] = []
        saved_storages: set[int] = set()

        def enter(path: str, args: Any) -> None:
            costs = self.costs[path]
            stack.append(path)
            if is_in_backward():
                costs.recomputations += 1
                return
            if costs.first_call < 0:
                costs.first_call, self._order = self._order, self._order + 1
            costs.calls += 1
            costs.input_bytes += _bytes(args)

        def leave(path: str, output: Any) -> None:
            stack.pop()
            if not is_in_backward():
                self.costs[path].output_bytes += _bytes(output)

        def pack(tensor: Tensor) -> Tensor:
            key = get_storage_id(tensor)
            if stack and not is_in_backward() and key not in saved_storages and key not in self._kept:
                saved_storages.add(key)
                saved.append(tensor.untyped_storage())
                self.costs[stack[-1]].saved_bytes += tensor.untyped_storage().nbytes()
            return tensor

        def count(func: Any, args: Any, kwargs: Any, output: Any) -> None:
            if stack:
                costs = self.costs[stack[-1]]
                costs.operations += _operations(func, args, kwargs, output)
                costs.result_bytes += 0 if func.is_view else _bytes(output)
                if not is_in_backward():
                    self._note_uses(stack[-1], (args, kwargs))

        # Alive to the end of the run: an address then stands for one storage. No tensors, whose graph holds `pack`, so
        # that one without a backward pass would never be freed.
        saved: list[torch.UntypedStorage] = []
        with _hooked(self._root, enter, leave), count_saved(pack, lambda tensor: tensor), _Operations(count):
            self._call_once()

    def _note_uses(self, path: str, values: Any) -> None:
        for leaf in pytree.tree_leaves(values):
            owners = self._owners.get(get_storage_id(leaf), ()) if isinstance(leaf, Tensor) else ()
            if owners and path not in owners:
                self.uses.add((path, owners[0]))

    def _time(self) -> dict[str, float]:
        clock = _Clock()
        numbers: list[int] = [0]  # Ascending: autograd's next number when the module at the same place began to run.
        running: list[str | None] = [None]

        def note(path: str | None) -> None:
            numbers.append(get_next_node_number())
            running.append(path)

        def enter(path: str, _args: Any) -> None:
            note(path)
            clock.push(path)

        def leave(_path: str, output: Any) -> None:
            clock.pop()
            note(clock.top)
            if clock.top is None:
                nodes_of(output)

        def nodes_of(output: Any) -> None:
            tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
            pending = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
            while pending:
                node = pending.pop()
                if node in visited:
                    continue
                visited.add(node)
                pending += [other for other, _ in node.next_functions if other is not None]
                path = running[bisect_right(numbers, get_node_number(node)) - 1]
                # Nodes that add to a parameter's gradient have the highest number, and no module.
                if path is not None and not hasattr(node, "variable"):
                    node.register_prehook(lambda *_, path=path: clock.push(path))
                    node.register_hook(lambda *_: clock.pop())

        visited: set[Any] = set()
        with _hooked(self._root, enter, leave):
            self._call_once()
        return clock.spent_s


class _Clock:
    """Seconds by name, of the innermost name at each moment."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = {}
        self._stack: list[str] = []
        self._since_s = 0.0

    @property
    def top(self) -> str | None:
        return self._stack[-1] if self._stack else None

    def push(self, name: str) -> None:
        self._book()
        self._stack.append(name)

    def pop(self) -> None:
        self._book()
        self._stack.pop()

    def _book(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now_s = time.perf_counter()
        if self._stack:
            self.spent_s[self._stack[-1]] = self.spent_s.get(self._stack[-1], 0.0) + now_s - self._since_s
        self._since_s = time.perf_counter()


class _Operations(TorchDispatchMode):
    """Calls *count*(operator, arguments, keyword arguments, result) after each operation."""

    def __init__(self, count: Callable[[Any, Any, Any, Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._count = count

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """True, torch's default, would import torch.compile's machinery: 0.7 s, for models that are not compiled."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self._count(func, args, kwargs or {}, output)
        return output


def _operations(func: Any, args: Any, kwargs: Any, output: Any) -> int:
    name = get_operator(func)
    if is_attention_on_cpu(name):
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))  # type: ignore[no-untyped-call]
    formula = flop_registry.get(name)
    return int(formula(*args, **kwargs, out_val=output)) if formula is not None else 0


@contextlib.contextmanager
def _hooked(root: nn.Module, enter: Callable[[str, Any], None], leave: Callable[[str, Any], None]) -> Iterator[None]:
    """Call enter(path, arguments) before, and leave(path, output) after each call of a module in the block."""
    handles: list[Any] = []

    def hook(module: nn.Module, path: str) -> Iterable[Any]:
        before_forward = lambda _, args, kwargs: enter(path, (args, kwargs))  # noqa: E731
        after = lambda _, __, output: leave(path, output)  # noqa: E731
        yield module.register_forward_pre_hook(before_forward, prepend=True, with_kwargs=True)
        yield module.register_forward_hook(after)

    try:
        for path, module in root.named_modules():
            handles += hook(module, path)
        yield
    finally:
        for handle in handles:
            handle.remove()


def _bytes(values: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor))
