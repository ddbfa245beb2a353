"""offload_activations: the inputs of checkpointed modules wait for the backward pass in the host's memory.

They go there when autograd saves them; a tensor that is there already stays, as a script's mask or the empty tensor
that torch 2.9 saves with each call. When the backward pass needs those of one module, the copies back of the
`activation_loading_horizon` modules called before it, which it needs next, start as well.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

# Copies a tensor to the host's memory and returns the copy.
Store = Callable[[torch.Tensor], Any]
# Starts the copy back, and returns a function that waits for it.
Load = Callable[[Any], Callable[[], torch.Tensor]]


class Offload:
    """Keeps the inputs of modules that are on *device* by *store* and *load*, *horizon* modules ahead."""

    def __init__(self, store: Store, load: Load, horizon: int, device: torch.device) -> None:
        self.store, self.load, self.horizon, self.device = store, load, horizon, device
        self._last = threading.local()

    def call(self) -> AbstractContextManager[Any]:
        """Store what autograd saves in the block: one module's inputs. A thread's calls follow each other."""
        this = self._last.call = _Call(self, getattr(self._last, "call", None))
        return torch.autograd.graph.saved_tensors_hooks(this.pack, this.unpack)


class _Call:
    def __init__(self, owner: Offload, previous: "_Call | None") -> None:
        self._owner, self._before = owner, previous
        self._stored: list[Any] = []
        self._loading: dict[int, Callable[[], torch.Tensor]] = {}
        self._is_used = False

    def pack(self, tensor: torch.Tensor) -> int | torch.Tensor:
        if tensor.device.type != self._owner.device.type:
            return tensor
        self._stored.append(self._owner.store(tensor))
        return len(self._stored) - 1

    def unpack(self, packed: int | torch.Tensor) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        call: _Call | None = self
        for _ in range(self._owner.horizon + 1):
            if call is None:
                break
            call._start()
            call = call._before
        self._is_used, self._before = True, None
        loading = self._loading.pop(packed, None)
        return (loading or self._owner.load(self._stored[packed]))()

    def _start(self) -> None:
        if not self._is_used and not self._loading:
            self._loading = {number: self._owner.load(stored) for number, stored in enumerate(self._stored)}


active: Offload | None = None


def start_offloading(device: torch.device, horizon: int) -> None:
    """Offload from *device* from now on; not from a CPU, whose memory is the host's."""
    global active
    active = None if device.type == "cpu" else Offload(*_through_pinned_memory(device), horizon, device)


def _through_pinned_memory(device: torch.device) -> tuple[Store, Load]:
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def store(tensor: torch.Tensor) -> Any:
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(stream)
        return host

    def load(host: torch.Tensor) -> Callable[[], torch.Tensor]:
        with torch.cuda.stream(stream):
            back = host.to(device, non_blocking=True)
            done = stream.record_event()

        def wait() -> torch.Tensor:
            current = torch.cuda.current_stream(device)
            current.wait_event(done)
            back.record_stream(current)
            return back

        return wait

    return store, load
