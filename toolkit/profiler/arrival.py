"""Waits until a rank imports a framework, and then attaches the step timer to it. It runs at the start of every Python
of a rank whose steps are measured, so it imports almost nothing.

The rank hook loads it by its path, so that it works if the rank's interpreter has no toolkit.
"""

import os
import sys

# What is watched, and the module of this package whose `attach(module)` is called once it is imported.
WATCHED = {
    "torch": "torch_hooks",
    "keras.src.callbacks.callback_list": "keras_hooks",
    "toolkit.status": "status_hooks",
}
OTHER_NAME = "_toolkit_of_the_rank_hook"
TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class StepsArrival:
    """A finder that wraps the loaders that other finders return for the modules in WATCHED."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the other finders' spec of a watched module, with its loader wrapped."""
        if name not in WATCHED:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = Attaching(spec.loader)  # type: ignore[assignment]
                return spec
        return None


class Attaching:
    """A module's own loader, which attaches the step timer after loading it."""

    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: "ModuleType") -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        attach(module.__name__)


def watch() -> None:
    """Attach to what is watched as soon as it is imported; only the first call in a process counts."""
    if any(type(finder).__name__ == StepsArrival.__name__ for finder in sys.meta_path):
        return
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # Else each trace writes lines to stderr. Read at torch's import.
    for name in WATCHED:
        if name in sys.modules:
            attach(name)
    sys.meta_path.insert(0, StepsArrival())


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
