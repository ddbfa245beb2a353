"""Writes a page as JSON. page.schema.json, beside this file, is its schema (JSON Schema, draft 2020-12).

`python -m toolkit.commands.report.document` writes the schema anew.
"""

import ast
from inspect import cleandoc, getsource
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from toolkit.commands.report import model
from toolkit.commands.report.model import Page
from toolkit.records import encode

SCHEMA = Path(__file__).with_name("page.schema.json")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Gaps of a line are NaN, which JSON writes as null.
WITH_GAPS = ("mean", "low", "high")


def encode_page(page: Page) -> str:
    """Return *page* as JSON text, which ends with a newline. A gap in a line is null."""
    return msgspec.json.format(encode(page), indent=1).decode() + "\n"


def build_schema() -> dict[str, Any]:
    """Return the schema of `document`."""
    page_schema = msgspec.json.schema(Page)
    for name in WITH_GAPS:
        page_schema["$defs"]["Line"]["properties"][name]["items"] = {"type": ["number", "null"]}
    for name, kind in page_schema["$defs"].items():
        if "description" in kind:
            kind["description"] = cleandoc(kind["description"])
        descriptions = _read_field_descriptions(name)
        for key, value in kind["properties"].items():
            if key in descriptions:
                value["description"] = descriptions[key]
    return {"$schema": DIALECT, "title": "A report of toolkit", **page_schema}


def _read_field_descriptions(name: str) -> dict[str, str]:
    """Return the docstrings below the fields of the model's class *name*, by the fields' names in JSON."""
    names = {field.name: field.encode_name for field in msgspec.structs.fields(getattr(model, name))}
    (definition,) = ast.parse(getsource(getattr(model, name))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        names[field.target.id]: docstring.value.value
        for field, docstring in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(docstring, ast.Expr)
        and isinstance(docstring.value, ast.Constant)
        and isinstance(docstring.value.value, str)
    }


if __name__ == "__main__":
    SCHEMA.write_bytes(msgspec.json.format(msgspec.json.encode(build_schema()), indent=2) + b"\n")
