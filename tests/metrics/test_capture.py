import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metrics.naive import GPT2, naive
from toolkit.metrics.capture import LINE_LIMIT, MetricCapture, search_stepwise
from toolkit.metrics.definition import compile
from toolkit.metrics.guard import MatchGuard
from toolkit.metrics.sample import Sample

HUGGING_FACE = b"{'loss': 0.6931, 'learning_rate': 4.5e-05, 'epoch': 0.33}\n"

# (definitions, block): what is tricky, compared with the plain rule.
CASES: dict[str, tuple[tuple[tuple[str, str], ...], bytes]] = {
    "the GPT-2 definitions": (GPT2, b"Some weights...\n" + HUGGING_FACE + b"'train_loss': 0.51, 'train_runtime': 12\n"),
    "train_loss does not count as loss": (GPT2, b"{'train_loss': 0.5}\n"),
    "first of a progress bar's states": ((("l", r"loss=([0-9.]+)"),), b"\rloss=3.0\rloss=2.0\rloss=1.0\n"),
    "a Windows line end": ((("l", r"loss=([0-9.]+)$"), ("m", r"^acc=(.*)$")), b"loss=3.0\r\nacc=0.5\r\nloss=2.0\n"),
    "no newline at the end": ((("l", r"loss=([0-9.]+)"),), b"loss=1.0\nloss=2.0"),
    "empty lines": ((("l", r"([0-9.]*)"),), b"\n\n1.5\n\n"),
    "an empty first match hides a later one": ((("l", r"([0-9.]*)"),), b"loss 1.5\n"),
    "only newlines": ((("l", r"([0-9.]+)"),), b"\n\n\n"),
    "nothing": ((("l", r"([0-9.]+)"),), b""),
    "invalid UTF-8 before, inside and after": (
        (("l", r"l\wss=([0-9.]+)"), ("m", r"loss=([0-9.]+)")),
        b"\xff\xfeloss=1.5\xff\nl\xffss=2\nloss=3\xe2\x82\n",
    ),
    "the replacement character itself": ((("l", "\ufffd=([0-9.]+)"),), b"\xff=1.5\n\xef\xbf\xbd=2.5\n"),
    "letters beyond ASCII": ((("l", r"Verlust \u00e4=([0-9.]+)"),), "Verlust ä=0.5\n".encode()),
    "ignored case": ((("l", r"(?i)Loss=([0-9.]+)"),), b"LOSS=1\nloss=2\nlOsS=3\n"),
    "ignored case beyond ASCII": ((("l", r"(?i)loss k=([0-9.]+)"),), "LOſS \u212a=1\nlosſ K=2\n".encode()),
    "case ignored in a part": ((("l", r"Loss(?i:Now)=([0-9.]+)"),), b"LossNOW=1\nLOSSnow=2\n"),
    "case heeded in a part": ((("l", r"(?i)(?-i:Loss)now=([0-9.]+)"),), b"LossNOW=1\nLOSSnow=2\n"),
    "ignored case beside heeded case": ((("a", r"(?i)LOSS=([0-9]+)"), ("b", r"Loss=([0-9]+)")), b"Loss=1\nloss=2\n"),
    "anchors": ((("l", r"^loss=([0-9.]+)$"),), b"loss=1\n loss=2\nloss=3 \nloss=4"),
    "anchors of lines": ((("l", r"(?m)^loss=([0-9.]+)$"),), b"loss=1\nxloss=2\n"),
    "anchors of texts": ((("l", r"\Aloss=([0-9.]+)\Z"),), b"loss=1\nloss=2\n"),
    "a dot that matches newlines": ((("l", r"(?s)loss=.*?([0-9.]+)"),), b"loss=\n1.5\n"),
    "white space that matches newlines": ((("l", r"loss=\s*([0-9.]+)"),), b"loss=\n1.5\nloss=  2\n"),
    "a newline in the regex": ((("l", "loss\n([0-9.]+)"),), b"loss\n1.5\n"),
    "lookbehind": ((("l", r"(?<=loss=)([0-9.]+)"),), b"loss=1\nacc=2\n"),
    "negative lookbehind": ((("l", r"(?<!train_)loss=([0-9.]+)"),), b"train_loss=1\nloss=2\n"),
    "lookahead": ((("l", r"(?=.*acc)loss=([0-9.]+)"),), b"loss=1 acc\nloss=2\n"),
    "alternatives": ((("l", r"loss=([0-9.]+)|acc=[0-9.]+"),), b"acc=1 loss=2\nloss=3\n"),
    "alternatives with a group each": ((("l", r"(?:loss|acc)=([0-9.]+)"),), b"acc=1 loss=2\nloss=3\n"),
    "a group that takes no part": ((("l", r"(?:loss=([0-9.]+)|acc)"),), b"acc\nloss=3\n"),
    "backreferences": ((("l", r"([0-9])=\1"),), b"1=2\n3=3\n"),
    "a conditional": ((("l", r"(\d)?x(?(1)y|z)"),), b"1xy\nxz\n"),
    "repeats of literals": ((("l", r"(?:ab)+c=([0-9.]+)"), ("m", r"(?:ab)*c=([0-9.]+)")), b"ababc=1\nc=2\n"),
    "verbose": ((("l", "(?x) loss = # the loss\n ([0-9.]+)"),), b"loss=1\nloss = 2\n"),
    "word bounds": ((("l", r"\bloss\b=([0-9.]+)"),), b"loss=1\nxloss=2\n"),
    "several on one line": ((("b", r"b=(\d)"), ("a", r"a=(\d)"), ("a", r"(\d)$")), b"a=1 b=2\nb=3 a=4\n"),
    "one without a literal among others": ((("a", r"a=(\d)"), ("b", r"b=(\d)"), ("c", r"(\d)$")), b"1\n2\n"),
    "literals within literals": ((("a", r"loss: (\d)"), ("b", r"val_loss: (\d)")), b"val_loss: 1 loss: 2\nloss: 3\n"),
    "not a number, infinities": ((("l", r"l=(\S+)"),), b"l=nan\nl=-inf\nl=Infinity\nl=NaN\nl=1e999\nl=none\nl=1_0\n"),
    "not numbers": ((("l", r"l=(.*)"),), b"l=\nl=.\nl=1,5\nl=0x10\nl= 1.5 \nl=5%\n"),
    "carriage returns at the end": ((("l", r"l=(.*)$"),), b"l=1\r\nl=2\r\n"),
    "step of its own definition": ((("l", r"l=(\d+)"), ("step", r"s=(\d+)")), b"l=0\ns=1\nl=1 s=2\nl=2\ns=nan\nl=3\n"),
    "steps that are no steps": (
        (("l", r"l=(\d+)"), ("step", r"s=(\S+)")),
        b"s=1\ns=nan\nl=1\ns=1.5\nl=2\ns=2e1\nl=3\n",
    ),
    "step of a group": ((("l", r"l=(\d+) at (?P<step>\d*)"), ("step", r"s=(\d+)")), b"s=1 l=1 at 7\nl=2 at \n"),
    "step group first": ((("l", r"(?P<step>\d+): l=(\d+)"),), b"12: l=5\n"),
    "step group alone": ((("step", r"s=(?P<step>\d+)"), ("l", r"l=(\d)")), b"s=5 l=1\n"),
}


def captured(block: bytes, definitions: tuple[tuple[str, str], ...]) -> list[tuple[str, str, int | None]]:
    capture = MetricCapture(compile(definitions, "test"), warn=pytest.fail)
    samples = capture.lines(block, host="algo-1", rank=0, now_s=1.0)
    return [(sample.name, repr(sample.value), sample.step) for sample in samples]


@pytest.mark.parametrize("case", CASES)
def test_a_block_gives_what_its_lines_give(case: str) -> None:
    definitions, block = CASES[case]

    assert captured(block, definitions) == naive(block, definitions)


@pytest.mark.parametrize("case", CASES)
def test_a_line_among_thousands_gives_the_same(case: str) -> None:
    """The way through the gate, and the way past it, differ from that of a small block."""
    definitions, block = CASES[case]
    if not block.endswith(b"\n"):
        block += b"\n"
    few = b"it's = plain: text, nothing to see, \xc3\xa4\n" * 300 + block
    many = few + b"\n" * 500 + block * 300

    assert captured(few, definitions) == naive(few, definitions)
    assert captured(many, definitions) == naive(many, definitions)


def test_the_cases_do_capture_something() -> None:
    """Else the comparison above would prove nothing."""
    assert sum(len(naive(block, definitions)) for definitions, block in CASES.values()) > 50


PIECES = st.sampled_from(
    [
        "loss",
        "Loss",
        "LOſS",
        "=",
        ":",
        " ",
        "'",
        "_",
        "1",
        "0.5",
        "-",
        "e-05",
        "nan",
        "inf",
        "\r",
        "\n",
        "ä",
        "K",
        "step",
    ]
)
ATOMS = st.sampled_from(
    [
        "loss",
        "L",
        "=",
        "'",
        "k",
        "s",
        ".",
        r"\d",
        r"\w",
        r"\s",
        "[^=]",
        "[ls]",
        "(?:loss|step)",
        "(?:a|=)",
        r"\b",
        "^",
        "$",
    ]
)


@st.composite
def regexes(draw: st.DrawFn) -> str:
    def part() -> str:
        atoms = [draw(ATOMS) for _ in range(2)]
        repeats = [draw(st.sampled_from(["", "", "", "?", "*", "+", "{2}", "*?"])) for _ in atoms]
        pairs = zip(atoms, repeats, strict=True)
        return "".join(atom if atom in (r"\b", "^", "$") else atom + repeat for atom, repeat in pairs)

    flags = draw(st.sampled_from(["", "", "(?i)", "(?m)", "(?s)", "(?a)"]))
    wrap = draw(st.sampled_from(["{0}", "(?i:{0})", "(?:{0})?", "(?={0})", "(?<!x){0}", "{0}|", "(?:{0}|{0}=)"]))
    value = draw(st.sampled_from(["([0-9.]*)", "([-+0-9.e]+|nan|inf)", r"(\S+)", "(.*)"]))
    return flags + wrap.format(part()) + value + draw(st.sampled_from(["", part(), "$"]))


@settings(deadline=None)
@given(
    st.lists(regexes(), min_size=1, max_size=4),
    st.lists(PIECES, max_size=15).map("".join),
    st.binary(max_size=8),
    st.booleans(),
)
def test_any_block_gives_what_its_lines_give(patterns: list[str], text: str, noise: bytes, with_step: bool) -> None:
    names = ["step" if with_step and place == 1 else f"m{place}" for place in range(len(patterns))]
    definitions = tuple(zip(names, patterns, strict=True))
    block = text.encode() + noise + text.encode()

    assert captured(block, definitions) == naive(block, definitions)


@settings(deadline=None)
@given(regexes(), st.lists(PIECES, max_size=10).map("".join), st.integers(0, 3))
def test_searching_position_by_position_finds_the_same(regex: str, text: str, position: int) -> None:
    pattern = re.compile(regex)

    position = min(position, len(text))

    stepwise = search_stepwise(pattern, text, position)

    at_once = pattern.search(text, position)
    assert (stepwise and (stepwise.span(), stepwise.groups())) == (at_once and (at_once.span(), at_once.groups()))


def test_a_sample_says_when_where_and_from_which_rank() -> None:
    capture = MetricCapture(compile([("loss", r"loss=([0-9.]+)")], "test"), warn=pytest.fail)

    samples = capture.lines(b"loss=0.5\n", host="algo-2", rank=3, now_s=12.5)

    assert samples == [Sample(name="loss", value=0.5, time_s=12.5, host="algo-2", rank=3, step=None)]


def test_steps_are_kept_for_each_rank_and_host() -> None:
    capture = MetricCapture(compile([("step", r"s=(\d+)"), ("l", r"l=(\d+)")], "test"), warn=pytest.fail)
    capture.lines(b"s=5\n", host="algo-1", rank=0, now_s=1)
    capture.lines(b"s=7\n", host="algo-1", rank=1, now_s=1)

    places: list[tuple[str, int | None]] = [("algo-1", 0), ("algo-1", 1), ("algo-2", 0), ("algo-1", None)]
    steps = [capture.lines(b"l=1\n", host=host, rank=rank, now_s=2)[0].step for host, rank in places]

    assert steps == [5, 7, None, None]


def test_a_very_long_line_is_searched_at_both_ends() -> None:
    capture = MetricCapture(
        compile([("a", r"a=([0-9.]+)"), ("b", r"b=([0-9.]+)"), ("c", r"c=([0-9.]+)")], "test"), warn=print
    )
    middle = b"." * LINE_LIMIT

    samples = capture.lines(b"a=1 " + middle + b"b=2" + middle + b" c=3\na=4\n", host="h", rank=0, now_s=1)

    assert [(sample.name, sample.value) for sample in samples] == [("a", 1), ("c", 3), ("a", 4)]


def test_a_number_across_the_cut_of_a_very_long_line_is_not_misread() -> None:
    capture = MetricCapture(compile([("a", r"a=([0-9.]+)"), ("b", r"([0-9.]+)$")], "test"), warn=print)
    head = b"." + b"-" * (LINE_LIMIT // 2 - 6) + b"a=1234567"

    samples = capture.lines(head + b"-" * LINE_LIMIT + b"\n", host="h", rank=0, now_s=1)

    assert samples == []


@pytest.fixture
def guard() -> Iterator[MatchGuard]:
    with MatchGuard() as guard:
        yield guard


@pytest.mark.parametrize(
    ("regex", "line"),
    [
        (r"x(a+)+b([0-9])", b"x" + b"a" * 60),
        (r"([a-z]*)*=([0-9])", b"a" * 60),
        (r"[a-z]*[a-z]*[a-z]*=([0-9])", b"a" * 60_000),
        (r"(?:a|aa)+=([0-9])", b"a" * 60_000),
        (r"[a-z]*=([0-9])", b"=" + b"a" * 64_000),
        (r"(.*)(.*)(.*)(.*)=\1([0-9])x", b"=" + b"a" * 5_000),
        (r"(?i)(k|K)+=([0-9])", b"KkK" * 2_000 + b"="),
    ],
)
def test_a_regex_without_end_is_switched_off_and_the_others_go_on(guard: MatchGuard, regex: str, line: bytes) -> None:
    messages: list[str] = []
    definitions = compile([("before", r"v=([0-9]+)"), ("bad", regex), ("after", r"w=([0-9]+)")], "test")
    capture = MetricCapture(definitions, warn=messages.append, watch=guard)
    begun = time.thread_time()

    samples = capture.lines(b"v=1 " + line + b" w=1\nv=2 w=2\n", host="h", rank=0, now_s=1)
    again = capture.lines(b"v=3 " + line + b" w=3\n" * 2, host="h", rank=0, now_s=1)

    assert time.thread_time() - begun < 1.0
    expected = [(name, value) for value in (1, 2) for name in ("before", "after")]
    assert [(sample.name, sample.value) for sample in samples if sample.name != "bad"] == expected
    assert {sample.name for sample in again} >= {"before", "after"}
    if messages:  # A fast machine, or another CPython, may do it in time.
        (words,) = messages
        assert "'bad'" in words
        assert repr((b"v=1 " + line)[:20].decode())[:-1] in words


def test_the_classic_of_endless_regexes_is_told_of(guard: MatchGuard) -> None:
    messages: list[str] = []
    capture = MetricCapture(compile([("bad", r"x(a+)+b([0-9])")], "test"), warn=messages.append, watch=guard)

    samples = capture.lines(b"me:pw12@db " * 20 + b"x" + b"a" * 60 + b"b\n", host="h", rank=0, now_s=1)

    assert samples == []
    assert len(messages) == 1
    assert "switched off" in messages[0]
    # Cut between words: no mask recognises half a secret.
    assert set(re.findall("me:[^ .]*", messages[0])) == {"me:pw12@db"}


class Clocks:
    """Time that passes only when told; a CPU clock that advances by `each_s` whenever it is read."""

    def __init__(self, each_s: float) -> None:
        self.now_s = 100.0
        self.cpu_s = 0.0
        self.each_s = each_s

    def clock(self) -> float:
        return self.now_s

    def cpu(self) -> float:
        self.cpu_s += self.each_s
        return self.cpu_s


@pytest.mark.parametrize(
    ("each_s", "every_s", "lines", "switched_off"),
    [
        (0.3, 1.0, 10, True),  # 30 % of the time, 30 ms a line.
        (0.1, 1.0, 10, False),  # 10 % of the time.
        (0.3, 1.0, 10_000, False),  # 30 us a line: many lines, not a slow regex.
        (0.9, 100.0, 1, False),  # A burst now and then.
    ],
)
def test_a_regex_that_takes_its_fifth_of_the_time_is_switched_off(
    each_s: float, every_s: float, lines: int, switched_off: bool
) -> None:
    messages: list[str] = []
    clocks = Clocks(each_s)
    definitions = compile([("slow", r"v=([0-9]+)")], "test")
    capture = MetricCapture(definitions, warn=messages.append, clock=clocks.clock, cpu=clocks.cpu)

    for _ in range(60):
        clocks.now_s += every_s
        capture.lines(b"v=1\n" * lines, host="h", rank=0, now_s=1)

    assert len(messages) == switched_off
    assert bool(capture.lines(b"v=1\n", host="h", rank=0, now_s=1)) != switched_off
