"""torch_xla's private names, read in torch_xla 2.9.0.

Without them no collective of several ranks on CPU is true, so what needs one raises an ImportError: a script that ran
on would train each rank by itself.
"""

import sys

from .private_names import describe_missing, find_name

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

OF_MODULE = ("_xla_get_cpu_tensors", "_xla_get_default_device", "_xla_step_marker")


def is_torch_xla(module: "ModuleType") -> bool:
    """True if *module*, of the name torch_xla, is XLA's: another may have the name."""
    return hasattr(module, "_XLAC")


def check_names(module: "ModuleType") -> None:
    """Check that *module*, torch_xla, has what this file's functions need.

    Raises:
        ImportError: it has not.
    """
    paths = ["_XLAC." + name for name in OF_MODULE]
    missing = [path for path in (*paths, "core.xla_model._maybe_convert_to_cpu") if find_name(module, path) is None]
    if missing:
        raise ImportError(
            "%s, by which ranks on CPU exchange tensors: this release is not known here; install torch_xla 2.9"
            % describe_missing("torch_xla", missing[0])
        )


def copy_to_host(tensors: "Sequence[Any]") -> "list[Any]":
    """Return a copy of each of *tensors*, all on XLA's device, in the host's memory, in one transfer.

    First all operations that torch_xla has recorded are computed. torch_xla.sync would also call the step's closures.
    """
    library = sys.modules["torch_xla"]._XLAC
    library._xla_step_marker(library._xla_get_default_device(), [], wait=False, reset_scope=True)
    return library._xla_get_cpu_tensors(list(tensors))  # type: ignore[no-any-return]


def convert_to_cpu(data: "Any") -> "Any":
    """Return *data* with its tensors on the host."""
    return sys.modules["torch_xla.core.xla_model"]._maybe_convert_to_cpu(data)
