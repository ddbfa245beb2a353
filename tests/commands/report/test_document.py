"""A page as JSON keeps to the schema that is shipped beside it."""

import json
import math

import jsonschema
import msgspec

from tests.commands.report.pages import page
from toolkit.commands.report.document import SCHEMA, build_schema, encode_page
from toolkit.commands.report.model import Words


def test_the_shipped_schema_is_that_of_the_model() -> None:
    shipped, built = json.loads(SCHEMA.read_text()), json.loads(json.dumps(build_schema()))

    assert shipped == built, "run python -m toolkit.commands.report.document"


def test_a_page_with_every_kind_of_block_is_valid_and_keeps_its_numbers() -> None:
    document = json.loads(encode_page(page()))

    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    chart = document["sections"][1]["blocks"][2]
    assert chart["type"] == "Chart"
    assert chart["lines"][0]["mean"] == [3.0, None, 1.0]
    assert document["sections"][1]["blocks"][4]["parts"][0] == {
        "name": "training",
        "value": 75.0,
        "formula": "",
        "tone": "plain",
    }


def test_the_schema_refuses_what_is_no_page() -> None:
    to_builtins = msgspec.to_builtins(page(Words(text="x")))
    to_builtins["sections"][0]["blocks"][0]["tone"] = "loud"

    assert not jsonschema.Draft202012Validator(build_schema()).is_valid(to_builtins)
    assert math.isnan(page().sections[1].blocks[2].lines[0].mean[1])  # type: ignore[union-attr]
