"""Waits until a rank imports torch_xla, and then completes it. It runs at the start of every Python of a rank, so it
imports almost nothing.

The rank hook or rank.py loads it by its path, so that it works if the rank's interpreter has no toolkit: the package is
then imported from the folder of this file.
"""

import sys

LIBRARY = "torch_xla"
TYPE_CHECKING = False  # Type checkers treat it as typing's; importing typing takes time.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def watch(watch_module: "Callable[[str, Callable[[Any, ModuleType], None]], None]") -> None:
    """Have torch_xla completed on import; *watch_module* is `watch` of rank/mesh/import_hooks.py."""
    if LIBRARY not in sys.modules:
        watch_module(LIBRARY, _load)


def _load(loader: "Any", module: "ModuleType") -> None:
    completion = _import_completion()
    try:
        loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise completion.loading_error(error) from error
    completion.complete(module)


def _import_completion() -> "Any":
    import importlib
    import importlib.util
    import os

    if "toolkit" not in sys.modules and not _is_importable("toolkit.rank.xla"):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        spec = importlib.util.spec_from_file_location(
            "toolkit", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
        )
        assert spec is not None and spec.loader is not None
        sys.modules["toolkit"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["toolkit"])
    return importlib.import_module("toolkit.rank.xla.completion")


def _is_importable(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # A package above it is missing: the script may have another one called toolkit.
        return False
