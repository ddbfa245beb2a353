"""Metric definitions of any regex: a clear error, or samples as the plain rule gives them; never a hang."""

import time

from hypothesis import strategies as st

from tests.fuzz.target import target
from tests.metrics.naive import naive
from toolkit.errors import ContractError
from toolkit.metrics.capture import MetricCapture, OverrunError
from toolkit.metrics.definition import compile
from toolkit.metrics.guard import MatchGuard
from toolkit.metrics.warn import fault, omission, suggestion, warnings

WITHIN_S = 5.0
# Of CPU: one match may take the guard's budget twice, and a definition is tried some ten times.
ATOMS = (
    "a",
    "loss",
    "=",
    " ",
    "µ",
    "日本",
    r"\d",
    r"\D",
    r"\s",
    r"\S",
    r"\w",
    r"\W",
    ".",
    "[0-9.]",
    "[^=]",
    "[a-z]",
    "[µμ]",
    "[一-龥]",
    r"[\x00-\x08]",
    r"[^\x00-\U0010ffff]",
    "[\U0001f600-\U0001f64f]",
    "^",
    "$",
    r"\b",
    r"\Z",
    "é",
    r"\.",
    "-",
)
REPEATS = ("", "", "", "*", "+", "?", "*?", "+?", "{3}", "{2,}", "{0,40}", "{20}", "{1000}")
GROUPS = ("({})", "(?:{})", "(?P<step>{})", "(?i:{})", "(?={})", "(?!{})", "(?<=a{{0}})({})", r"({})\1")
TEXTS = (
    "loss=0.5",
    "loss=4.5e-05 step=7",
    "a" * 40,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
    "=" * 30,
    "µs 1.5",
    "日本0.25",
    "loss= nan",
    "",
    " ",
    "\r",
    "\u2028loss=1",
    "epoch 3: loss=1.25 a=2",
    "x" * 600,
)


def _joined(inner: "st.SearchStrategy[str]") -> "st.SearchStrategy[str]":
    repeated = st.tuples(inner, st.sampled_from(REPEATS)).map("".join)
    grouped = st.tuples(st.sampled_from(GROUPS), inner).map(lambda pair: pair[0].replace("{}", pair[1], 1))
    either = st.lists(inner, min_size=2, max_size=2).map(lambda pair: f"(?:{pair[0]}|{pair[1]})")
    return repeated | grouped | either | st.lists(inner, min_size=1, max_size=4).map("".join)


pieces = st.recursive(st.sampled_from(ATOMS), _joined, max_leaves=10)
regexes = st.tuples(pieces, st.sampled_from(("([0-9.]+)", r"=(\d+)", "(.*)", "")), pieces | st.just("")).map("".join)
lines = st.lists(st.sampled_from(TEXTS), max_size=4).map("\n".join)


@target(st.lists(regexes | st.text(max_size=6), min_size=1, max_size=2), lines)
def definitions_neither_raise_nor_hang(regexes: list[str], text: str) -> None:
    pairs = tuple((f"m{index}", regex) for index, regex in enumerate(regexes))
    try:
        definitions = compile(pairs, "fuzz")
    except ContractError:
        return
    block = text.encode()
    began_s = time.process_time()
    with MatchGuard() as guard:
        for definition in definitions:
            warnings(definition, guard)
            fault(definition, guard)
            omission(definition, guard)
            suggestion(definition, guard)
        messages: list[str] = []
        capture = MetricCapture(definitions, warn=messages.append, watch=guard)
        samples = capture.lines(block, host="", rank=0, now_s=0.0)
        expected = None if messages else _plain(block, pairs, guard)
    assert time.process_time() - began_s < WITHIN_S, f"{time.process_time() - began_s:.1f} s of CPU"
    if expected is not None:
        assert [(sample.name, repr(sample.value), sample.step) for sample in samples] == expected


def _plain(
    block: bytes, pairs: tuple[tuple[str, str], ...], guard: MatchGuard
) -> "list[tuple[str, str, int | None]] | None":
    """Return what the plain rule gives, None where that takes too long."""
    guard.arm()
    guard.match_count += 1
    guard.inside = True
    try:
        return naive(block, pairs)
    except OverrunError:
        return None
    finally:
        guard.disarm()
