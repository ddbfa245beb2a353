"""docs/architecture.md names files and names that exist, and the layers as layers.py has them."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.project import layers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/architecture.md"
CITED = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)(?:: ([\w.]+))?`")


def names_in(node: ast.AST) -> dict[str, ast.AST]:
    """Return the functions, classes and variables that *node*, a module or class, defines."""
    found: dict[str, ast.AST] = {}
    for each in getattr(node, "body", []):
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            found[each.name] = each
        elif isinstance(each, ast.Assign):
            found.update((target.id, each) for target in each.targets if isinstance(target, ast.Name))
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = each
    return found


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def missing(path: str, name: str) -> str:
    """Return what is missing of a citation, "" if nothing is."""
    file = ROOT / path if path.startswith("tests/") else ROOT / "toolkit" / path
    if not file.is_file():
        return f"{path}: no such file"
    node: ast.AST = parsed(file)
    for part in name.split(".") if name else ():
        inside = names_in(node)
        if part not in inside:
            return f"{path}: {name}: no such name"
        node = inside[part]
    return ""


def test_every_file_and_name_that_the_architecture_page_cites_exists() -> None:
    cited = CITED.findall(PAGE.read_text(encoding="utf-8"))

    assert len(cited) > 60
    assert [why for path, name in cited if (why := missing(path, name))] == []


def test_a_missing_file_or_name_is_found() -> None:
    assert missing("job/nowhere.py", "") == "job/nowhere.py: no such file"
    assert missing("job/job.py", "Job.nothing") == "job/job.py: Job.nothing: no such name"
    assert missing("job/job.py", "Job.name") == ""


def layers_there() -> dict[int, set[str]]:
    """Return the packages and files of toolkit/ by their layer, those alone that are there."""
    there = {layers.package_of(place) for place in layers.places(ROOT / "toolkit")} - {"__init__", "__main__"}
    held = {number: {package for package in layer if package in there} for number, layer in enumerate(layers.LAYERS, 1)}
    return {number: packages for number, packages in held.items() if packages}


def test_contributing_shows_the_layers_that_the_tests_hold() -> None:
    table = re.findall(r"^\| (\d) \| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert {int(number): set(re.findall(r"`(\w+)`", words)) for number, words in table} == layers_there()


def test_the_page_shows_the_layers_that_the_tests_hold() -> None:
    shown: dict[int, set[str]] = {}
    for number, words in re.findall(r"^(\d)  (\S+(?: \S+)*)", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        shown.setdefault(int(number), set()).update(words.split())

    assert shown == layers_there()


def test_both_pages_name_the_code_beside_the_layers() -> None:
    contributing, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", PAGE))
    beside = re.search(r"^Beside the layers stands .*?\n\n", page, re.MULTILINE | re.DOTALL)

    assert beside is not None
    assert set(layers.SCRIPT_SIDE) == set(re.findall(r"`(\w+)`", beside[0])) - {"cli"}
    for shared in layers.SHARED_WITH_CLI:
        assert f"`{shared}`" in contributing
        assert f"`{shared}`" in beside[0]
