import re

import pytest

from tests.metrics.naive import GPT2
from toolkit.metrics.capture import Unwatched
from toolkit.metrics.definition import Definition, compile
from toolkit.metrics.guard import Guard
from toolkit.metrics.warn import KERAS_3, NUMBER, TF_KERAS, keras_3, keras_3_warning, omission, warnings


def defined(regex: str) -> Definition:
    return compile([("m", regex)], "test")[0]


def test_the_learning_rate_of_the_gpt2_job_is_warned_of_with_a_better_regex() -> None:
    (words,) = warnings(defined(r"'learning_rate': ([0-9.]*)"), Unwatched())

    assert "reads 4.5e-05 as 4.5" in words
    better = words.partition(" Write ")[2]
    match = re.search(better, "{'loss': 0.5, 'learning_rate': 4.5e-05, 'epoch': 1}")
    assert match is not None
    assert match[1] == "4.5e-05"


def test_each_of_the_gpt2_definitions_draws_one_warning() -> None:
    assert [len(warnings(definition, Unwatched())) for definition in compile(GPT2, "test")] == [1] * 7


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        (r"loss: ([0-9.]*?) ", "does not see 4.5e-05, -0.5 or nan"),
        (r"- ([0-9.]*?)ms/step", "does not see 4.5e-05"),
        (r"loss=(-?[0-9]+\.[0-9]+)", "reads 4.5e-05 as 4.5; does not see nan"),
        (r"x=([0-9.e-]+)", "does not see 1.5e+16"),
        (r"loss.*?([0-9.]+)", "-0.5 as 0.5"),
        (r"loss\D+([0-9.]+(?:e[-+]\d+)?|nan|inf)", "reads -0.5 as 0.5"),
        (r"(?i)Loss=([0-9.]+)", "reads 4.5e-05 as 4.5"),
        (r"(?<=loss=)([0-9.]+)(?=,)", "does not see 4.5e-05"),
        (r"(\d+)/\1 loss=[^=]", ""),
        (r"(?:loss|acc)[^\d\s]([0-9.]+)", "reads 4.5e-05 as 4.5"),
        (r"(?:loss=([0-9.]+))?$", "4.5e-05"),
        (r"acc=[0-9.]+|loss=([0-9.]+)", ""),
        (r"\[([0-9.]+)\]", "does not see 4.5e-05"),
        (r"(?P<step>\d+) loss=([0-9.]+)", "reads 4.5e-05 as 4.5"),
    ],
)
def test_what_comes_out_wrong_is_said_once(regex: str, words: str) -> None:
    found = warnings(defined(regex), Unwatched())

    assert len(found) <= 1
    assert words in "".join(found)
    assert found or not words


@pytest.mark.parametrize(
    "regex",
    [
        f"loss={NUMBER}",
        r"loss=([-+0-9.eE]+)",
        r"loss=([0-9.eE+-]+)",
        r"loss: (\S+)",
        r"loss: (.*)$",
        r"loss=([+-]?\d*(?:\.\d+)?(?:[Ee][+-]?\d+)?)",
        r"accuracy=([0-9.]+(?:[eE][-+]?[0-9]+)?)",
        r"epoch=(\d+)",
        r"Epoch (\d+)/\d+",
        r".*([0-9.]+)",
        r"(\w+)=\1",
        r"(a)(?(1)b|c)",
        r"(a{5000000})=([0-9.]+)",
    ],
)
def test_a_good_regex_and_one_for_whole_numbers_draw_no_warning(regex: str) -> None:
    assert warnings(Definition(name="m", regex=regex, pattern=re.compile(regex)), Unwatched()) == ()


@pytest.mark.parametrize(
    "regex",
    [
        r"[(]([0-9.]+)[)]",
        r"\(([0-9.]+)\)",
        r"[]a(]+([0-9.]+)",
        r"[^]a(]([0-9.]+)",
        r"(?:x(y))([0-9.]+)",
        r"(([0-9.]+))=",
    ],
)
def test_the_better_regex_replaces_the_right_parentheses(regex: str) -> None:
    definition = defined(regex)
    if definition.pattern.groups > 1:
        return  # Its first group is not the number, or holds another: nothing is suggested that was not shown to work.
    (words,) = warnings(definition, Unwatched())

    better = words.partition(" Write ")[2]
    assert NUMBER in better
    assert re.compile(better).groups == definition.pattern.groups


def test_what_is_merely_not_seen_is_for_those_who_ask() -> None:
    definition = defined(r"loss=([-+0-9.eE]+)")

    assert warnings(definition, Unwatched()) == ()
    assert omission(definition, Unwatched()) == "does not see nan"
    assert omission(defined(r"loss=([0-9.]+)"), Unwatched()) == ""


@pytest.mark.parametrize(
    "regex",
    [
        r"time=([0-9.]+) [µμ]s",
        r"[一-龥]+([0-9.]+)",
        r"(?<=[α-ω]=)([0-9.]+)",
        r"[\x00-\x08]([0-9.]+)",
        r"[\U0001f600-\U0001f64f] ([0-9.]+)",
    ],
)
def test_characters_that_logs_rarely_hold_are_written_from_the_class_itself(regex: str) -> None:
    (words,) = warnings(defined(regex), Unwatched())

    assert "4.5e-05" in words


@pytest.mark.parametrize(
    "regex", [r"[^\x00-\U0010ffff]([0-9.]+)", r"(a)?(?(1)b|c)([0-9.]+)", r"(?:" * 90 + "a" + ")" * 90 + "(1)"]
)
def test_nothing_is_said_of_a_regex_for_which_no_text_can_be_written(regex: str) -> None:
    assert warnings(defined(regex), Unwatched()) == ()


@pytest.mark.parametrize(
    "regex",
    [
        r"(?:a|a){20}(?:a|a){20}=([0-9.]+)$",
        r"(?:(?:a|aa)+){15}b=([0-9.]+)$",
        r"(?:[ab]|[ab]){20}(?:[ab]|[ab]){20}=([0-9.]+)\Z",
    ],
)
def test_a_regex_that_takes_too_long_is_told_of_and_not_waited_for(regex: str) -> None:
    with Guard() as guard:
        (words,) = warnings(defined(regex), guard)

    assert "takes too long" in words
    assert "Write" not in words


NOTEBOOK = [
    ("loss", r"loss: ([0-9.]*?) "),
    ("accuracy", r"accuracy: ([0-9.]*?) "),
    ("s/epoch", r"- ([0-9.]*?)s/epoch"),
    ("ms/step", r"- ([0-9.]*?)ms/step"),
]


def test_the_vit_notebooks_definitions_that_keras_3_never_matches_come_with_ones_that_do() -> None:
    found = {each.name: (each, better) for each, better in keras_3(compile(NOTEBOOK, "test"), Unwatched())}

    assert set(found) == {"loss", "s/epoch"}
    values = {}
    for name, (definition, better) in found.items():
        assert definition.pattern.search(TF_KERAS) and not definition.pattern.search(KERAS_3)
        match = re.search(better, KERAS_3)
        assert match is not None
        values[name] = match[1]
        assert better in keras_3_warning(definition, better)
    assert values == {"loss": "0.2057", "s/epoch": "5"}


def test_a_job_without_a_definition_of_keras_is_not_warned_of_keras() -> None:
    assert list(keras_3(compile(GPT2, "test") + compile([("loss", r"loss: ([0-9.]*?) ")], "test"), Unwatched())) == []
