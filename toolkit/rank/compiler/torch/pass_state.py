"""Restores the state that a failed forward pass has changed, before the pass is run again: buffers (BatchNorm's
statistics) and the states of random number generators."""

import random
import sys

import torch

from ...frameworks.torch.tensors import copy_all

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

# Larger buffers are mostly tables (masks, positions), which no forward pass changes. A copy of them in each pass would
# cost more than it is worth: they are copied where a failure is likely, in passes that compile.
MOST_BUFFER_BYTES = 1 << 20


class PassState:
    """A copy of the state that a forward pass of *module* may change, taken anew by each `save`."""

    def __init__(self, module: "torch.nn.Module") -> None:
        self._module = module
        self._layout: list[tuple[torch.Tensor, torch.dtype, torch.Size]] = []
        self._buffers: list[torch.Tensor] = []
        self._large: list[torch.Tensor] = []
        self._large_copies: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._cuda = sorted({weight.device.index for weight in module.parameters() if weight.device.type == "cuda"})
        self._random: Any = None
        self._numpy: Any = None
        self._states: list[torch.Tensor] = []

    def save(self, *, with_python: bool, with_large: bool) -> None:
        """Copy the state. *with_python*: that of Python's random and of NumPy's, too, whose copies cost 60 us.
        *with_large*: large buffers, too."""
        self._match_buffers()
        self._large_copies = [buffer.detach().clone() for buffer in self._large] if with_large else []
        if self._buffers:
            with torch.no_grad():
                copy_all(self._copies, self._buffers)
        self._states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(index) for index in self._cuda)]
        self._random = random.getstate() if with_python else None
        numpy_random = sys.modules.get("numpy.random") if with_python else None
        self._numpy = numpy_random.get_state() if numpy_random is not None else None

    def _match_buffers(self) -> None:
        """Make copies for the buffers that the module has now: the script may have replaced a module, or its type."""
        buffers = list(self._module.buffers())  # 0.5 ms for 300 modules.
        layout = self._layout
        if len(buffers) == len(layout) and all(
            buffer is saved and buffer.dtype == dtype and buffer.shape == shape
            for buffer, (saved, dtype, shape) in zip(buffers, layout)  # noqa: B905 - Python 3.8 has no strict.
        ):
            return
        self._layout = [(buffer, buffer.dtype, buffer.shape) for buffer in buffers]
        self._buffers = [buffer for buffer in buffers if _size_bytes(buffer) <= MOST_BUFFER_BYTES]
        self._large = [buffer for buffer in buffers if _size_bytes(buffer) > MOST_BUFFER_BYTES]
        self._copies = [buffer.detach().clone() for buffer in self._buffers]

    def restore(self) -> None:
        """Set the state to that of the last `save`."""
        with torch.no_grad():
            pairs = [*zip(self._buffers, self._copies)]  # noqa: B905 - Python 3.8 has no strict.
            pairs += zip(self._large, self._large_copies)  # noqa: B905
            for buffer, copy in pairs:
                if not torch.equal(buffer, copy):
                    buffer.copy_(copy)
        self._large_copies = []
        torch.set_rng_state(self._states[0])
        for index, state in zip(self._cuda, self._states[1:]):  # noqa: B905
            torch.cuda.set_rng_state(state, index)
        if self._random is not None:
            random.setstate(self._random)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)


def _size_bytes(tensor: "torch.Tensor") -> int:
    return tensor.numel() * tensor.element_size()
