"""The JSON schemas of outcome.json and manifest.json (docs/*.schema.json) and the tables of their keys (docs/*.md).

`python -m toolkit.job.document_schemas` writes them anew.
"""

from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from toolkit.job.manifest import RunManifest
from toolkit.job.outcome import Outcome
from toolkit.records import Record

DOCS = Path(__file__).parents[2] / "docs"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class DocumentFormat(Record, frozen=True, kw_only=True):
    """A document of `train` whose format is described."""

    title: str
    """The document's file name."""
    record: type[Record]
    """Its content."""
    required: tuple[str, ...] = ()
    """The keys that are always there; (): all of them."""

    @property
    def schema_file(self) -> Path:
        return DOCS / self.title.replace(".json", ".schema.json")

    @property
    def page(self) -> Path:
        return DOCS / self.title.replace(".json", ".md")


# The keys that even a `train` with a damaged installation writes (cli/outermost.py). All others are written by any
# other, also where they are empty.
OUTCOME = DocumentFormat(
    title="outcome.json", record=Outcome, required=("schema_version", "status", "exit_code", "cause")
)
MANIFEST = DocumentFormat(title="manifest.json", record=RunManifest)
FORMATS = (OUTCOME, MANIFEST)


def schema(document: DocumentFormat) -> dict[str, Any]:
    """Return the schema of *document* (JSON Schema, draft 2020-12)."""
    generated = msgspec.json.schema(document.record)
    for definition in generated["$defs"].values():
        definition["description"] = cleandoc(definition["description"])
    outermost = generated["$defs"][document.record.__name__]
    outermost["required"] = list(document.required or outermost["properties"])
    return {"$schema": DIALECT, "title": f"{document.title} of container-training-toolkit", **generated}


def tables(document: DocumentFormat) -> Iterator[tuple[str, str]]:
    """Yield (name, Markdown table of its keys) of each object in *document*, the outermost first."""
    definitions = schema(document)["$defs"]
    for name in sorted(definitions, key=lambda name: name != document.record.__name__):
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
        if "$ref" in items:
            return f"list of [{_title(items)}](#{_title(items).lower()})"
        return "list of integers" if items["type"] == "integer" else "list of texts"
    if field["type"] == "object":
        values = field["additionalProperties"]
        return f"object of [{_title(values)}](#{_title(values).lower()})" if "$ref" in values else "object of texts"
    words = {"string": "text", "integer": "integer", "number": "number", "boolean": "true, false", "null": "null"}
    return words[field["type"]]


def _title(field: dict[str, Any]) -> str:
    return str(field["$ref"]).rpartition("/")[2]


def page_with_tables(document: DocumentFormat, page: str) -> str:
    """Return *page*, the text of the page of *document*, with its tables made anew: one below the heading of each
    object."""
    for name, table in tables(document):
        heading = "## Keys\n" if name == document.record.__name__ else f"## {name}\n"
        text_before, _, section = page.partition(heading)
        first, last = section.index("| key |"), section.find("\n\n", section.index("| key |"))
        after = section[last:] if last >= 0 else "\n"
        page = f"{text_before}{heading}{section[:first]}{table}{after}"
    return page


if __name__ == "__main__":
    for document in FORMATS:
        document.schema_file.write_bytes(msgspec.json.format(msgspec.json.encode(schema(document)), indent=2) + b"\n")
        document.page.write_text(page_with_tables(document, document.page.read_text()))
