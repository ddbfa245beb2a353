"""What a rank of the pytorchxla launcher runs: `rank.py [-m] SCRIPT ARGUMENTS...`, as torch_xla's old xla_spawn did.

A script with a function `_mp_fn(index)` is imported and the function called with the rank's global ordinal; the block
under `if __name__ == "__main__"` does not run then. Any other script runs as if it had been started by itself.
On TPU torch_xla starts its own processes, one a chip: there the function goes to torch_xla.launch.

Started by its path, in the rank's interpreter, whether that has the toolkit or not.
"""

import ast
import importlib
import importlib.util
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType

FUNCTION = "_mp_fn"


def main(argv: list[str]) -> None:
    """Run the script that *argv* names, with the arguments behind it.

    Raises:
        SystemExit: no script is named, or there is no such module.
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


def spawned(argv: list[str]) -> None:
    """Run what `xla_spawn [--num_gpus N] SCRIPT ...` names; how many processes there are, the job has decided."""
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
    module = importlib.import_module(entry) if as_module else _imported(path)
    if os.environ.get("PJRT_DEVICE", "").startswith("TPU"):
        importlib.import_module("torch_xla").launch(getattr(module, FUNCTION))
    else:
        getattr(module, FUNCTION)(int(os.environ.get("RANK", "0")))


def takes_an_index(source: bytes) -> bool:
    """Return True if *source* defines `_mp_fn` and it can be called with an index alone."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False  # Python itself will say so.
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == FUNCTION:
            places = [*node.args.posonlyargs, *node.args.args]
            required = len(places) - len(node.args.defaults)
            keywords = any(default is None for default in node.args.kw_defaults)
            return not keywords and required <= 1 and bool(places or node.args.vararg)
    return False


def _origin(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None:
        raise SystemExit(f"No module named {name}")
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _imported(path: Path) -> ModuleType:
    """Return the script at *path* as a module by its own name, so that what it defines can be pickled."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _watch() -> None:
    """Complete torch_xla also where the start-up hook is off: arrival.py, by its path."""
    spec = importlib.util.spec_from_file_location("toolkit_xla_arrival", Path(__file__).with_name("arrival.py"))
    assert spec is not None and spec.loader is not None
    arrival = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(arrival)
    arrival.watch()


if __name__ == "__main__":
    here = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != here]  # This file's own folder, none of the script's.
    if "toolkit_xla_arrival" not in sys.modules:
        _watch()
    main(sys.argv[1:])
