"""Private names of Keras 3 and of tf_keras (Keras 2), read in Keras 3.15.1 and tf_keras 2.21.0."""

import sys

from .private_names import MissingNameError, describe_missing, report_missing

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def find_mask(tensor: "Any") -> "Any":
    """Return the mask that a layer attached to *tensor*, None: it has none.

    A release that kept masks elsewhere would look like one without any: the layers would take no part of a batch for
    padding.
    """
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: "Any", mask: "Any") -> None:
    """Attach *mask* to *tensor*, for the next layer."""
    tensor._keras_mask = mask


def set_saved_jit(model: "Any", jit: str) -> None:
    """Have *model*, of Keras 3 and compiled, saved with jit_compile=*jit*."""
    config = getattr(getattr(model, "_compile_config", None), "config", None)
    if not isinstance(config, dict):
        report_missing("keras", "Model._compile_config.config", "a saved model is not compiled when it is loaded")
    elif "jit_compile" in config:
        config["jit_compile"] = jit


def set_legacy_jit(model: "Any", jit: "bool | None") -> None:
    """Set jit_compile of *model*, of tf_keras, whose setter would drop the functions that it has traced."""
    model._jit_compile = jit


def has_legacy_jit(model: "Any") -> bool:
    """True if *model*, of tf_keras, has what set_legacy_jit sets."""
    if hasattr(model, "_jit_compile"):
        return True
    report_missing("tf_keras", "Model._jit_compile", "fit runs natively")
    return False


def find_clipping_module() -> "ModuleType | None":
    """Return the module of Keras 3 whose clip_by_global_norm its optimizers call, None: the script has no Keras 3."""
    module = sys.modules.get("keras.src.optimizers.base_optimizer")
    if hasattr(module, "clip_by_global_norm"):
        return module
    if not getattr(sys.modules.get("keras"), "__version__", "2.").startswith("2."):
        consequence = "no line warns of an optimizer with global_clipnorm, which clips by the norm of one rank"
        report_missing("keras", "src.optimizers.base_optimizer.clip_by_global_norm", consequence)
    return None


def build_legacy_optimizer(optimizer: "Any", variables: "list[Any]") -> None:
    """Make the variables of *optimizer*, one of tf_keras.optimizers.legacy, for the model's *variables*.

    Raises:
        MissingNameError: this release has no such function; the first step makes them.
    """
    if not hasattr(optimizer, "_create_all_weights"):
        path = "optimizers.legacy.Optimizer._create_all_weights"
        raise MissingNameError("%s: restore after the first step" % describe_missing("tf_keras", path))
    optimizer._create_all_weights(variables)
