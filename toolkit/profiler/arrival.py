"""Waits until a rank imports a framework, and then attaches the step timer to it. It runs at the start of every Python
of a rank whose steps are measured, so it imports almost nothing.

The rank hook loads it by its path, so that it works if the rank's interpreter has no toolkit.
"""

import os
import sys

# What is watched, and the module of this package whose `attach(module)` is called once it is imported.
WATCHED = {
    "torch": "torch_hooks",
    "torch.distributed.checkpoint": "checkpoint_hooks",
    "keras.src.callbacks.callback_list": "keras_hooks",
    "keras.src.optimizers.base_optimizer": "loop_hooks",
    "toolkit.status": "status_hooks",
}
OTHER_NAME = "_toolkit_of_the_rank_hook"
MARK = "_toolkit_steps_watched"  # An attribute of sys: this file can be loaded twice in a process.
TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def watch(watch_module: "Callable[[str, Callable[[Any, ModuleType], None]], None]") -> None:
    """Attach to what is watched as soon as it is imported; only the first call in a process counts. *watch_module* is
    `watch` of ranks/arrival.py."""
    if hasattr(sys, MARK):
        return
    setattr(sys, MARK, True)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # Else each trace writes lines to stderr. Read at torch's import.
    for name in WATCHED:
        if name in sys.modules:
            attach(name)
        watch_module(name, _load)


def _load(loader: "Any", module: "ModuleType") -> None:
    loader.exec_module(module)
    attach(module.__name__)


def attach(name: str) -> None:
    """Attach the step timer to the imported module *name*. The script runs on unmeasured if that fails."""
    try:
        import importlib

        hooks = importlib.import_module(_package() + ".profiler." + WATCHED[name])
        hooks.attach(sys.modules[name])
    except Exception as error:  # noqa: BLE001 - a framework that looks different from those known must still work
        sys.stderr.write("[toolkit] steps are not measured: %s: %s: %s\n" % (name, type(error).__name__, error))


def _package() -> str:
    """Return the name below which this toolkit can be imported here: its own, unless that name is another's, or
    nothing's."""
    import importlib.util

    start = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__init__.py")
    known = sys.modules.get("toolkit")
    spec = importlib.util.find_spec("toolkit") if known is None else None
    origin = getattr(known, "__file__", None) if known is not None else getattr(spec, "origin", None)
    if origin is not None and os.path.realpath(origin) == os.path.realpath(start):
        return "toolkit"
    if OTHER_NAME not in sys.modules:
        own = importlib.util.spec_from_file_location(
            OTHER_NAME, start, submodule_search_locations=[os.path.dirname(start)]
        )
        assert own is not None and own.loader is not None
        sys.modules[OTHER_NAME] = importlib.util.module_from_spec(own)
        own.loader.exec_module(sys.modules[OTHER_NAME])
    return OTHER_NAME
