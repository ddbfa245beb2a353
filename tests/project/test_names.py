"""Names say what they hold: few variables have a word that says nothing, few classes and files share a name."""

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "toolkit"
# As names of variables and parameters these words say nothing of what is in them.
EMPTY = re.compile(
    "found|each|told|said|asked|given|ours|mine|own|one|at|its|here|kept|made|known|whole|shown|named|before|where|what"
    "|why|there|ended|wanted|heard|seen"
)
MOST_OF_ALL = 0.01
MOST_OF_A_FOLDER = 0.02
# Names that the libraries which rank/ replaces and the frameworks have: their users know them.
OF_LIBRARIES = ("DistributedModel", "GradScaler", "ReduceOp", "StepOutput")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def variables(path: Path) -> Counter[str]:
    """Count the variables that *path* assigns, and its parameters, by name."""
    names: Counter[str] = Counter()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.update(argument.arg for argument in node.args.args + node.args.kwonlyargs if argument.arg != "self")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] += 1
    return names


def empty_share(paths: list[Path]) -> tuple[float, dict[str, int]]:
    """Return the share of empty words among the variables of *paths*, and the number of each in its file."""
    by_file = {path: variables(path) for path in paths}
    empty = {
        f"{path.relative_to(ROOT)}: {name}": count
        for path, names in by_file.items()
        for name, count in names.items()
        if EMPTY.fullmatch(name)
    }
    return sum(empty.values()) / max(1, sum(sum(names.values()) for names in by_file.values())), empty


@pytest.mark.parametrize("folder", ["toolkit", "tests", "distributions"])
def test_few_variables_have_a_word_that_says_nothing(folder: str) -> None:
    share, empty = empty_share(files(ROOT / folder))

    assert share < MOST_OF_ALL, empty


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_no_folder_is_far_above_the_others(folder: str) -> None:
    share, empty = empty_share(files(PACKAGE / folder))

    assert share < MOST_OF_A_FOLDER, empty


def test_at_most_ten_class_names_stand_for_more_than_one_class() -> None:
    places: defaultdict[str, set[str]] = defaultdict(set)
    for path in files(PACKAGE):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(path.relative_to(PACKAGE).as_posix())
    shared = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1 and name not in OF_LIBRARIES}

    assert len(shared) <= 10, shared


def test_no_file_name_is_used_in_more_than_three_folders() -> None:
    places: defaultdict[str, set[str]] = defaultdict(set)
    for path in files(PACKAGE):
        place = path.relative_to(PACKAGE)
        if not path.name.startswith("__") and place.parts[:2] != ("rank", "compat"):  # The old libraries' own.
            places[path.name].add(place.as_posix())

    assert {name: sorted(paths) for name, paths in places.items() if len(paths) > 3} == {}
