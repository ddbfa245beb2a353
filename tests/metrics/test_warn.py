import re

import pytest

from tests.metrics.naive import GPT2
from toolkit.metrics.capture import OverrunError, Unwatched
from toolkit.metrics.definition import Definition, compile
from toolkit.metrics.guard import MatchGuard
from toolkit.metrics.warn import (
    KERAS_3,
    NUMBER,
    TF_KERAS,
    TOO_LONG,
    fault,
    for_both_transformers,
    keras_3,
    keras_3_warning,
    omission,
    transformers_5,
    transformers_5_warning,
    warnings,
)


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
    texts = warnings(defined(regex), Unwatched())

    assert len(texts) <= 1
    assert words in "".join(texts)
    assert texts or not words


@pytest.mark.parametrize(
    "regex",
    [
        r"(?<!val_)loss: ([0-9.]+)",
        r"loss: ([0-9.]+)(?!%)",
        r"^(?:train|eval) loss: ([0-9.]+)",
        r"loss(?:=|: )([0-9.]+)",
        r"validation-(?:error|rmse):([0-9.]+)",
        r"^(?:rank 0: )?loss: ([0-9.]+)",
        r"loss=(?:nan|([0-9.]+))",
        r"(?:abc){2} ([0-9.]+)",
        r"(?:loss=([0-9.]+))? of (?:a|b)",
    ],
)
def test_groups_branches_and_lookarounds_do_not_hide_what_comes_out_wrong(regex: str) -> None:
    (warning,) = warnings(defined(regex), Unwatched())

    assert "4.5e-05" in warning


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


class _OverrunsFrom(Unwatched):
    """A watch that interrupts the match of this number, and those behind it."""

    def __init__(self, number: int) -> None:
        self._left = number

    def arm(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise OverrunError


@pytest.mark.parametrize("number", range(1, 12))
def test_a_match_that_takes_too_long_is_no_omission_whenever_that_shows(number: int) -> None:
    definition = defined(r"loss=([-+0-9.eE]+)")

    assert omission(definition, _OverrunsFrom(number)) in ("", "does not see nan")
    assert fault(definition, _OverrunsFrom(number)) in ("", TOO_LONG)


@pytest.mark.parametrize(
    "regex",
    [
        r"time=([0-9.]+) [µμ]s",
        r"[一-龥]+([0-9.]+)",
        r"(?<=[α-ω]=)([0-9.]+)",
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
    with MatchGuard() as guard:
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
    by_name = {metric.name: (metric, better) for metric, better in keras_3(compile(NOTEBOOK, "test"), Unwatched())}

    assert set(by_name) == {"loss", "s/epoch"}
    values = {}
    for name, (definition, better) in by_name.items():
        assert definition.pattern.search(TF_KERAS) and not definition.pattern.search(KERAS_3)
        match = re.search(better, KERAS_3)
        assert match is not None
        values[name] = match[1]
        assert better in keras_3_warning(definition, better)
    assert values == {"loss": "0.2057", "s/epoch": "5"}


def test_a_job_without_a_definition_of_keras_is_not_warned_of_keras() -> None:
    assert list(keras_3(compile(GPT2, "test") + compile([("loss", r"loss: ([0-9.]*?) ")], "test"), Unwatched())) == []


# What PrinterCallback of transformers 5.23.0 wrote in a job.
PRINTED = (
    "{'loss': '4.318', 'grad_norm': '0.8296', 'learning_rate': '8.333e-06', 'epoch': '0.75'}",
    "{'train_runtime': '2.019', 'train_samples_per_second': '23.77', 'train_steps_per_second': '2.972', "
    "'train_loss': '4.321', 'epoch': '0.75'}",
)


def test_the_gpt2_articles_definitions_come_with_ones_that_read_quoted_numbers() -> None:
    rewritten = list(transformers_5(compile(GPT2, "test"), Unwatched()))

    assert [metric.name for metric in rewritten] == [name for name, _ in GPT2]
    values = {}
    for definition in rewritten:
        better = for_both_transformers(definition, Unwatched())
        assert not any(definition.pattern.search(line) and definition.pattern.search(line)[1] for line in PRINTED)  # type: ignore[index]
        read = [match[1] for line in PRINTED if (match := re.search(better, line))]
        unquoted = [
            match[1] for line in PRINTED if (match := re.search(better, line.replace(": '", ": ").replace("',", ",")))
        ]
        assert read and read == unquoted
        values[definition.regex.split("'")[1]] = float(read[0])
    assert values["learning_rate"] == 8.333e-06 and values["train_runtime"] == 2.019 and values["loss"] == 4.318
    line = transformers_5_warning(rewritten, Unwatched())
    assert (
        line.count("Write ") == 1
        and for_both_transformers(rewritten[0], Unwatched()) in line
        and all(repr(name) in line for name, _ in GPT2)
    )


def test_what_stands_behind_the_number_stays_in_the_better_regex() -> None:
    definitions = compile([("loss", r"'loss': ([0-9.]+), "), ("norm", r"'grad_norm': ([0-9.]+)")], "test")

    better, other = (for_both_transformers(metric, Unwatched()) for metric in transformers_5(definitions, Unwatched()))

    assert better == f"'loss': '?{NUMBER}'?, " and re.search(better, PRINTED[0])
    assert other == f"'grad_norm': '?{NUMBER}"


@pytest.mark.parametrize(
    "definitions",
    [
        [("loss", r"'loss': ([0-9.]*)")],
        [("loss", r"'loss': '?([0-9.]+)"), ("norm", r"'grad_norm': '([0-9.]+)")],
        [("loss", r"loss=([0-9.]+)"), ("runtime", r"train_runtime=([0-9.]+)")],
    ],
    ids=["a dictionary of the script's own", "quotes are known", "another form"],
)
def test_other_definitions_are_not_warned_of_transformers(definitions: list[tuple[str, str]]) -> None:
    assert list(transformers_5(compile(definitions, "test"), Unwatched())) == []
