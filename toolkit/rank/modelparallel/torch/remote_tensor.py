"""Remote tensors: outputs that stay on the rank that made them, until another rank needs their data.

A module's large outputs stay with its rank. The caller gets a RemoteTensor: a tensor with a shape and a node in the
autograd graph, but without data. If it is passed to another module of that rank, or of a third one, the message has a
reference (TensorRef) in its place, and so it does for the gradient: a chain of calls costs no transfers through the
caller. Any other use fetches the data, once, and the next such output then comes with its data at once.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from toolkit.rank.frameworks.torch.tensors import disable_torch_function, get_version, make_wrapper, pytree
from toolkit.rank.modelparallel.torch import wire

# Smaller tensors come with the answer: a message of their own would cost more than their data.
MIN_REMOTE_BYTES = 16 << 10


class TensorRef(NamedTuple):
    """Refers to a tensor that another rank keeps.

    `rank`: the rank that keeps it. `key`: its key there (that of the message that brought it, and a number).
    """

    rank: int
    key: tuple[int, ...]


class TensorStore(Protocol):
    """Fetches the data of remote tensors and releases it."""

    def fetch(self, ref: TensorRef) -> Tensor:
        """Return the data."""

    def release(self, ref: TensorRef) -> None:
        """Note that this rank does not need the data any more."""


class RemoteTensor(Tensor):
    """A tensor whose data the rank of `ref` keeps. `on_fetch` is called when its data is needed here."""

    ref: TensorRef

    @staticmethod
    def __new__(cls, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *_: Any) -> "RemoteTensor":
        tensor: RemoteTensor = make_wrapper(cls, shape, dtype, device)
        return tensor

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        ref: TensorRef,
        store: TensorStore,
        on_fetch: Callable[[], None],
    ) -> None:
        self.ref = ref
        self._store = store
        self._on_fetch = on_fetch
        self._data: Tensor | None = None
        self._materialized: Tensor | None = None
        weakref.finalize(self, store.release, ref).atexit = False

    def local_data(self) -> Tensor:
        """Return its data, outside of the graph; the first call fetches it."""
        if self._data is None:
            self._on_fetch()
            self._data = self._store.fetch(self.ref)
        return self._data

    def materialize(self) -> Tensor:
        """Return an ordinary tensor with the same data and the same gradient."""
        needs_graph = torch.is_grad_enabled() and self.requires_grad
        if self._materialized is None or (needs_graph and not self._materialized.requires_grad):
            data = self.local_data()
            self._materialized = (
                _Materialize.apply(self, data) if needs_graph else data.detach()  # type: ignore[no-untyped-call]
            )
        return self._materialized

    def as_argument(self) -> Tensor:
        """Return the tensor to pass on: this reference, or the local copy if it was modified in place."""
        local = self._materialized
        return local if local is not None and get_version(local) else self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in METADATA_FUNCTIONS:
            with disable_torch_function():
                return func(*args, **(kwargs or {}))
        args, kwargs = pytree.tree_map(materialize, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # The autograd engine's own operations, such as the sum of two gradients.
        args, kwargs = pytree.tree_map(
            lambda leaf: leaf.local_data() if isinstance(leaf, RemoteTensor) else leaf, (args, kwargs or {})
        )
        return func(*args, **kwargs)


# The functions that need no data.
METADATA_FUNCTIONS = frozenset(
    [
        *(
            getattr(Tensor, name).__get__
            for name in (
                "shape",
                "dtype",
                "device",
                "layout",
                "ndim",
                "requires_grad",
                "grad_fn",
                "is_leaf",
                "retains_grad",
                "is_meta",
                "is_cuda",
                "is_sparse",
            )
        ),
        *(
            getattr(Tensor, name)
            for name in (
                "size",
                "dim",
                "numel",
                "element_size",
                "is_floating_point",
                "is_complex",
                "is_contiguous",
                "__len__",
                "register_hook",
            )
        ),
    ]
)


def materialize(value: Any) -> Any:
    """Return *value*, an ordinary tensor in its stead if it is a RemoteTensor."""
    return value.materialize() if isinstance(value, RemoteTensor) else value


def as_argument(tensor: Tensor) -> Tensor:
    """Return the tensor to pass on as an argument in place of *tensor*."""
    return tensor.as_argument() if isinstance(tensor, RemoteTensor) else tensor


def ref_of(tensor: Tensor | None) -> TensorRef | None:
    """Return the reference of *tensor*, None if its data is on this rank."""
    return tensor.ref if isinstance(tensor, RemoteTensor) else None


class TensorBundle(NamedTuple):
    """The tensors of a message. Those with a reference are not sent; the buffers of the others come with the message.

    `metas`: of each tensor. `refs`: of each tensor, None for one whose buffer is sent.
    """

    metas: list[wire.TensorMeta]
    refs: list[TensorRef | None]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], refs: Sequence[TensorRef | None]) -> "tuple[TensorBundle, list[memoryview]]":
        """Return the bundle of *tensors*, and the buffers of those without a reference."""
        sent = [tensor for tensor, ref in zip(tensors, refs, strict=True) if ref is None]
        return cls(wire.describe(tensors), list(refs)), wire.get_buffers(sent)

    def unpack(
        self,
        buffers: Sequence[memoryview],
        device: torch.device,
        resolve: Callable[[wire.TensorMeta, TensorRef], Tensor],
    ) -> list[Tensor]:
        """Return the tensors; *resolve* gives those with a reference."""
        sent = [meta for meta, ref in zip(self.metas, self.refs, strict=True) if ref is None]
        received = iter(wire.rebuild_tensors(sent, buffers, device))
        return [
            next(received) if ref is None else resolve(meta, ref)
            for meta, ref in zip(self.metas, self.refs, strict=True)
        ]


class _Materialize(torch.autograd.Function):
    """The node between a RemoteTensor and its data on this rank."""

    @staticmethod
    def forward(ctx: Any, remote: RemoteTensor, data: Tensor) -> Tensor:
        return data.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
