"""Reads which private names of other packages a file touches.

A name with one underscore before it is private. A file touches one of another package where it
- imports it: `from re import _parser`, `import torch._dynamo`, and `tensorflow.python`, `keras.src`, which are private
  below other names;
- reads, sets or deletes an attribute `object._name` whose name the same file does not define. Of `self` and `cls` also
  names count that another file of the toolkit defines: a class inherits them;
- names it in `getattr`, `hasattr`, `setattr` or `delattr`, in the same way.

Not seen: a method that overrides a private one, a name that the file uses for something of its own, too, and names in
tables.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

# Modules whose insides are private though their names have no underscore.
INSIDES = ("tensorflow.python", "keras.src", "tf_keras.src")
# Names with an underscore that are documented: of Python's os, sys and named tuples, C's _exit, and low-level threads.
PUBLIC = ("_exit", "_getframe", "_replace", "_fields", "_asdict", "_thread", "_make")
# The toolkit's own marks on objects of others, and its own packages.
MARKS = ("_toolkit", "_smp")
OWN = ("toolkit", "smdistributed")
ASKING = ("getattr", "hasattr", "setattr", "delattr")


def is_private(name: str) -> bool:
    """True for "_name", not for "__name__", "_" and what is documented."""
    return name.startswith("_") and not name.startswith(("__", *MARKS)) and name != "_" and name not in PUBLIC


def defined_names(tree: ast.AST) -> set[str]:
    """Return the names that a file defines: functions, classes, variables, and attributes of self and cls."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            names.add(node.attr)
    return names


def private_names(tree: ast.AST, defined_elsewhere: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of every private name of another package in *tree*, a file of the toolkit.

    *defined_elsewhere*: the names that its other files define.
    """
    own = defined_names(tree)
    inherited = own | defined_elsewhere
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if _is_inside(alias.name))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level == 0 and module.split(".")[0] not in OWN:
                names = [f"{module}.{alias.name}" for alias in node.names]
                yield from ((node.lineno, name) for name in names if _is_inside(name))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if node.attr not in (inherited if _is_own(node.value) else own):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ASKING:
            name = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) else ""
            if isinstance(name, str) and is_private(name) and name not in (inherited if _is_own(node.args[0]) else own):
                yield node.lineno, f"{ast.unparse(node.args[0])}.{name}"


def faults(package: Path, allowed: dict[str, tuple[tuple[str, ...], str]]) -> list[str]:
    """Return each private name of another package that *package* touches, one line each.

    *allowed*: by place, the names that stay there, and why.
    """
    trees = {
        path.relative_to(package).as_posix(): ast.parse(path.read_text(encoding="utf-8"), str(path))
        for path in sorted(package.rglob("*.py"))
    }
    all_defined = set().union(*map(defined_names, trees.values()))
    lines, unused = [], {(place, name) for place, (names, _) in allowed.items() for name in names}
    for place, tree in trees.items():
        if place.startswith("rank/frameworks/"):
            continue
        names_here = allowed.get(place, ((), ""))[0]
        for line, name in private_names(tree, all_defined):
            last = next(part for part in reversed(name.split(".")) if is_private(part) or name.startswith(INSIDES))
            if last in names_here:
                unused.discard((place, last))
            else:
                lines.append(f"{place}:{line}: {name}: belongs into rank/frameworks")
    return lines + [f"{place}: {name} is allowed, and not touched" for place, name in sorted(unused)]


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_inside(module: str) -> bool:
    return module.startswith(INSIDES) or any(is_private(part) for part in module.split("."))
