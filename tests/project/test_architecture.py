"""docs/architecture.md names files and names that exist, and both pages the folders that are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.project import layers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/architecture.md"
CITED = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)(?:: ([\w.]+))?`")


def names_in(node: ast.AST) -> dict[str, ast.AST]:
    """Return the functions, classes and variables that *node*, a module or class, defines."""
    definitions: dict[str, ast.AST] = {}
    for child in getattr(node, "body", []):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            definitions[child.name] = child
        elif isinstance(child, ast.Assign):
            definitions.update((target.id, child) for target in child.targets if isinstance(target, ast.Name))
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            definitions[child.target.id] = child
    return definitions


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
    assert [reason for path, name in cited if (reason := missing(path, name))] == []


def test_a_missing_file_or_name_is_found() -> None:
    assert missing("job/nowhere.py", "") == "job/nowhere.py: no such file"
    assert missing("job/job.py", "Job.nothing") == "job/job.py: Job.nothing: no such name"
    assert missing("job/job.py", "Job.port") == ""


def table_of(page: str) -> dict[str, set[str]]:
    """Return the rows of the first table of folders on *page*: first column to the names in the second."""
    rows = re.findall(r"^\| `?([\w ]+?)`?/? \| (`.*?) \|", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)/?`", words)) for name, words in rows}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_both_pages_name_the_folders_that_are_there(page: str) -> None:
    folders = {path.name for path in (ROOT / "toolkit").iterdir() if (path / "__init__.py").exists()}

    assert set(layers.PACKAGES) == folders
    assert set().union(*table_of(page).values()) >= folders
