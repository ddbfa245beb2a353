"""The layers of the package, and the reading of imports that checks them.

A place is a file's path below `toolkit/`, as `job/plan.py`. Its package is the folder at the top that it is in; the
files at the top are the ground.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

# What everything stands on: the files at the top, and these folders.
GROUND = ("masking",)
# Formats and records that several processes share.
FORMATS = ("job", "metrics", "series", "traces", "diagnosis", "storage", "parallelism", "status_pages", "collectives")
# One folder for each process of a job, what people's commands do, and the command lines.
PROCESSES = ("train", "monitor")
ABOVE = {"commands": PROCESSES, "cli": (*PROCESSES, "commands")}
# Code that runs inside a rank's interpreter, which may have no toolkit: of the rest it knows only these.
RANK = "rank"
RANK_MAY_IMPORT = ("errors", "records", "folders", "paths", "status_pages", "parallelism")
# Folders whose own folders are strangers to each other: only the files beside these folders bring them together.
PARTED = ("train", "commands", RANK)
# But for those that read what the others need: a job's folder, its page, the other ranks of a rank's job, and the
# private names of frameworks.
SHARED = {"commands": ("jobs", "report"), RANK: ("mesh", "frameworks")}
HANDS_ON = f"{RANK}/compat"  # It has the others under old names.
PACKAGES = (*GROUND, *FORMATS, *PROCESSES, *ABOVE, RANK)


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
    parts = [package.name, *path.relative_to(package).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            modules = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from ((node.lineno, name) for name in modules if name.split(".")[0] == package.name)


def place_named(module: str, package: Path, paths_by_place: dict[str, Path]) -> str | None:
    """Return the place that *module* is, None if it is a name inside one."""
    inside = "/".join(module.split(".")[1:])
    candidates = (f"{inside}.py", f"{inside}/__init__.py") if inside else ("__init__.py",)
    return next((candidate for candidate in candidates if candidate in paths_by_place), None)


def edges(package: Path) -> Iterator[tuple[str, int, str]]:
    """Yield (importing place, line, imported place) for the whole *package*."""
    paths_by_place = places(package)
    for place, path in paths_by_place.items():
        reported = set()
        for line, module in imports(path, package):
            imported = place_named(module, package, paths_by_place)
            # A package's own __init__ comes along with every import from it and leads nowhere by itself.
            if imported is None or imported == place or (imported, line) in reported:
                continue
            reported.add((imported, line))
            yield place, line, imported


def faults(package: Path) -> list[str]:
    """Return what breaks the rules in *package*, one line each, empty if nothing does."""
    folders = sorted({package_of(place) for place in places(package) if "/" in place} - set(PACKAGES))
    lines = [f"{folder}: no layer is known for this folder; add it to tests/project/layers.py" for folder in folders]
    all_edges = list(edges(package))
    for place, line, imported in all_edges:
        reason = fault(place, imported)
        if reason:
            lines.append(f"{place}:{line}: imports {imported}: {reason}")
    return lines + [f"circle: {' -> '.join(circle)}" for circle in circles(all_edges)]


def fault(place: str, imported: str) -> str | None:
    """Return why the file *place* may not import the file *imported*, None if it may."""
    importer, package = package_of(place), package_of(imported)
    if importer == package:
        return _fault_inside(place, imported) if importer in PARTED else None
    if package in ("__init__", "__main__") or importer == "__main__":
        return None
    if importer == RANK:
        return None if package in RANK_MAY_IMPORT else f"rank/ knows only {', '.join(RANK_MAY_IMPORT)}"
    if package == RANK:
        return "nothing imports rank/: its code runs in a rank's interpreter"
    if is_ground(package) or (place == "status.py" and package == "status_pages"):
        return None
    if is_ground(importer):
        return "it is in a higher layer"
    if package in FORMATS or package in ABOVE.get(importer, ()):
        return None
    if importer in PROCESSES and package in PROCESSES:
        return "train/ and monitor/ are processes of their own"
    return "it is in a higher layer"


def _fault_inside(place: str, imported: str) -> str | None:
    """Return why one file of a package in PARTED may not import another of it."""
    folder, other = (path.split("/")[1] if path.count("/") > 1 else "" for path in (place, imported))
    if folder == other or not folder:
        return None
    package = package_of(place)
    if other in SHARED.get(package, ()) or f"{package}/{folder}" == HANDS_ON:
        return None
    if imported.endswith("/__init__.py") and not other:
        return None
    return f"the folders of {package}/ do not import each other"


def is_ground(package: str) -> bool:
    """True for the files at the top and the folders of GROUND."""
    return package in GROUND or package not in PACKAGES


def circles(all_edges: list[tuple[str, int, str]]) -> list[tuple[str, ...]]:
    """Return each circle of imports once, as the places along it."""
    graph: dict[str, set[str]] = {}
    for place, _, imported in all_edges:
        if not imported.endswith("__init__.py"):
            graph.setdefault(place, set()).add(imported)
    by_members: dict[frozenset[str], tuple[str, ...]] = {}

    def walk(place: str, path: tuple[str, ...]) -> None:
        if place in path:
            circle = path[path.index(place) :]
            by_members.setdefault(frozenset(circle), (*circle, place))
            return
        if place in finished:
            return
        for imported in sorted(graph.get(place, ())):
            walk(imported, (*path, place))
        finished.add(place)

    finished: set[str] = set()
    for place in sorted(graph):
        walk(place, ())
    return list(by_members.values())


def mutable_state(path: Path) -> list[str]:
    """Return module-level assignments of *path* that make a list, dict or set under a name that is no constant's.

    ALL_CAPS names are tables, read and never written; `__all__` is Python's own.
    """
    lines = []
    for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if _is_mutable(value) and not all(name.isupper() or name == "__all__" for name in names):
            lines.append(f"line {node.lineno}: {', '.join(names)}")
    return lines


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
        keys: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            keys = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            keys = node.args[:1]
        elif isinstance(node, ast.Compare):
            keys = [node.left]
        for key in keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.lineno, key.value


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    makers = {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict"}
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in makers
