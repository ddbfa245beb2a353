"""Waits until a rank imports torch.distributed, and then attaches the answers to requests for its collectives. It runs
at the start of every Python of a rank, so it imports almost nothing.

The rank hook loads it by its path, so that it works if the rank's interpreter has no toolkit.
"""

import os
import sys

MODULE = "torch.distributed.distributed_c10d"
TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    package: Callable[[], str]


def watch(arrival: "ModuleType") -> None:
    """Attach as soon as torch.distributed is imported. *arrival*: rank/mesh/import_hooks.py."""
    global package
    package = arrival.package
    if MODULE in sys.modules:
        attach(sys.modules[MODULE])
    arrival.watch(MODULE, _load)


def _load(loader: "Any", module: "ModuleType") -> None:
    loader.exec_module(module)
    attach(module)


def attach(module: "ModuleType") -> None:
    """Attach to the imported *module*. The script runs on without a record if that fails."""
    try:
        import importlib

        answers = importlib.import_module(package() + ".rank.flight_recorder.answers")
        answers.attach(module, os.environ["TOOLKIT_COLLECTIVES"])
    except Exception as error:  # noqa: BLE001 - a torch that has another form than expected must still work
        sys.stderr.write("[toolkit] collectives are not recorded: %s: %s\n" % (type(error).__name__, error))
