"""bfloat16 by autocast around a module: whether it can be had, and outputs in float32 again, as without it."""

import copy
import dataclasses

import torch

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any


def refusal(modules: "list[torch.nn.Module]", *, autocasts: bool) -> str:
    """Return why *modules* should not run in bfloat16, "" if they may. *autocasts*: the script uses autocast itself."""
    if autocasts:
        return "the script uses autocast itself"
    kinds = {(weight.device.type, weight.dtype) for module in modules for weight in module.parameters()}
    if any(dtype != torch.float32 for _, dtype in kinds if dtype.is_floating_point):
        return "the model's parameters are not all in float32"
    if len({device for device, _ in kinds}) > 1:
        return "the model is on several kinds of devices"
    if ("cuda", torch.float32) in kinds and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "this GPU computes bfloat16 only by emulation"
    return ""


def in_float32(output: "Any") -> "Any":
    """Return *output* of a module with its bfloat16 tensors in float32, in tuples, lists, mappings and dataclasses
    as well."""
    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype == torch.bfloat16 else output
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(in_float32(field) for field in output))
    if isinstance(output, (tuple, list)):
        return type(output)(in_float32(element) for element in output)
    if isinstance(output, dict):  # Hugging Face's ModelOutput as well, which is made from a dict.
        return type(output)({key: in_float32(element) for key, element in output.items()})
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        converted = copy.copy(output)
        for field in dataclasses.fields(output):
            if hasattr(output, field.name):
                # As the constructor of a frozen one sets it.
                object.__setattr__(converted, field.name, in_float32(getattr(output, field.name)))
        return converted
    return output
