"""Tensors that stay on the rank that made them, until somebody else needs their data.

A module's large outputs stay with its rank. The caller gets a Far: a tensor with a shape and a place in the graph, but
without data. Given to another module of that rank, or of a third one, it goes as a reference, and so does its gradient;
so a chain of calls costs no transfers through the caller. Any other use fetches the data, once, and the next such
output then comes with its data at once.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from toolkit.rank.modelparallel.torch import wire

# Smaller tensors come with the answer: a message of their own would cost more than their data.
FROM_BYTES = 16 << 10


class Place(NamedTuple):
    """Where a tensor is: the rank that keeps it, and its key there (of the message that brought it, and a number)."""

    rank: int
    key: tuple[int, ...]


class Source(Protocol):
    """Knows how to get the data of a place."""

    def fetch(self, place: Place) -> Tensor:
        """Return the data."""

    def release(self, place: Place) -> None:
        """Nobody here needs it any more."""


class Far(Tensor):
    """A tensor whose data is at `place`. `on_fetch` is called when its data is needed here."""

    place: Place

    @staticmethod
    def __new__(cls, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *_: Any) -> "Far":
        made: Far = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        return made

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        place: Place,
        source: Source,
        on_fetch: Callable[[], None],
    ) -> None:
        self.place = place
        self._source = source
        self._on_fetch = on_fetch
        self._data: Tensor | None = None
        self._near: Tensor | None = None
        weakref.finalize(self, source.release, place).atexit = False

    def data_here(self) -> Tensor:
        """Return its data, outside of the graph."""
        if self._data is None:
            self._on_fetch()
            self._data = self._source.fetch(self.place)
        return self._data

    def near(self) -> Tensor:
        """Return an ordinary tensor instead of this one, in its place in the graph."""
        needs_graph = torch.is_grad_enabled() and self.requires_grad
        if self._near is None or (needs_graph and not self._near.requires_grad):
            data = self.data_here()
            self._near = _Near.apply(self, data) if needs_graph else data.detach()  # type: ignore[no-untyped-call]
        return self._near

    def current(self) -> Tensor:
        """Return what stands for it as an argument: itself, unless its data was changed here in place."""
        return self if self._near is None or not self._near._version else self._near

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PASSIVE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        args, kwargs = tree_map(near, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # The autograd engine's own operations, such as the sum of two gradients.
        args, kwargs = tree_map(lambda one: one.data_here() if isinstance(one, Far) else one, (args, kwargs or {}))
        return func(*args, **kwargs)


# What needs no data.
PASSIVE = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad")),
        *(getattr(Tensor, name).__get__ for name in ("grad_fn", "is_leaf", "retains_grad", "is_meta")),
        *(getattr(Tensor, name).__get__ for name in ("is_cuda", "is_sparse")),
        *(getattr(Tensor, name) for name in ("size", "dim", "numel", "element_size", "is_floating_point")),
        *(getattr(Tensor, name) for name in ("is_complex", "is_contiguous", "__len__", "register_hook")),
    ]
)


def near(value: Any) -> Any:
    """Return *value*, an ordinary tensor in its stead if it is a Far."""
    return value.near() if isinstance(value, Far) else value


def current(tensor: Tensor) -> Tensor:
    """Return what stands for *tensor* as an argument."""
    return tensor.current() if isinstance(tensor, Far) else tensor


def place_of(tensor: Tensor | None) -> Place | None:
    """Return where *tensor*'s data is, None: here."""
    return tensor.place if isinstance(tensor, Far) else None


class Parcel(NamedTuple):
    """Tensors of a message: those without a place come as its buffers, of the others the message says the place."""

    forms: list[wire.Form]
    places: list[Place | None]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], places: Sequence[Place | None]) -> "tuple[Parcel, list[memoryview]]":
        """Return the parcel of *tensors*, and the buffers of those without a place."""
        here = [tensor for tensor, place in zip(tensors, places, strict=True) if place is None]
        return cls(wire.forms(tensors), list(places)), wire.buffers(here)

    def unpacked(
        self, buffers: Sequence[memoryview], device: torch.device, found: Callable[[wire.Form, Place], Tensor]
    ) -> list[Tensor]:
        """Return the tensors; *found* gives those with a place."""
        here = [form for form, place in zip(self.forms, self.places, strict=True) if place is None]
        arrived = iter(wire.tensors_of(here, buffers, device))
        return [
            next(arrived) if place is None else found(form, place)
            for form, place in zip(self.forms, self.places, strict=True)
        ]


class _Near(torch.autograd.Function):
    """The node between a Far and its data here."""

    @staticmethod
    def forward(ctx: Any, far: Far, data: Tensor) -> Tensor:
        return data.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
