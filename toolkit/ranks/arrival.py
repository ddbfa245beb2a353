"""Calls a function in place of a module's loading, when the script imports the module: how the toolkit attaches to
libraries without importing them. It runs at the start of every Python of a rank, so it imports almost nothing.

The rank hook loads it by its path, so that it works if the rank's interpreter has no toolkit.
"""

import sys

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Load = Callable[[Any, ModuleType], None]


class ModuleArrival:
    """The finder, one in each process, that wraps the loaders that other finders return for the modules in `loads`."""

    def __init__(self) -> None:
        self.loads: dict[str, Load] = {}

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
                    spec.loader = _Loader(spec.loader, self.loads[name])  # type: ignore[assignment]
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
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: "ModuleType") -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._load(self._loader, module)


def watch(name: str, load: "Load") -> None:
    """Call *load*(loader, module) when the module *name* is imported; it must call loader.exec_module(module).

    Of several calls for one name the first counts. A module that is imported already is left as it is.
    """
    finder = next((each for each in sys.meta_path if type(each).__name__ == ModuleArrival.__name__), None)
    if finder is None:
        finder = ModuleArrival()
        sys.meta_path.insert(0, finder)
    finder.loads.setdefault(name, load)  # type: ignore[attr-defined]
