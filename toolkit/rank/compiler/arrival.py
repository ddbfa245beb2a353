"""Waits until a rank imports a framework, and then has its models compiled. It runs at the start of every Python of a
rank that TOOLKIT_COMPILER is set for, so it imports almost nothing.

The rank hook loads it by its path, so that it works if the rank's interpreter has no toolkit.
"""

import os
import sys

# The frameworks to wait for, and the module of this package whose `attach(module, settings)` is called once one is
# imported.
WATCHED = {
    "torch": "torch.hooks",
    "tensorflow": "tensorflow.hooks",
    "keras": "tensorflow.keras_hooks",
    "tf_keras": "tensorflow.keras_hooks",
}
VARIABLE = "TOOLKIT_COMPILER"
TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    package: Callable[[], str]


def watch(arrival: "ModuleType") -> None:
    """Attach to a framework of WATCHED as soon as it is imported; *arrival* is rank/mesh/import_hooks.py."""
    global package
    package = arrival.package
    for name in WATCHED:
        arrival.watch(name, _load)


def _load(loader: "Any", module: "ModuleType") -> None:
    loader.exec_module(module)
    attach(module)


def attach(module: "ModuleType") -> None:
    """Have the models of the framework *module* compiled. The script runs without if that fails, with a line that says
    so."""
    try:
        import importlib
        import json

        hooks = importlib.import_module(package() + ".rank.compiler." + WATCHED[module.__name__])
        hooks.attach(module, json.loads(os.environ[VARIABLE]))
    except Exception as error:  # noqa: BLE001 - a framework that has another form than expected must still work
        sys.stderr.write("[toolkit] nothing is compiled: %s: %s: %s\n" % (module.__name__, type(error).__name__, error))
