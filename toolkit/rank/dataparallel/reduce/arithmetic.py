"""The few operations on arrays that an all-reduce needs, with PyTorch, and with NumPy for ranks without PyTorch.

Both release the GIL while they add. Arrays are flat.
"""

from typing import Any, Protocol


class Arithmetic(Protocol):
    """Operations on one library's arrays."""

    def flat(self, array: Any) -> Any:
        """Return contiguous *array* as a flat one over the same memory."""

    def address(self, flat: Any) -> int:
        """Return the address of *flat*'s memory."""

    def over(self, memory: Any, dtype: Any, count: int) -> Any:
        """Return *count* elements at the beginning of *memory*."""

    def accumulator(self, dtype: Any, count: int) -> Any:
        """Return *count* elements, of any value, for sums of elements of *dtype*: 32-bit floats for 16-bit ones."""

    def add(self, first: Any, second: Any, into: Any) -> None:
        """Put the sum of *first* and *second* into *into*."""

    def scale(self, array: Any, share: float) -> None:
        """Multiply *array* by *share*."""

    def copy(self, array: Any, into: Any) -> None:
        """Copy *array*, converted to its type, into *into*."""


class TorchArithmetic:
    """PyTorch's tensors."""

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def flat(self, array: Any) -> Any:
        return array.detach().view(-1)

    def address(self, flat: Any) -> int:
        return int(flat.data_ptr())

    def over(self, memory: Any, dtype: Any, count: int) -> Any:
        return self._torch.frombuffer(memory, dtype=dtype, count=count)

    def accumulator(self, dtype: Any, count: int) -> Any:
        return self._torch.empty(count, dtype=self._torch.float32 if dtype.itemsize == 2 else dtype)

    def add(self, first: Any, second: Any, into: Any) -> None:
        self._torch.add(first, second, out=into)

    def scale(self, array: Any, share: float) -> None:
        array.mul_(share)

    def copy(self, array: Any, into: Any) -> None:
        into.copy_(array)


class NumpyArithmetic:
    """NumPy's arrays."""

    def __init__(self) -> None:
        import numpy

        self._numpy = numpy

    def flat(self, array: Any) -> Any:
        return array.reshape(-1)

    def address(self, flat: Any) -> int:
        return int(flat.__array_interface__["data"][0])  # A tenth of what `ctypes` takes.

    def over(self, memory: Any, dtype: Any, count: int) -> Any:
        return self._numpy.frombuffer(memory, dtype=dtype, count=count)

    def accumulator(self, dtype: Any, count: int) -> Any:
        return self._numpy.empty(count, self._numpy.float32 if dtype.itemsize == 2 else dtype)

    def add(self, first: Any, second: Any, into: Any) -> None:
        with self._numpy.errstate(all="ignore"):  # Infinite gradients are the script's business, as under MPI.
            self._numpy.add(first, second, out=into)

    def scale(self, array: Any, share: float) -> None:
        with self._numpy.errstate(all="ignore"):
            self._numpy.multiply(array, array.dtype.type(share), out=array)

    def copy(self, array: Any, into: Any) -> None:
        self._numpy.copyto(into, array)
