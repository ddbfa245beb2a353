"""Counts the bytes that PyTorch's forward pass saves for the backward pass."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd import graph

_hooks: Any = torch._C._autograd


def counting(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> AbstractContextManager[object]:
    """Return saved_tensors_hooks that torch.func does not refuse: they are off inside its functions."""
    if graph.disable_saved_tensors_hooks is not _set_aside:
        graph.disable_saved_tensors_hooks = _set_aside
    hooks: AbstractContextManager[object] = graph.saved_tensors_hooks(_Counter(pack), unpack)
    return hooks


class _Counter:
    """A hook that may be off for a while."""

    def __init__(self, pack: Callable[[Any], Any]) -> None:
        self.pack = pack

    def __call__(self, tensor: Any) -> Any:
        return self.pack(tensor)


_plainly_disabled = graph.disable_saved_tensors_hooks


@contextlib.contextmanager
def _set_aside(error_message: str) -> Iterator[None]:
    """As torch's own, which torch.func calls: the block begins with an error if this thread has hooks, but counters."""
    counters = []
    while (top := _hooks._top_saved_tensors_default_hooks(False)) is not None and isinstance(top[0], _Counter):
        counters.append(top)
        _hooks._pop_saved_tensors_default_hooks()
    try:
        with _plainly_disabled(error_message):
            yield
    finally:
        for pack, unpack in reversed(counters):
            _hooks._push_saved_tensors_default_hooks(pack, unpack)


class SavedBytes:
    """Counts each storage once, parameters and buffers not at all; any thread may watch.

    A storage counts until its last saved tensor is released. What activation checkpointing keeps beside the graph (the
    inputs of a checkpointed function) is not seen.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._lock = threading.RLock()  # A saved tensor may be released by the collector while the lock is held.
        self._module = module
        self._kept: set[int] = set()  # Storages of parameters and buffers.
        self._holders: dict[int, int] = {}
        self._bytes = 0
        self._peak_bytes = 0

    def watching(self) -> AbstractContextManager[object]:
        """Count what this thread saves inside."""
        return counting(self._pack, _unpack)

    def take_peak(self) -> int:
        """Return the most bytes that were saved at once since the last call."""
        with self._lock:
            kept = (*self._module.parameters(), *self._module.buffers())
            self._kept = {_storage(tensor) for tensor in kept if tensor.device.type != "meta"}
            peak, self._peak_bytes = self._peak_bytes, self._bytes
        return peak

    def _pack(self, tensor: Any) -> Any:
        key = _storage(tensor)
        if key in self._kept:
            return tensor
        size = tensor.untyped_storage().nbytes()
        with self._lock:
            self._holders[key] = self._holders.get(key, 0) + 1
            if self._holders[key] == 1:
                self._bytes += size
                self._peak_bytes = max(self._peak_bytes, self._bytes)
        return _Held(self, tensor, key, size)

    def release(self, key: int, size: int) -> None:
        """One saved tensor less has the storage *key* of *size* bytes."""
        with self._lock:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self._bytes -= size


class _Held:
    """A saved tensor; its end is told to the meter."""

    __slots__ = ("_key", "_meter", "_size", "tensor")

    def __init__(self, meter: SavedBytes, tensor: Any, key: int, size: int) -> None:
        self.tensor = tensor
        self._meter, self._key, self._size = meter, key, size

    def __del__(self) -> None:
        self._meter.release(self._key, self._size)


def _unpack(packed: Any) -> Any:
    return packed.tensor if isinstance(packed, _Held) else packed


def _storage(tensor: Any) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
