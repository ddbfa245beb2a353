"""Finds a module of the user's own code: for one that Python did not find although the code has it."""

import os
from pathlib import Path

from toolkit import folders

MOST_ENTRIES = 5000
DEPTH = 4
OTHERS = ("node_modules", "site-packages", "dist-packages")


def path_of(name: str, folder: Path) -> str:
    """Return the path of the package or module *name* below *folder*, the one nearest to it; "" if it has none.

    Only a folder with Python files is a package: others hold data, or logs of the library of that name. A folder that
    cannot be read has none to offer.
    """
    paths: list[str] = []
    root = os.fspath(folder)
    entries = folders.walk(folder, lambda _error: None, enter=lambda entry: _is_entered(entry, root))
    for count, entry in enumerate(entries):
        if count >= MOST_ENTRIES:
            break
        if entry.name == f"{name}.py" or (entry.name == name and _is_package(entry)):
            paths.append(entry.path)
    return min(paths, key=lambda path: (path.count("/"), path), default="")


def _is_entered(entry: "os.DirEntry[str]", root: str) -> bool:
    depth = entry.path.count("/") - root.count("/")
    return not entry.name.startswith((".", "__")) and entry.name not in OTHERS and depth < DEPTH


def _is_package(entry: "os.DirEntry[str]") -> bool:
    try:
        return any(name.endswith(".py") for name in folders.names(entry.path))
    except OSError:
        return False
