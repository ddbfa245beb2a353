"""A page as JSON. page.schema.json, beside this file, is its schema (JSON Schema, draft 2020-12).

`python -m toolkit.commands.report.document` writes the schema anew.
"""

from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

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
    for kind in page_schema["$defs"].values():
        if "description" in kind:
            kind["description"] = cleandoc(kind["description"])
    return {"$schema": DIALECT, "title": "A report of toolkit", **page_schema}


if __name__ == "__main__":
    SCHEMA.write_bytes(msgspec.json.format(msgspec.json.encode(build_schema()), indent=2) + b"\n")
