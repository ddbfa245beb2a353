import pytest

from toolkit.errors import ContractError
from toolkit.metrics.definition import compile, pairs


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (None, ()),
        ([], ()),
        ({}, ()),
        ([{"Name": "loss", "Regex": "l=(.*)"}], (("loss", "l=(.*)"),)),
        ([{"Name": "a", "Regex": "(1)", "Unit": "s"}, {"Name": "a", "Regex": "(2)"}], (("a", "(1)"), ("a", "(2)"))),
        ({"loss": "l=(.*)", "acc": "a=(.*)"}, (("loss", "l=(.*)"), ("acc", "a=(.*)"))),
    ],
)
def test_both_forms_of_the_document_are_read(document: object, expected: tuple[tuple[str, str], ...]) -> None:
    assert pairs(document, "metrics.json") == expected


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("loss", "metrics.json: $: expected a list or an object, found 'loss'"),
        (["loss"], "metrics.json: $[0]: expected an object, found 'loss'"),
        ([{"Name": "a", "Regex": "(1)"}, {"Name": "loss"}], "metrics.json: $[1]: expected a key 'Regex', found none"),
        ([{"name": "a", "regex": "(1)"}], "metrics.json: $[0]: expected a key 'Name', found none"),
        ([{"Name": "", "Regex": "(1)"}], "metrics.json: $[0]: expected a name, found ''"),
        ([{"Name": "a", "Regex": None}], "metrics.json: $[0]: expected a regex as a string, found null"),
        ({"loss": ["x"]}, "metrics.json: $.loss: expected a regex as a string, found a list"),
    ],
)
def test_another_document_is_told_what_is_wrong_and_where(document: object, words: str) -> None:
    with pytest.raises(ContractError) as raised:
        pairs(document, "metrics.json")

    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        ("loss=([0-9.]+", "unterminated subpattern at position 5"),
        ("loss=[0-9.]+", "expected a group that holds the value, found none"),
        ("loss=(?:[0-9.]+)", "expected a group that holds the value, found none"),
        ("(?<loss>[0-9.]+)", "unknown extension ?<l at position 1"),
        ("(a{99999999999999999999})", "too large"),
        ("*", "nothing to repeat at position 0"),
    ],
)
def test_a_regex_that_cannot_be_used_names_metric_file_and_position(regex: str, words: str) -> None:
    with pytest.raises(ContractError) as raised:
        compile([("good", "(x)"), ("bad", regex)], "metrics.json")

    assert words in str(raised.value)
    assert str(raised.value).startswith("metrics.json: metric 'bad': ")
    assert repr(regex) in str(raised.value)
    assert raised.value.exit_code == 78


def test_a_metric_without_a_name_is_refused() -> None:
    with pytest.raises(ContractError, match="expected a metric's name, found none for '\\(x\\)'"):
        compile([("good", "(x)"), ("", "(x)")], "job.toml")


def test_a_doubtful_class_is_no_noise() -> None:
    """Python warns of `[[` on stderr, and warnings are errors here."""
    (definition,) = compile([("a", "[[0-9]+=([0-9.]+)")], "metrics.json")

    assert definition.pattern.search("1=2")


@pytest.mark.parametrize(
    ("regex", "value_group", "step_group"),
    [
        (r"l=(\d)", 1, None),
        (r"l=(\d) s=(?P<step>\d)", 1, 2),
        (r"s=(?P<step>\d) l=(\d)", 2, 1),
        (r"s=(?P<step>\d)", 1, None),
    ],
)
def test_the_value_is_the_first_group_that_is_not_the_step(
    regex: str, value_group: int, step_group: int | None
) -> None:
    (definition,) = compile([("l", regex)], "metrics.json")

    assert (definition.value_group, definition.step_group) == (value_group, step_group)


@pytest.mark.parametrize("unit", ["a", "(a|b)", "[a-z]"])
def test_a_regex_that_would_hold_the_start_for_seconds_is_refused(unit: str) -> None:
    with pytest.raises(ContractError, match="expected a regular expression of at most 20,000 characters"):
        compile([("loss", "loss=(.*)" + unit * 40_000)], "definitions")
