import pytest

from toolkit.metrics.capture import MetricCapture
from toolkit.metrics.definition import compile
from toolkit.metrics.unseen import Unseen


def warn_of(log: bytes, *pairs: tuple[str, str]) -> list[str]:
    """Return the sentences after the blocks of *log*, which are separated by form feeds."""
    definitions = compile(pairs, "here")
    capture, unseen = MetricCapture(definitions, warn=print), Unseen(definitions)
    for block in log.split(b"\f"):
        unseen.look(block, capture.lines(block, host="h", rank=0, now_s=0))
    unseen.add(capture.not_numbers)
    return list(unseen.sentences())


NOTHING = "no line matched, and none was near. `toolkit metrics try LOG` tries regexes on a log."


@pytest.mark.parametrize(
    ("log", "regex", "sentence"),
    [
        (b"loss=0.5\n", "loss=([0-9.]+)", None),
        (b"loss=0.5\n\floss: 1\n", "loss=([0-9.]+)", None),
        (
            b"start\n\fepoch 1 loss: 0.5\nloss: 0.4\n",
            "loss=([0-9.]+)",
            "matched no line; the nearest: 'epoch 1 loss: 0.5'",
        ),
        (b"the loss is low\nLoss 0.25\n", "loss=([0-9.]+)", "matched no line; the nearest: 'Loss 0.25'"),
        (b"m 0.5\x1b[0m\n", r"\[m\]=(\d+)", NOTHING),
        (b"loss=1,000\nloss=12%\n", "loss=(.*)", "matched 2 times what is no number; the first line: 'loss=1,000'"),
        (b"loss=0.5\nloss=-\n", "loss=(.*)", "matched once what is no number; the first line: 'loss=-'"),
        (b"nothing here\n", "loss=([0-9.]+)", NOTHING),
        (
            b"loss: " + b"7" * 500 + b"\n",
            "loss=([0-9.]+)",
            "matched no line; the nearest: 'loss: " + "7" * 154 + "...'",
        ),
    ],
)
def test_a_definition_that_captured_nothing_is_named_with_the_nearest_line(
    log: bytes, regex: str, sentence: str | None
) -> None:
    sentences = warn_of(log, ("m", regex))

    assert len(sentences) == (sentence is not None)
    assert sentence is None or sentences[0].startswith("metric 'm': ")
    assert sentence is None or sentences[0].endswith(sentence)


def test_those_without_a_near_line_share_a_sentence_and_a_job_without_lines_has_none() -> None:
    pairs = (("acc", "acc=(.)"), ("f1_score", "f1_score=(.)"))

    assert warn_of(b"hello\n", *pairs) == [f"metrics 'acc', 'f1_score': {NOTHING}"]
    assert list(Unseen(compile(pairs, "here")).sentences()) == []


def test_a_name_with_two_definitions_is_seen_once_one_of_them_captures() -> None:
    assert warn_of(b"loss=1\n", ("loss", "loss=(.)"), ("loss", "LOSS: (.)")) == []
