"""Waits until a rank imports torch_xla, and then completes it. It runs at the start of every Python of a rank, so it
imports almost nothing.

The rank hook or rank.py loads it by its path, so that it works if the rank's interpreter has no toolkit: the package is
then imported from the folder of this file.
"""

import sys

LIBRARY = "torch_xla"
TYPE_CHECKING = False  # Type checkers treat it as typing's; importing typing takes time.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class Arrival:
    """A finder that wraps the loader that another finder returns for torch_xla."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the other finders' spec for torch_xla, with its loader wrapped. A library may only ask whether
        torch_xla is installed: nothing is imported here."""
        if name != LIBRARY:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = Completing(spec.loader)  # type: ignore[assignment]
                return spec
        return None


class Completing:
    """torch_xla's own loader, which completes torch_xla after loading it."""

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
        completion = _completion()
        try:
            self._loader.exec_module(module)
        except (ImportError, OSError) as error:
            raise completion.not_loading(error) from error
        completion.complete(module)


def watch() -> None:
    """Install the finder that completes torch_xla on import, once in each process."""
    if LIBRARY not in sys.modules and not any(type(finder).__name__ == "Arrival" for finder in sys.meta_path):
        sys.meta_path.insert(0, Arrival())


def _completion() -> "Any":
    import importlib
    import importlib.util
    import os

    if "toolkit" not in sys.modules and importlib.util.find_spec("toolkit.xla") is None:
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        spec = importlib.util.spec_from_file_location(
            "toolkit", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
        )
        assert spec is not None and spec.loader is not None
        sys.modules["toolkit"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["toolkit"])
    return importlib.import_module("toolkit.xla.completion")
