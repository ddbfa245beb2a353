"""The program of a rank of the pytorchxla launcher: `rank.py [-m] SCRIPT ARGUMENTS...`, like torch_xla's old xla_spawn.

If the script defines `_mp_fn(index)`, rank.py imports the script and calls the function with the rank's global ordinal;
the block under `if __name__ == "__main__"` does not run. Any other script runs as if it had been started directly.
On TPU torch_xla starts one process for each chip itself: there rank.py passes the function to torch_xla.launch.

The launcher starts this file by its path in the rank's interpreter, which need not have the toolkit.
"""

import ast
import importlib
import importlib.util
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FUNCTION = "_mp_fn"


def main(argv: list[str]) -> None:
    """Run the script that *argv* names, with the arguments after it.

    Raises:
        SystemExit: no script is named, or the module does not exist.
    """
    as_module = argv[:1] == ["-m"]
    if as_module:
        del argv[0]
    if not argv:
        raise SystemExit("usage: [-m] SCRIPT ARGUMENTS...")
    sys.argv = argv
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, str(Path.cwd()) if as_module else str(Path(argv[0]).resolve().parent))
    run(argv[0], as_module=as_module)


def run_spawned(argv: list[str]) -> None:
    """Run the script of `xla_spawn [--num_gpus N] SCRIPT ...`. The job decides on the number of processes, not N."""
    while argv and argv[0].startswith("--num_"):
        del argv[: 1 if "=" in argv[0] else 2]
    main(argv)


def run(entry: str, *, as_module: bool) -> None:
    """Run the script *entry*, a file or a module's name, in this process."""
    path = _origin(entry) if as_module else Path(entry)
    if path is None or not takes_an_index(path.read_bytes()):
        if as_module:
            runpy.run_module(entry, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(entry, run_name="__main__")
        return
    sys.argv[0] = str(path)
    module = importlib.import_module(entry) if as_module else _import_script(path)
    if os.environ.get("PJRT_DEVICE", "").startswith("TPU"):
        importlib.import_module("torch_xla").launch(getattr(module, FUNCTION))
    else:
        getattr(module, FUNCTION)(int(os.environ.get("RANK", "0")))


def takes_an_index(source: bytes) -> bool:
    """Return True if *source* defines `_mp_fn` such that it can be called with only an index."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False  # Python itself reports the error when the script runs.
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == FUNCTION:
            parameters = [*node.args.posonlyargs, *node.args.args]
            required = len(parameters) - len(node.args.defaults)
            has_required_keywords = any(default is None for default in node.args.kw_defaults)
            return not has_required_keywords and required <= 1 and bool(parameters or node.args.vararg)
    return False


def _origin(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None:
        raise SystemExit(f"No module named {name}")
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _import_script(path: Path) -> ModuleType:
    """Return the script at *path* imported under its own name, so that its classes and functions can be pickled."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _watch() -> None:
    """Have torch_xla completed even if the rank hook is off."""
    _load_module("xla", "arrival").watch(_load_module("mesh", "import_hooks").watch)


def _load_module(package: str, name: str) -> Any:
    """Return a module of toolkit/rank, loaded by its path."""
    path = Path(__file__).parents[1] / package / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"toolkit_{package}_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    own_folder = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != own_folder]  # This file's folder is not the script's.
    if "toolkit_xla_arrival" not in sys.modules:
        _watch()
    main(sys.argv[1:])
