"""JAX's private names, read in JAX 0.10.2."""

import importlib

from .private_names import find_or_report, report_missing

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

SLOW_END = "a rank that waits for one that has ended fails only after up to 300 s"


def find_distributed() -> "ModuleType | None":
    """Return the module in which JAX itself looks initialize and shutdown up, at its end as well, None: there is
    none."""
    consequence = "the job's variables do not join ranks, and " + SLOW_END
    module = _import("distributed", "initialize", consequence)
    return None if module is None or find_or_report(module, "shutdown", consequence) is None else module


def has_one_cpu_device() -> bool:
    """True if the CPU is the only backend that JAX has made, with one device. Asking makes none."""
    module = _import("xla_bridge", "_backends", SLOW_END)
    backends: dict[str, Any] = {} if module is None else module._backends
    return list(backends) == ["cpu"] and backends["cpu"].local_device_count() == 1


def replace_gloo(make: "Callable[[Callable[..., Any]], Callable[..., Any]]") -> None:
    """Have JAX connect the processes of a CPU by *make*(original), which takes the arguments of the function that was
    there and returns its result."""
    consequence = "gloo listens at the address of the machine's own name, and " + SLOW_END
    module = _import("xla_bridge", "_jax.make_gloo_tcp_collectives", consequence)
    if module is not None:
        module._jax.make_gloo_tcp_collectives = make(module._jax.make_gloo_tcp_collectives)


def _import(name: str, path: str, consequence: str) -> "Any":
    """Return the module jax._src.*name*, None, after a line of the log, if it or *path* in it is missing."""
    try:
        module = importlib.import_module("jax._src." + name)
    except ImportError:
        report_missing("jax", "_src." + name, consequence)
        return None
    return None if find_or_report(module, path, consequence) is None else module
