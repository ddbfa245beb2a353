"""The JSON schema of outcome.json (docs/outcome.schema.json) and the tables of its keys (docs/outcome.md).

`python -m toolkit.job.outcome_schema` writes both anew.
"""

from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from toolkit.job.outcome import Outcome

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA, PAGE = DOCS / "outcome.schema.json", DOCS / "outcome.md"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# The keys that even a `train` with a damaged installation writes (cli/outermost.py). All others are written by any
# other, also where they are empty.
REQUIRED = ("schema_version", "status", "exit_code", "cause")


def schema() -> dict[str, Any]:
    """Return the schema of outcome.json (JSON Schema, draft 2020-12)."""
    generated = msgspec.json.schema(Outcome)
    for definition in generated["$defs"].values():
        definition["description"] = cleandoc(definition["description"])
    generated["$defs"]["Outcome"]["required"] = list(REQUIRED)
    return {"$schema": DIALECT, "title": "outcome.json of container-training-toolkit", **generated}


def tables() -> Iterator[tuple[str, str]]:
    """Yield (name, Markdown table of its keys) of each object in outcome.json, the outermost first."""
    definitions = schema()["$defs"]
    for name in sorted(definitions, key=lambda name: name != "Outcome"):
        rows = ["| key | values | meaning |", "|---|---|---|"]
        for key, field in definitions[name]["properties"].items():
            rows.append(f"| `{key}` | {_values(field)} | {field['description']} |")
        yield name, "\n".join(rows)


def _values(field: dict[str, Any]) -> str:
    """Return the values that the schema of a *field* allows, in words."""
    if "anyOf" in field:
        return " or ".join(_values(alternative) for alternative in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "$ref" in field:
        return f"object ([{_title(field)}](#{_title(field).lower()}))"
    if field["type"] == "array":
        items = field["items"]
        return f"list of [{_title(items)}](#{_title(items).lower()})" if "$ref" in items else "list of texts"
    words = {"string": "text", "integer": "integer", "number": "number", "boolean": "true, false", "null": "null"}
    return words[field["type"]]


def _title(field: dict[str, Any]) -> str:
    return str(field["$ref"]).rpartition("/")[2]


def page_with_tables(page: str) -> str:
    """Return *page*, the text of docs/outcome.md, with its tables made anew: one below the heading of each object."""
    for name, table in tables():
        heading = "## Keys\n" if name == "Outcome" else f"## {name}\n"
        text_before, _, section = page.partition(heading)
        first, last = section.index("| key |"), section.find("\n\n", section.index("| key |"))
        after = section[last:] if last >= 0 else "\n"
        page = f"{text_before}{heading}{section[:first]}{table}{after}"
    return page


if __name__ == "__main__":
    SCHEMA.write_bytes(msgspec.json.format(msgspec.json.encode(schema()), indent=2) + b"\n")
    PAGE.write_text(page_with_tables(PAGE.read_text()))
