"""Hyperparameters to argv, by tables. What sagemaker-training itself gives is in tests/train/platforms/sagemaker."""

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import UserError
from toolkit.job.arguments import ONE_STRING_BYTES, arguments, check
from toolkit.settings import ArgumentStyle

VALUES: dict[str, Any] = {
    "yes": True,
    "no": False,
    "nothing": None,
    "list": [1, "a", True, None],
    "dict": {"x": 1, "a": {"y": None}},
    "rate": 1e-5,
    "k": 3,
    "text": "two words",
    "none": [],
}


def test_sagemaker_style_sorts_and_gives_every_name_one_token() -> None:
    assert arguments(VALUES, "sagemaker") == (
        "--dict",
        "a={'y': None},x=1",
        "-k",
        "3",
        "--list",
        "[1, 'a', True, None]",
        "--no",
        "False",
        "--none",
        "[]",
        "--nothing",
        "",
        "--rate",
        "1e-05",
        "--text",
        "two words",
        "--yes",
        "True",
    )


def test_json_style_keeps_the_order_and_writes_json() -> None:
    assert arguments(VALUES, "json") == (
        "--yes",
        "true",
        "--no",
        "false",
        "--nothing",
        "null",
        "--list",
        '[1, "a", true, null]',
        "--dict",
        '{"x": 1, "a": {"y": null}}',
        "--rate",
        "1e-05",
        "--k",
        "3",
        "--text",
        "two words",
        "--none",
        "[]",
    )


def test_flags_style_leaves_out_what_is_off_and_spreads_lists() -> None:
    assert arguments(VALUES, "flags") == (
        "--dict",
        '{"x": 1, "a": {"y": null}}',
        "-k",
        "3",
        "--list",
        "1",
        "a",
        "true",
        "null",
        "--none",
        "--rate",
        "1e-05",
        "--text",
        "two words",
        "--yes",
    )


def test_none_style_gives_no_arguments() -> None:
    assert arguments(VALUES, "none") == ()


def test_flags_style_is_understood_by_argparse() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--sizes", nargs="*", type=int)
    parser.add_argument("-k", type=int)
    parser.add_argument("--model", type=json.loads)
    values = {"verbose": False, "resume": True, "sizes": [3, 1], "k": -2, "model": {"depth": 2}}

    parsed = parser.parse_args(arguments(values, "flags"))

    assert vars(parsed) == values


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.text()))
def test_sagemaker_style_is_two_tokens_for_each_name(values: dict[str, Any]) -> None:
    tokens = arguments(values, "sagemaker")

    assert [name.lstrip("-") for name in tokens[::2]] == [name.lstrip("-") for name in sorted(values)]
    assert tokens[1::2] == tuple("" if values[name] is None else str(values[name]) for name in sorted(values))


def test_hostile_text_reaches_a_process_unaltered() -> None:
    values = {"a": "$(id) `id` ; 'x' \"y\" \\ \n\t*", "b": "--c", "ü": "日本 🙂", "d": ""}
    tokens = arguments(values, "sagemaker")

    completed = subprocess.run(
        [sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *tokens], capture_output=True
    )

    assert completed.stdout.decode().strip() == ascii(list(tokens))


def test_the_longest_argument_is_one_a_process_can_be_given() -> None:
    longest = "x" * (ONE_STRING_BYTES - 1)

    check(("--k", longest))
    completed = subprocess.run(["/bin/true", longest], check=False)

    assert completed.returncode == 0


def test_an_argument_that_is_too_long_is_named_with_a_way_out() -> None:
    too_long = "x" * ONE_STRING_BYTES

    with pytest.raises(OSError, match="too long"):
        subprocess.run(["/bin/true", too_long], check=False)
    with pytest.raises(UserError) as caught:
        check(("--a", "1", "--prompt", too_long))

    assert "argument --prompt: expected a value that fits a command line, found one of 131,072 bytes" in str(
        caught.value
    )
    assert "TOOLKIT_ARGUMENT_STYLE=none" in str(caught.value)


@pytest.mark.parametrize(("token", "reason"), [("a\0b", "NUL"), ("\ud83d", "half a surrogate pair")])
def test_text_that_no_process_can_be_given_is_refused(token: str, reason: str) -> None:
    with pytest.raises(UserError, match=f"argument --k: .*{reason}"):
        check(("--k", token))


def test_the_page_shows_the_arguments_of_each_style() -> None:
    page = (Path(__file__).parents[2] / "docs/arguments.md").read_text()
    example = page.partition("```json\n")[2].partition("```")[0]

    for style in get_args(ArgumentStyle):
        row = re.search(rf"^\| `{style}`[^|]*\|\s*`?(.*?)`?\s*\|$", page, re.M)
        assert row is not None
        assert tuple(shlex.split(row[1])) == arguments(json.loads(example), style)
