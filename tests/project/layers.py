"""The layers of the package, and the reading of imports that checks them.

A place is a file's path below `toolkit/`, as `job/plan.py`. Its package is the folder that it is in, or the file itself
at the top.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

# The launcher side, from the ground up. A file imports from lower layers or its own package; files that share a line of
# GROUND are one package. A package that is not here fails the test: give it its layer.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "__init__",
        "exit_codes",
        "patterns",
        "terminal",
        "records",
        "errors",
        "folders",
        "paths",
        "files",
        "log",
        "masking",
        "status_pages",
        "status_layout",
        "parallelism",
    ),
    ("settings",),
    ("job", "metrics", "storage", "series", "traces"),
    ("jobfile", "jobs", "diagnosis"),
    (
        "launchers",
        "platforms",
        "render",
        "verdict",
        "report",
        "rules",
        "supervise",
        "peers",
        "probe",
        "source",
        "artifacts",
    ),
    ("train", "check", "local", "monitor"),
    ("cli",),
    ("__main__",),
)
GROUND = LAYERS[0]
# Rooms whose code runs in the ranks' interpreters. Strangers to each other, but for compat, which hands the others on
# under old names; of the launcher side they know only these.
SCRIPT_SIDE = (
    "standalone",
    "compat",
    "ranks",
    "dataparallel",
    "modelparallel",
    "profiler",
    "compiler",
    "status",
    "xla",
)
# Pure files of the script side that commands of `toolkit` also call: they need nothing of a rank.
SHARED_WITH_CLI = ("commands/batch/search.py", "commands/batch/scaling.py")
SCRIPT_SIDE_MAY_USE = (
    "__init__",
    "records",
    "folders",
    "paths",
    "errors",
    "metrics",
    "status_layout",
    "parallelism",
    "ranks",
)


def package_of(place: str) -> str:
    """Return the package of *place*: "job" for "job/plan.py", "settings" for "settings.py"."""
    return place.partition("/")[0].removesuffix(".py")


def places(package: Path) -> dict[str, Path]:
    """Return every Python file below *package* by its place."""
    return {path.relative_to(package).as_posix(): path for path in sorted(package.rglob("*.py"))}


def imports(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for every import of *path* from its own package, also those inside functions.

    `from toolkit.job import plan` yields toolkit.job and toolkit.job.plan: the caller knows which is a file.
    """
    own = [package.name, *path.relative_to(package).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = own[: len(own) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            named = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from ((node.lineno, name) for name in named if name.split(".")[0] == package.name)


def place_named(module: str, package: Path, known: dict[str, Path]) -> str | None:
    """Return the place that *module* is, None if it is a name inside one."""
    inside = "/".join(module.split(".")[1:])
    candidates = (f"{inside}.py", f"{inside}/__init__.py") if inside else ("__init__.py",)
    return next((candidate for candidate in candidates if candidate in known), None)


def edges(package: Path) -> Iterator[tuple[str, int, str]]:
    """Yield (importing place, line, imported place) for the whole *package*."""
    known = places(package)
    for place, path in known.items():
        seen = set()
        for line, module in imports(path, package):
            imported = place_named(module, package, known)
            # A package's own __init__ comes along with every import from it and leads nowhere by itself.
            if imported is None or imported == place or (imported, line) in seen:
                continue
            seen.add((imported, line))
            yield place, line, imported


def faults(package: Path) -> list[str]:
    """Return what breaks the rules in *package*, one line each, empty if nothing does."""
    known = places(package)
    found = [
        f"{package}: no layer is known for this package; add it to tests/project/layers.py"
        for package in sorted(
            {package_of(place) for place in known} - {package for layer in LAYERS for package in layer}
        )
        if package not in SCRIPT_SIDE
    ]
    all_edges = list(edges(package))
    for place, line, imported in all_edges:
        if package_of(place) == "cli" and imported in SHARED_WITH_CLI:
            continue
        reason = fault(package_of(place), package_of(imported))
        if reason:
            found.append(f"{place}:{line}: imports {imported}: {reason}")
    return found + [f"circle: {' -> '.join(circle)}" for circle in circles(all_edges)]


def fault(package: str, other: str) -> str | None:
    """Return why a file in *package* may not import from *other*, None if it may."""
    if package == other or other == "__init__" or (package in GROUND and other in GROUND):
        return None
    if package == "compat" and other in SCRIPT_SIDE:
        return None  # The old names, over the packages that hold what they stand for.
    if package in SCRIPT_SIDE:
        return (
            None
            if other in SCRIPT_SIDE_MAY_USE
            else "the script side knows only records, errors, metrics, status_layout, parallelism, ranks"
        )
    if other in SCRIPT_SIDE:
        return "the launcher side never imports the script side"
    here, there = layer_of(package), layer_of(other)
    if here is None or there is None or there < here:
        return None
    return "packages of one layer do not import each other" if here == there else "it is in a higher layer"


def layer_of(package: str) -> int | None:
    """Return the layer of *package*, None if it has none."""
    return next((number for number, layer in enumerate(LAYERS) if package in layer), None)


def circles(all_edges: list[tuple[str, int, str]]) -> list[tuple[str, ...]]:
    """Return each circle of imports once, as the places along it."""
    graph: dict[str, set[str]] = {}
    for place, _, imported in all_edges:
        if not imported.endswith("__init__.py"):
            graph.setdefault(place, set()).add(imported)
    found: dict[frozenset[str], tuple[str, ...]] = {}

    def walk(place: str, path: tuple[str, ...]) -> None:
        if place in path:
            circle = path[path.index(place) :]
            found.setdefault(frozenset(circle), (*circle, place))
            return
        if place in finished:
            return
        for imported in sorted(graph.get(place, ())):
            walk(imported, (*path, place))
        finished.add(place)

    finished: set[str] = set()
    for place in sorted(graph):
        walk(place, ())
    return list(found.values())


def mutable_state(path: Path) -> list[str]:
    """Return module-level assignments of *path* that make a list, dict or set under a name that is no constant's.

    ALL_CAPS names are tables, read and never written; `__all__` is Python's own.
    """
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if _is_mutable(value) and not all(name.isupper() or name == "__all__" for name in names):
            found.append(f"line {node.lineno}: {', '.join(names)}")
    return found


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for every literal text of *path* but docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node.lineno, node.value


def keys_read(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, key) where *path* asks a mapping for a literal key: m[key], m.get(key), m.pop(key), key in m."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            asked = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            asked = node.args[:1]
        elif isinstance(node, ast.Compare):
            asked = [node.left]
        for key in asked:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.lineno, key.value


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    makers = {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict"}
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in makers
