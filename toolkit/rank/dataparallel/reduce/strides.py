"""CPU tensors with gaps between their elements, such as a column of a matrix.

Gloo of torch 2.13 ignores strides: from a tensor's first element on it moves as many elements as the tensor has.
all_reduce, reduce, broadcast, scatter, reduce_scatter and all_to_all_single then give wrong numbers without an error,
and write beside the tensor. Backend "smddp" moves contiguous copies of such tensors. It waits for the result, which a
copy has to take back, so an asynchronous call has ended when it returns.
"""

from collections.abc import Callable
from typing import Any


def is_strided(tensor: Any) -> bool:
    """Return whether *tensor* is dense, on the CPU, and not contiguous."""
    import torch

    return bool(tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_contiguous())


def check_writable(tensor: Any) -> None:
    """Raise ValueError for a tensor whose elements share memory (expand): they cannot take different results."""
    if is_strided(tensor) and any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        raise ValueError(
            f"expected a tensor with memory for each of its elements, found one of shape {tuple(tensor.shape)} and "
            f"strides {tensor.stride()}: reduce a copy (tensor.clone())"
        )


def write(result: Any, tensor: Any) -> None:
    """Copy *result* into *tensor* without autograd, as a collective does."""
    import torch

    with torch.inference_mode(tensor.is_inference()):
        tensor.detach().copy_(result)


def with_copies(call: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the Work of *call*, a collective whose first argument takes the results and whose second is only read.

    Raises:
        ValueError: a tensor for results stores several elements in one place.
    """
    import torch

    results: list[tuple[Any, Any]] = []

    def contiguous(nested: Any, is_result: bool) -> Any:
        if isinstance(nested, list | tuple):
            return [contiguous(part, is_result) for part in nested]
        if not isinstance(nested, torch.Tensor) or not is_strided(nested):
            return nested
        copy = nested.detach().contiguous()
        if is_result:
            check_writable(nested)
            results.append((copy, nested))
        return copy

    moved = [contiguous(argument, number == 0) for number, argument in enumerate(arguments[:2])]
    work = call(*moved, *arguments[2:], **options)
    if results:
        work.wait()
    for copy, tensor in results:
        write(copy, tensor)
    return work
