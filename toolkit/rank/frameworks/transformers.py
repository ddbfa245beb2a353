"""Private methods of Hugging Face's transformers, read in 5.23.0 (modeling_utils.py, training_args.py, trainer.py).

Each function replace_* puts another method in the place of one. If there is none, one line says so, and this method
stays as it is; the others are replaced all the same. *original* is the method that was there, as a function.
"""

from .private_names import find_or_report

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

READ_IN = "read in transformers 5.23"


def find_weight_initializer(model: "Any") -> "Callable[[Any], object] | None":
    """Return the method by which *model* gives values to the parameters of a module in it, None: it has none, as any
    model that is not of transformers."""
    initialize = getattr(model, "_init_weights", None)
    return initialize if callable(initialize) else None


def replace_device_setup(module: "ModuleType", choose_device: "Callable[[Any], Any]") -> None:
    """Have TrainingArguments of *module* use the device that *choose_device*(arguments) returns; where that is None,
    transformers chooses."""
    original = _find(module, "TrainingArguments._setup_devices", "TrainingArguments chooses the device, CUDA's alone")
    if original is None:
        return

    def set_up(arguments: "Any") -> "Any":
        device = choose_device(arguments)
        if device is None:
            return original.__get__(arguments, type(arguments))
        arguments.distributed_state = None
        arguments._n_gpu = 0
        return device

    replacement = type(original)(set_up)
    if hasattr(replacement, "__set_name__"):
        replacement.__set_name__(module.TrainingArguments, "_setup_devices")
    module.TrainingArguments._setup_devices = replacement


def replace_model_wrapping(module: "ModuleType", make: "Callable[[Any], Callable[..., Any]]") -> None:
    """Have Trainer of *module* wrap its model by *make*(original)(trainer, model, training, dataloader)."""
    _replace(module, "_wrap_model", make, "Trainer makes no optimizer for a divided model, and evaluates another one")


def replace_checkpoint_loading(module: "ModuleType", make: "Callable[[Any], Callable[..., Any]]") -> None:
    """Have Trainer of *module* load a model by *make*(original)(trainer, resume_from_checkpoint, model)."""
    _replace(module, "_load_from_checkpoint", make, "Trainer does not resume from safetensors")


def replace_gradient_clipping(module: "ModuleType", make: "Callable[[Any], Callable[..., Any]]") -> None:
    """Have Trainer of *module* clip gradients by *make*(original)(trainer, model), which returns their norm."""
    _replace(module, "_clip_grad_norm", make, "Trainer clips by the norm of one rank's gradients")


def replace_gradient_norm(module: "ModuleType", make: "Callable[[Any], Callable[..., Any]]") -> None:
    """Have Trainer of *module* get the norm that it logs from *make*(original)(trainer, model, grad_norm)."""
    _replace(module, "_get_grad_norm", make, "Trainer logs the norm of one rank's gradients")


def _replace(module: "ModuleType", name: str, make: "Callable[[Any], Callable[..., Any]]", consequence: str) -> None:
    original = _find(module, "Trainer." + name, consequence)
    if original is not None:
        setattr(module.Trainer, name, make(original))


def _find(module: "ModuleType", path: str, consequence: str) -> "Any":
    return find_or_report(module, path, "%s (%s)" % (consequence, READ_IN))
