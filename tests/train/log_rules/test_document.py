import json
from typing import Any

import pytest

from toolkit.errors import ContractError
from toolkit.train.log_rules.document import EXPECTED, Rule, compiled, read

EVERYTHING = b"""
[[rules]]
name = "throughput"
pattern = 'speed: ([0-9.]+)'
expected_start_within_s = 120
expected_again_every_s = 60.5
threshold = 80
operator = "lteq"
data_points = 25
fault_on_match = false
stop_pattern = "over"
action = "stop"
message = "slow"
"""


def encode_rule(**keys: Any) -> bytes:
    return json.dumps([{"name": "r", "pattern": "x=([0-9]+)", **keys}]).encode()


def test_every_key_is_read_from_toml() -> None:
    rules = read(EVERYTHING, "rules.toml")

    assert rules == (
        Rule(
            name="throughput",
            pattern="speed: ([0-9.]+)",
            expected_start_within_s=120.0,
            expected_again_every_s=60.5,
            threshold=80.0,
            operator="lteq",
            data_points=25,
            fault_on_match=False,
            stop_pattern="over",
            action="stop",
            message="slow",
        ),
    )


@pytest.mark.parametrize("wrapped", [False, True], ids=["list", "object"])
def test_json_says_the_same(wrapped: bool) -> None:
    entries = [{"name": "a", "pattern": "x"}, {"name": "b", "pattern": "y", "action": "no-retry"}]

    rules = read(json.dumps({"rules": entries} if wrapped else entries).encode(), "rules.json")

    assert rules == (Rule(name="a", pattern="x"), Rule(name="b", pattern="y", action="no-retry"))


def test_every_key_of_a_rule_has_words_for_its_error() -> None:
    assert set(EXPECTED) == set(Rule.__struct_fields__)


@pytest.mark.parametrize(
    ("keys", "faults"),
    [
        ({}, True),
        ({"expected_start_within_s": 1}, False),
        ({"expected_again_every_s": 1}, False),
        ({"threshold": 1, "operator": "gt"}, False),
        ({"threshold": 1, "operator": "gt", "fault_on_match": True}, True),
    ],
)
def test_a_match_alone_is_a_finding_where_nothing_else_is_checked(keys: dict[str, Any], faults: bool) -> None:
    (rule,) = read(encode_rule(**keys), "r.json")

    assert rule.faults == faults


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": ""}, "r.json: rule 1: name: expected a text, found ''"),
        ({"name": 3}, "r.json: rule 1: name: expected a text, found 3"),
        ({"pattern": ["x"]}, "r.json: rule 'r': pattern: expected a regular expression as a text, found a list"),
        ({"pattern": "x("}, "r.json: rule 'r': pattern: expected a regular expression, found 'x(': missing )"),
        ({"stop_pattern": "[z-a]"}, "rule 'r': stop_pattern: expected a regular expression, found '[z-a]': bad char"),
        ({"stop_pattern": None}, "rule 'r': stop_pattern: expected a regular expression as a text, found null"),
        (
            {"expected_start_within_s": "60"},
            "expected_start_within_s: expected seconds, above 0, at most 10,000,000, f",
        ),
        (
            {"expected_again_every_s": 0},
            "expected_again_every_s: expected seconds, above 0, at most 10,000,000, found 0",
        ),
        ({"threshold": True, "operator": "gt"}, "threshold: expected a number, found true"),
        ({"threshold": 1, "operator": "<"}, "operator: expected one of 'gt', 'gteq', 'lt', 'lteq', 'eq', found '<'"),
        ({"threshold": 1}, "rule 'r': operator: expected one of 'gt', 'gteq', 'lt', 'lteq', 'eq' beside 'threshold'"),
        ({"operator": "gt"}, "rule 'r': threshold: expected a number beside 'operator', found none"),
        ({"threshold": 1, "operator": "gt", "data_points": 0}, "data_points: expected a whole number, 1 or more, f"),
        ({"threshold": 1, "operator": "gt", "data_points": 1.5}, "data_points: expected a whole number, 1 or more, f"),
        ({"data_points": 3}, "rule 'r': data_points: expected a 'threshold' beside it, found none"),
        ({"threshold": 1, "operator": "gt", "pattern": "x"}, "pattern: expected a group that holds the value"),
        ({"fault_on_match": "yes"}, "fault_on_match: expected true or false, found 'yes'"),
        ({"fault_on_match": False}, "fault_on_match: expected true or another check, found false and no check"),
        ({"action": "kill"}, "action: expected one of 'label', 'warn', 'stop', 'no-retry', found 'kill'"),
        ({"acton": "stop"}, "rule 'r': expected one of the keys name, pattern, "),
        ({"acton": "stop"}, "found 'acton'. Did you mean action?"),
        ({"stop-pattern": "x"}, "found 'stop-pattern'. Did you mean stop_pattern?"),
        ({"xyz": 1}, "found 'xyz'. Correct the key or remove it."),
        ({"logPattern": "x"}, "found 'logPattern'. Did you mean pattern?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_a_wrong_rule_is_named_with_key_expected_and_found(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as error:
        read(encode_rule(**keys), "r.json")

    assert message in str(error.value)


@pytest.mark.parametrize(
    ("content", "source", "message"),
    [
        (b"[[rules]", "r.toml", "r.toml: expected TOML, found a mistake: "),
        (b"name = '\xff'", "r.toml", "r.toml: expected TOML, found bytes that are not UTF-8"),
        (b"[{]", "r.json", "r.json: expected JSON"),
        (b"", "r.toml", "r.toml: expected at least one rule, found none"),
        (b"[]", "r.json", "r.json: expected at least one rule, found none"),
        (b"3", "r.json", "r.json: expected a list of rules, found 3"),
        (b"[3]", "r.json", "r.json: rule 1: expected a table of keys, found 3"),
        (b"[rule]\nname = 'x'", "r.toml", "r.toml: expected the key 'rules' alone, found 'rule'. Did you mean rules?"),
        (b'[{"nam": "x"}]', "r.json", "found 'nam'. Did you mean name?"),
        (b'[{"name": "x", "patern": "x"}]', "r.json", "rule 'x': expected one of the keys name, pattern, "),
        (b'[{"pattern": "x"}]', "r.json", "r.json: rule 1: name: expected a text, found none"),
        (
            b'[{"name": "x"}]',
            "r.json",
            "r.json: rule 'x': pattern: expected a regular expression as a text, found none",
        ),
        (b"[[rules]]\nname = 'x'\npattern = '(x)'\noperator = 'gt'\nthreshold = nan", "r.toml", "a number, found nan"),
        (
            b'[{"name": "x", "pattern": "a"}, {"name": "x", "pattern": "b"}]',
            "r.json",
            "r.json: rule 'x': expected one rule of this name, found two",
        ),
    ],
)
def test_a_wrong_document_is_named_with_its_place(content: bytes, source: str, message: str) -> None:
    with pytest.raises(ContractError) as error:
        read(content, source)

    assert message in str(error.value)


def test_a_regex_that_python_frowns_upon_is_taken_in_silence() -> None:
    assert compiled("[[a]").search("[")  # Warnings are errors here.
