"""Waits until a script imports the modules of Hugging Face's transformers that use the library, and adapts them.

The rank hook loads it by its path at the start of every Python of a rank, so it imports almost nothing.
"""

# Each watched module, and the function of torch/hugging_face.py that adapts it.
WATCHED = {"transformers.training_args": "adapt_arguments", "transformers.trainer": "adapt_trainer"}
TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def watch(watch_module: "Callable[[str, Callable[[Any, ModuleType], None]], None]") -> None:
    """Adapt the watched modules as soon as they are imported; *watch_module* is `watch` of
    rank/mesh/import_hooks.py."""
    for name in WATCHED:
        watch_module(name, _load)


def _load(loader: "Any", module: "ModuleType") -> None:
    loader.exec_module(module)
    # Without model parallelism, or with AWS's own library, transformers stays as it is.
    init = getattr(getattr(module, "smp", None), "init", None)
    if getattr(init, "__module__", "").startswith("toolkit."):
        from toolkit.rank.modelparallel.torch import hugging_face

        getattr(hugging_face, WATCHED[module.__name__])(module)
