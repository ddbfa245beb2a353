"""Code reads plainly: fields are explained beside them, lists are as the formatter writes them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHEBANG = "#!/usr/bin/env python"
# A Record of this many fields explains them.
MANY_FIELDS = 5


@cache
def read(path: Path) -> tuple[list[str], ast.Module]:
    text = path.read_text(encoding="utf-8")
    return text.splitlines(), ast.parse(text)


def programs() -> list[Path]:
    """Return the Python files of the product, its tests and scripts."""
    modules = [path for folder in ("toolkit", "tests", "distributions") for path in (ROOT / folder).rglob("*.py")]
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file() and path.read_text().startswith(SHEBANG)]
    return sorted(modules + scripts)


def records(path: Path) -> Iterator[tuple[ast.ClassDef, list[ast.AnnAssign]]]:
    """Yield the Records, structs and tuples that *path* defines, with their fields."""
    for node in ast.walk(read(path)[1]):
        if isinstance(node, ast.ClassDef) and (node.bases or node.decorator_list):
            fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            if len(fields) >= MANY_FIELDS:
                yield node, fields


def explained(record: ast.ClassDef, lines: list[str]) -> Iterator[ast.AnnAssign]:
    """Yield the fields that have a docstring, a comment or an annotation beside them."""
    for field, after in zip(record.body, [*record.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            around = lines[field.lineno - 2 : field.end_lineno]
            docstring = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            commented = around[0].strip().startswith("#") or any(" # " in line for line in around[1:])
            if docstring or commented or "Annotated" in ast.unparse(field.annotation):
                yield field


def test_records_of_many_fields_explain_them_beside_each_field() -> None:
    bare, above = [], []
    for path in sorted((ROOT / "toolkit").rglob("*.py")):
        for record, fields in records(path):
            place = f"{path.relative_to(ROOT)}:{record.lineno} {record.name}"
            if not any(explained(record, read(path)[0])):
                bare.append(place)
            docstring = ast.get_docstring(record) or ""
            names = [field.target.id for field in fields if isinstance(field.target, ast.Name)]
            above += [f"{place}.{name}" for name in names if re.search(rf"`{name}`((, | and )`\w+`)*:", docstring)]

    assert (bare, above) == ([], [])


def test_no_list_is_packed_in_starred_tuples() -> None:
    """Such a tuple keeps the formatter from writing an item a line."""
    packed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in programs()
        for node in ast.walk(read(path)[1])
        if (isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List))
        or (isinstance(node, ast.Dict) and any(isinstance(value, ast.Dict) for value in unpacked(node)))
    ]

    assert packed == []


def unpacked(dictionary: ast.Dict) -> list[ast.expr]:
    return [value for key, value in zip(dictionary.keys, dictionary.values, strict=True) if key is None]


def test_docstrings_begin_as_sentences_do() -> None:
    questions = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
        for path in programs()
        for node in ast.walk(read(path)[1])
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and re.match(r"(What|How|Which|Where|Whether|That|Who|Why)\b", ast.get_docstring(node) or "")
    ]

    assert questions == []
