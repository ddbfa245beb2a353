"""The answer of `toolkit why` fits into 2,000 bytes, whatever its parts are, and names what to do."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.job.cause import Cause
from toolkit.job.explanation import (
    LIMIT_BYTES,
    Explanation,
    LogLine,
    choose_action,
    describe_culprit,
    group_names,
    write_json,
    write_text,
)

KEYS = [field.name for field in msgspec.structs.fields(Explanation)]
LONG = 'Fehler \\ "größer" 日本語\n' * 400


@given(st.text(max_size=3000), st.lists(st.text(max_size=300), max_size=20), st.booleans())
def test_both_forms_fit_and_the_json_has_every_key(text: str, places: list[str], is_long: bool) -> None:
    text = LONG + text if is_long else text
    explanation = Explanation(
        job=text,
        folder=text,
        state="failed",
        exit_code=1,
        kind=text,
        cause=text,
        next_action=text,
        culprit=text,
        host=text,
        evidence=LogLine(text=text, file=text, offset_bytes=10**15),
        healthy=text,
        look=tuple(places),
    )

    document = write_json(explanation)

    assert len(document.encode()) <= LIMIT_BYTES
    assert list(json.loads(document)) == KEYS
    assert len(write_text(explanation).encode("utf-8", "replace")) <= LIMIT_BYTES


def test_a_long_cause_alone_is_not_cut_further_than_the_limit_asks_for() -> None:
    cause = "x" * 1500

    assert f"Cause: {cause}\n" in write_text(Explanation(job="a", state="failed", cause=cause))


@pytest.mark.parametrize(
    ("code", "cause", "words"),
    [
        (1, Cause(advice="Lower the learning rate"), "Lower the learning rate."),
        (1, Cause(blame="user", message="ValueError: nan (at /opt/ml/code/train.py:5 in step)"), "train.py:5, which"),
        (137, Cause(blame="user", process_end="killed by SIGKILL (signal 9)"), "who killed it"),
        (139, Cause(blame="user", process_end="killed by SIGSEGV (signal 11)"), "native code"),
        (124, Cause(blame="user", kind="Hang"), "output/data/stacks"),
        (75, Cause(blame="platform"), "75 asks for another try"),
        (78, Cause(blame="job"), "toolkit check"),
        (70, Cause(blame="toolkit"), "the toolkit's"),
        (93, Cause(blame="user", kind="HealthRule"), "another try does not help"),
        (3, Cause(blame="user", process_end="ended with code 3"), "last lines of the log"),
    ],
)
def test_every_kind_of_failure_says_what_to_do(code: int, cause: Cause, words: str) -> None:
    assert words in choose_action("failed", code, cause)


def test_the_culprit_is_named_with_its_host_rank_and_end() -> None:
    cause = Cause(process="rank 3", rank=3, local_rank=1, pid=71, process_end="killed", identical_failures=1)

    assert describe_culprit(cause, "b") == (
        "host b, rank 3 (local rank 1), pid 71: killed; 1 more rank with the same traceback"
    )
    assert describe_culprit(Cause(), "") == ""


def test_many_names_are_counted() -> None:
    assert group_names([f"algo-{number}" for number in range(6)]) == "algo-0, algo-1, algo-2, algo-3 and 2 more"
