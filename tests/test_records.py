import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ContractError
from toolkit.records import Record, convert, decode, encode, plainly


class Mode(Record, frozen=True, kw_only=True):
    name: Literal["File", "Pipe"]
    folder: Path | None = None


class Modes(Record, frozen=True, kw_only=True):
    modes: tuple[Mode, ...] = ()


def test_a_record_cannot_be_changed() -> None:
    mode = Mode(name="File")

    with pytest.raises((AttributeError, dataclasses.FrozenInstanceError)):
        mode.name = "Pipe"  # type: ignore[misc]


def test_texts_with_bytes_that_are_not_utf_8_are_encoded_for_people_and_paths_come_back() -> None:
    folder = Path(os.fsdecode(b"/data/\xff"))
    content = {"folder": folder, "text": f"no such file: {folder}", "half": ["\ud83d", {"\udcfe": 1}]}

    document = json.loads(encode(content))

    assert document == {
        "folder": "/data/\0ff",
        "text": r"no such file: /data/\xff",
        "half": [r"\ud83d", {r"\xfe": 1}],
    }
    assert decode(encode(Mode(name="File", folder=folder)), Mode, "x").folder == folder


def test_records_are_equal_by_content() -> None:
    assert Mode(name="File") == Mode(name="File") != Mode(name="Pipe")


def test_a_document_becomes_a_record_and_unknown_keys_are_ignored() -> None:
    document = b'{"modes": [{"name": "Pipe", "folder": "/data", "newer": 1}]}'

    assert decode(document, Modes, "modes.json") == Modes(modes=(Mode(name="Pipe", folder=Path("/data")),))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "an empty file"),
        (b" \n", "an empty file"),
        (b'{"modes": ', "a mistake: Input data was truncated"),
        (b'{\n  "modes": [],\n}', "a mistake in line 3, column 1: "),
        (b"oops", "a mistake in line 1, column 1: "),
        (b'{"modes": NaN}', "a mistake in line 1, column 11: "),
        (b"\xef\xbb\xbf{}", "a byte order mark at its start"),
        (b'{"a":' * 100_000, "objects or lists nested too deeply"),
    ],
)
def test_what_is_not_json_is_named_with_its_place(document: bytes, reason: str) -> None:
    with pytest.raises(ContractError) as error:
        decode(document, dict[str, Any], "resourceconfig.json", hint="Write it anew.")

    assert str(error.value).startswith(f"resourceconfig.json: expected JSON, found {reason}")
    assert str(error.value).endswith("Write it anew.")


def test_bytes_that_are_not_utf8_are_an_error_of_the_document() -> None:
    with pytest.raises(ContractError, match=r"hp\.json: expected JSON, found bytes that are not UTF-8"):
        decode(b'{"a": "\xff"}', dict[str, Any], "hp.json")


def test_an_error_never_shows_what_the_document_holds() -> None:
    with pytest.raises(ContractError) as error:
        decode(b'{"api_key": "sk-123456",}', dict[str, Any], "hyperparameters.json")

    assert "sk-1" not in str(error.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b'{"modes": [{"name": "File"}, {"name": 1}]}', "m.json: $.modes[1].name: expected str, got int"),
        (b'{"modes": [{}]}', "m.json: $.modes[0]: object missing required field name"),
        (b'{"modes": [{"name": "a - at b"}]}', "m.json: $.modes[0].name: invalid enum value 'a - at b'"),
        (b'{"modes": [{"name": "File", "folder": 3}]}', "m.json: $.modes[0].folder: expected path, got int"),
        (b'"modes"', "m.json: expected object, got str"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_path(document: bytes, message: str) -> None:
    with pytest.raises(ContractError) as error:
        decode(document, Modes, "m.json")

    assert str(error.value) == message


def test_a_decoded_value_is_converted_and_lax_only_on_request() -> None:
    assert convert({"n": "12"}, dict[str, int], "x", strict=False) == {"n": 12}
    with pytest.raises(ContractError, match="expected int, got str"):
        convert({"n": "12"}, dict[str, int], "x")


def test_a_wrong_key_is_named_as_one() -> None:
    assert plainly("Expected `int`, got `str` - at `key` in `$`") == "key in $: expected int, got str"


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_every_json_text_comes_back_as_json_reads_it(value: Any) -> None:
    document = json.dumps(value).encode("utf-8", "surrogatepass")

    assert decode(document, Any, "x") == json.loads(document)


@given(st.binary())
def test_any_bytes_are_a_value_or_a_contract_error(document: bytes) -> None:
    try:
        decode(document, Modes, "x")
    except ContractError as error:
        assert str(error).startswith("x: ")


def test_a_record_can_be_written_and_read_again() -> None:
    modes = Modes(modes=(Mode(name="Pipe"),))

    assert decode(msgspec.json.encode(modes), Modes, "x") == modes
