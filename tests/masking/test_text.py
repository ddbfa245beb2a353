"""What is masked in free text. The shapes and the ordinary lines in tests/data/secrets were written before the code."""

import json
import time
from pathlib import Path

import pytest

from toolkit.log import masked
from toolkit.masking import shapes
from toolkit.masking.text import MASK, mask, mask_arguments

DATA = Path(__file__).parents[1] / "data/secrets"


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


def shown(row: dict[str, str], text: str) -> str:
    """Return *text* as we write it: in a line, or as the value of a hyperparameter or variable."""
    return mask(text) if row["kind"] == "text" else mask(str(masked({row["name"]: text})[row["name"]]))


def test_at_least_nine_of_ten_secrets_are_masked() -> None:
    missed = []
    given = rows("secrets.jsonl")
    for row in given:
        # The secret stands between « and »; a mark inside keeps scanners of repositories from taking it for a real one.
        marked = row.get("text", row.get("value", "")).replace("⁞", "")
        secret = marked[marked.index("«") + 1 : marked.index("»")]

        text = shown(row, marked.replace("«", "").replace("»", ""))

        if any(part in text for part in secret.split("\n")):
            missed.append(text)

    assert len(given) == 80
    assert len(missed) <= 8, missed


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("t.py --SECRET short --lr 1", f"t.py --SECRET {MASK} --lr 1"),
        ("t.py --password -x --lr 1", f"t.py --password {MASK} --lr 1"),
        ("t.py --password --lr 1", "t.py --password --lr 1"),
        ("t.py --max_tokens 512 --lr 1", "t.py --max_tokens 512 --lr 1"),
        ("t.py -x --pw=ab api_key", "t.py -x --pw=ab api_key"),  # One token: mask's.
        ("t.py --api_key", "t.py --api_key"),
    ],
)
def test_what_stands_behind_an_option_of_a_secrets_name_is_masked_however_short(argv: str, shown: str) -> None:
    assert " ".join(mask_arguments(argv.split())) == shown


def test_at_most_two_of_two_hundred_ordinary_values_are_masked() -> None:
    given = [(row, row.get("text", row.get("value", ""))) for row in rows("ordinary.jsonl")]

    changed = [text for row, text in given if shown(row, text) != text]

    assert len(given) == 200
    assert len(changed) <= 2, changed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.py --api_key=X1 --epochs 3", f"train.py --api_key={MASK} --epochs 3"),
        ("['train.py', '--password', 'tiger', '--lr', '1']", f"['train.py', '--password', '{MASK}', '--lr', '1']"),
        ("--db-password 'two words' --lr 1", f"--db-password '{MASK}' --lr 1"),
        ("--password 'it'\"'\"'s two' --lr 1", f"--password '{MASK}' --lr 1"),
        ("--password='it'\\''s two' --lr 1", f"--password='{MASK}' --lr 1"),
        ('{"api_key": "a\\"b", "lr": 1}', f'{{"api_key": "{MASK}", "lr": 1}}'),
        ('{"value": "tiger", "name": "DB_PASSWORD"}', f'{{"value": "{MASK}", "name": "DB_PASSWORD"}}'),
        ("Env(name='API_KEY', value='tiger')", f"Env(name='API_KEY', value='{MASK}')"),
        ("https://u:p@ss@h/x", f"https://u:{MASK}@h/x"),
        ("at line 2:\\nghp_" + "a1B2" * 9, f"at line 2:\\n{MASK}"),
        ("auth_tokens: ['a', 'b'] lr: 1", f"auth_tokens: {MASK} lr: 1"),
        ("client_secret = tiger; x", f"client_secret = {MASK}; x"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n", f"-----BEGIN PRIVATE KEY-----{MASK}"),
        ("password = getpass.getpass()", "password = getpass.getpass()"),
        ("Client(hf_token=token, secret=secret)", "Client(hf_token=token, secret=secret)"),
        ("usage: train.py --api-key API_KEY", "usage: train.py --api-key API_KEY"),
        ("KeyError: 'password'", "KeyError: 'password'"),
    ],
)
def test_the_value_is_masked_and_what_stands_around_it_stays(text: str, expected: str) -> None:
    assert mask(text) == expected


def units() -> list[str]:
    """Return texts that, repeated, make patterns search long for nothing."""
    own = ["a", "a-", "token=", "--token ", '"password": "', "key=[", 'key="', "name: token, value: {", "https://a:"]
    own += [
        '{"name": "API_KEY", "value": ',
        "value: a, name: ",
        "bearer ",
        "-----BEGIN PRIVATE KEY-----",
        "\\",
        "login a ",
    ]
    return own + [hint for shape in shapes.all_shapes() for hint in shape.hints[:1]]


def test_a_long_line_of_anything_is_masked_in_the_time_that_its_length_needs() -> None:
    begun = time.process_time()

    for unit in units():
        mask(unit * (65536 // len(unit)))

    # 1.7 s on a slow machine for 60 texts; a search that goes back over the text takes minutes.
    assert time.process_time() - begun < 30


def test_every_shape_says_where_its_pattern_is_from_and_is_a_pattern() -> None:
    document = json.loads(shapes.FILE.read_text("utf-8"))

    assert {source["name"]: source["licence"] for source in document["sources"]} == {
        "detect-secrets": "Apache-2.0",
        "toolkit": "Apache-2.0",
    }
    for shape in shapes.all_shapes():
        assert shape.source in {"detect-secrets", "toolkit"}
        assert all(hint == hint.lower() for hint in shape.hints)
        assert not list(shapes.found(f"nothing here but {shape.hints[0]}", f"nothing here but {shape.hints[0]}"))
