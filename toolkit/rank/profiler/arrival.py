"""Waits until a rank imports a framework, and then attaches the step timer to it. It runs at the start of every Python
of a rank whose steps are measured, so it imports almost nothing.

The rank hook loads it by its path, so that it works if the rank's interpreter has no toolkit.
"""

import os
import sys

# The modules to wait for, and the module of this package whose `attach(module)` is called once it is imported.
WATCHED = {
    "torch": "torch_hooks",
    "torch.distributed.checkpoint": "checkpoint_hooks",
    "keras": "keras_hooks",
    "toolkit.status": "status_hooks",
}
MARK = "_toolkit_steps_watched"  # An attribute of sys: this file can be loaded twice in a process.
TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    package: Callable[[], str]


def watch(arrival: "ModuleType") -> None:
    """Attach to the modules of WATCHED as soon as they are imported; only the first call in a process counts.

    *arrival*: rank/mesh/import_hooks.py.
    """
    global package
    if hasattr(sys, MARK):
        return
    setattr(sys, MARK, True)
    package = arrival.package
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # Else each trace writes lines to stderr. Read at torch's import.
    for name in WATCHED:
        if name in sys.modules:
            attach(name)
        arrival.watch(name, _load)


def _load(loader: "Any", module: "ModuleType") -> None:
    loader.exec_module(module)
    attach(module.__name__)


def attach(name: str) -> None:
    """Attach the step timer to the imported module *name*. The script runs on unmeasured if that fails."""
    try:
        import importlib

        hooks = importlib.import_module(package() + ".rank.profiler." + WATCHED[name])
        hooks.attach(sys.modules[name])
    except Exception as error:  # noqa: BLE001 - a framework that has another form than expected must still work
        sys.stderr.write("[toolkit] steps are not measured: %s: %s: %s\n" % (name, type(error).__name__, error))
