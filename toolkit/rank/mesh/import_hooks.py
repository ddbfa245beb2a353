"""Calls a function in place of a module's loading, when the script imports the module: how the toolkit attaches to
libraries without importing them. It runs at the start of every Python of a rank, so it imports almost nothing.

The rank hook loads it by its path, so that it works if the rank's interpreter has no toolkit.
"""

import sys

OTHER_NAME = "_toolkit_of_the_rank_hook"
TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Load = Callable[[Any, ModuleType], None]


class ModuleArrival:
    """The finder, one in each process, that wraps the loaders that other finders return for the modules in `loads`.

    Of several functions for one module each gets a loader that calls the one before it.
    """

    def __init__(self) -> None:
        self.loads: dict[str, list[Load]] = {}

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the other finders' spec of a watched module, with its loader wrapped. A library may only ask whether
        the module is installed: nothing is imported here."""
        if name not in self.loads:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    for load in self.loads[name]:
                        spec.loader = _Loader(spec.loader, load)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """A module's own loader, but for `exec_module`."""

    def __init__(self, loader: "Any", load: "Load") -> None:
        self._loader = loader
        self._load = load

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: "ModuleType") -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._load(self._loader, module)


def watch(name: str, load: "Load") -> None:
    """Call *load*(loader, module) when the module *name* is imported; it must call loader.exec_module(module).

    A second call for the same name from the same file changes nothing: a file can be loaded twice in a process. A
    module that is imported already is left as it is.
    """
    finder = next(
        (candidate for candidate in sys.meta_path if type(candidate).__name__ == ModuleArrival.__name__), None
    )
    if finder is None:
        finder = ModuleArrival()
        sys.meta_path.insert(0, finder)
    loads: list[Any] = finder.loads.setdefault(name, [])  # type: ignore[attr-defined]
    new: Any = load
    if all(new.__code__.co_filename != candidate.__code__.co_filename for candidate in loads):
        loads.append(load)


def package() -> str:
    """Return the name below which this toolkit can be imported here: its own, unless that name is another's, or
    nothing's."""
    import importlib.util
    import os

    mesh_folder = os.path.dirname(os.path.abspath(__file__))  # toolkit/rank/mesh
    start = os.path.join(os.path.dirname(os.path.dirname(mesh_folder)), "__init__.py")
    loaded = sys.modules.get("toolkit")
    spec = importlib.util.find_spec("toolkit") if loaded is None else None
    origin = getattr(loaded, "__file__", None) if loaded is not None else getattr(spec, "origin", None)
    if origin is not None and os.path.realpath(origin) == os.path.realpath(start):
        return "toolkit"
    if OTHER_NAME not in sys.modules:
        spec_of_toolkit = importlib.util.spec_from_file_location(
            OTHER_NAME, start, submodule_search_locations=[os.path.dirname(start)]
        )
        assert spec_of_toolkit is not None and spec_of_toolkit.loader is not None
        sys.modules[OTHER_NAME] = importlib.util.module_from_spec(spec_of_toolkit)
        spec_of_toolkit.loader.exec_module(sys.modules[OTHER_NAME])
    return OTHER_NAME
