"""Counts the bytes that PyTorch's forward pass saves for the backward pass."""

import threading
from contextlib import AbstractContextManager
from typing import Any

import torch

from toolkit.rank.frameworks.torch.autograd import count_saved
from toolkit.rank.frameworks.torch.tensors import get_storage_id


class SavedBytes:
    """Counts each storage once, parameters and buffers not at all; any thread may watch.

    A storage counts until its last saved tensor is released. What activation checkpointing keeps beside the graph (the
    inputs of a checkpointed function) is not counted.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._lock = threading.RLock()  # A saved tensor may be released by the collector while the lock is held.
        self._module = module
        self._model_storages: set[int] = set()  # Storages of parameters and buffers.
        self._holders: dict[int, int] = {}
        self._bytes = 0
        self._peak_bytes = 0

    def watching(self) -> AbstractContextManager[object]:
        """Count what this thread saves inside."""
        return count_saved(self._pack, _unpack)

    def take_peak(self) -> int:
        """Return the most bytes that were saved at once since the last call."""
        with self._lock:
            tensors = (*self._module.parameters(), *self._module.buffers())
            self._model_storages = {get_storage_id(tensor) for tensor in tensors if tensor.device.type != "meta"}
            peak, self._peak_bytes = self._peak_bytes, self._bytes
        return peak

    def _pack(self, tensor: Any) -> Any:
        key = get_storage_id(tensor)
        if key in self._model_storages:
            return tensor
        size = tensor.untyped_storage().nbytes()
        with self._lock:
            self._holders[key] = self._holders.get(key, 0) + 1
            if self._holders[key] == 1:
                self._bytes += size
                self._peak_bytes = max(self._peak_bytes, self._bytes)
        return _Held(self, tensor, key, size)

    def release(self, key: int, size: int) -> None:
        """Note that one saved tensor of the storage *key*, of *size* bytes, was released."""
        with self._lock:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self._bytes -= size


class _Held:
    """A saved tensor; the meter learns when it is released."""

    __slots__ = ("_key", "_meter", "_size", "tensor")

    def __init__(self, meter: SavedBytes, tensor: Any, key: int, size: int) -> None:
        self.tensor = tensor
        self._meter, self._key, self._size = meter, key, size

    def __del__(self) -> None:
        self._meter.release(self._key, self._size)


def _unpack(packed: Any) -> Any:
    return packed.tensor if isinstance(packed, _Held) else packed
