"""Private names of torch's tensors."""

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..private_names import MissingNameError, describe_missing, find_name

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from torch import Tensor

__all__ = ["TorchDispatchMode", "pytree"]

# Below torch.Tensor.
REQUIRED = ("_version", "_make_wrapper_subclass")


def get_version(tensor: "Tensor") -> int:
    """Return the number of changes of *tensor* in place; inference tensors have none."""
    return 0 if tensor.is_inference() else tensor._version


def get_storage_id(tensor: "Tensor") -> int:
    """Return the address of *tensor*'s storage."""
    address: int = tensor.untyped_storage()._cdata
    return address


def get_parts(tensor: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return the indices and values of a sparse *tensor*, also of one whose indices repeat."""
    return tensor._indices(), tensor._values()


def is_used(tensor: "Tensor") -> bool:
    """Return whether an autograd graph may hold *tensor*: False, where torch does not count its users."""
    count_users = getattr(tensor, "_use_count", None)
    return count_users is not None and count_users() > 1


def make_wrapper(kind: "type[Tensor]", shape: "Sequence[int]", dtype: "torch.dtype", device: "torch.device") -> "Any":
    """Return a tensor of the subclass *kind* that has no storage."""
    return torch.Tensor._make_wrapper_subclass(kind, shape, dtype=dtype, device=device)


def swap_tensors(tensor: "Tensor", other: "Tensor") -> None:
    """Swap the contents and classes of two tensors, also of one that a graph or a weak reference holds.

    torch.utils.swap_tensors does the same, and refuses such a tensor.
    """
    swap_impl = find_name(torch, "_C._swap_tensor_impl")
    if swap_impl is None:
        torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]
        return
    tensor.__class__, other.__class__ = other.__class__, tensor.__class__
    tensor.__dict__, other.__dict__ = other.__dict__, tensor.__dict__
    swap_impl(tensor, other)


def copy_all(targets: "list[Tensor]", sources: "list[Tensor]") -> None:
    """Copy each of *sources* into the same entry of *targets*, in one call where torch has it."""
    copy_each = getattr(torch, "_foreach_copy_", None)
    if copy_each is not None:
        copy_each(targets, sources)
        return
    for target, source in zip(targets, sources):  # noqa: B905 - Python 3.8 has no strict.
        target.copy_(source)


def disable_torch_function() -> "AbstractContextManager[object]":
    """Return a context in which tensors of subclasses are ordinary tensors for torch's functions."""
    context: AbstractContextManager[object] = torch._C.DisableTorchFunctionSubclass()
    return context


def get_operator(function: "Any") -> "Any":
    """Return the operator of *function*, one of its overloads."""
    return getattr(function, "_overloadpacket", function)


def is_attention_on_cpu(operator: "Any") -> bool:
    """Return whether *operator* is the attention of CPUs, for which torch's counter of operations has no formula."""
    attention = find_name(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
    return attention is not None and operator is attention


def init_scale(scaler: "torch.amp.GradScaler", device: "torch.device") -> None:
    """Make the scale of *scaler*, which torch makes at the first loss, now, on *device*.

    Raises:
        MissingNameError: torch does not tell whether it is made.
    """
    if not hasattr(scaler, "_scale"):
        raise MissingNameError(describe_missing("torch", "amp.GradScaler._scale"))
    if scaler.is_enabled() and scaler._scale is None:
        scaler._lazy_init_scale_growth_tracker(device)
