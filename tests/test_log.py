import json
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.log import Log, level_named, masked
from toolkit.masking.text import MASK


def test_values_under_secret_names_are_masked_and_the_empty_stay_empty() -> None:
    values = {"api_key": "sk-1", "token": "", "password": None, "epochs": 3}

    assert masked(values) == {"api_key": MASK, "token": "", "password": None, "epochs": 3}


def collected(log: Log) -> list[bytes]:
    lines: list[bytes] = []
    log.say_through(lines.append)
    return lines


def test_each_line_of_ours_says_whose_it_is() -> None:
    log = Log()
    lines = collected(log)

    log.info("one\ntwo")
    log.warning("three")
    log.error("four")
    log.info("")

    assert b"".join(lines) == (
        b"[toolkit] one\n[toolkit] two\n[toolkit] warning: three\n[toolkit] error: four\n[toolkit] \n"
    )


def test_a_text_of_several_lines_is_written_in_one_piece() -> None:
    log = Log()
    lines = collected(log)

    log.info("one\ntwo")

    assert len(lines) == 1


def test_lines_below_the_level_are_not_said() -> None:
    log = Log(level=30)
    lines = collected(log)

    log.debug("no")
    log.info("no")
    log.warning("yes")

    assert lines == [b"[toolkit] warning: yes\n"]


def test_a_hidden_value_is_masked_wherever_it_appears() -> None:
    log = Log()
    lines = collected(log)
    log.hide({"HF_TOKEN": "hf_abcdef", "EPOCHS": "1234567", "PASSWORD": "short"})

    log.info("the url https://u:hf_abcdef@host, 1234567 epochs, short words")

    assert lines == [f"[toolkit] the url https://u:{MASK}@host, 1234567 epochs, short words\n".encode()]


def test_a_secret_within_a_longer_one_does_not_leave_the_rest_in_sight() -> None:
    log = Log()
    log.hide({f"TOKEN_{n}": "abcdef" + "x" * n for n in range(20)})

    assert log.mask("abcdef" + "x" * 19) == MASK


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tracker": {"api_key": "abc-def"}}, "tracker=api_key=abc-def"),
        ({"credentials": {"user": ["frank-the-user"]}}, "as frank-the-user"),
        ({"api_key": 1234567890}, "--api_key 1234567890"),
        ({"password": "it's a secret"}, "--password 'it'\"'\"'s a secret'"),
        ({"password": "first\nsecond"}, repr("first\nsecond")),
        ({"password": 'with "quotes"'}, json.dumps('with "quotes"')),
        ({"private_key": "-----BEGIN KEY-----\nMIIEpAIBAAKC\n"}, "a line: MIIEpAIBAAKC"),
    ],
    ids=["nested", "below a secret name", "digits", "shell", "repr", "JSON", "one line of several"],
)
def test_a_secret_is_masked_wherever_and_however_it_stands(values: dict[str, object], text: str) -> None:
    log = Log()
    log.hide(values)

    masked = log.mask(text)

    assert MASK in masked
    assert not any(word in masked for word in ("abc-def", "frank", "1234", "secret", "first", "quotes", "MII"))


def test_a_short_number_under_a_name_with_key_in_it_is_a_setting() -> None:
    log = Log()
    log.hide({"key_frames": "100000"})

    assert log.mask("--key_frames 100000") == "--key_frames 100000"


def test_text_that_no_encoding_takes_is_still_said() -> None:
    log = Log()
    lines = collected(log)

    log.info("bad \udcff name")

    assert lines == [b"[toolkit] bad \\xff name\n"]


def test_our_words_go_to_stderr() -> None:
    program = "from toolkit.log import Log; Log().info('hello')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert (done.stdout, done.stderr) == (b"", b"[toolkit] hello\n")


def test_a_closed_stderr_disturbs_nothing() -> None:
    program = "import os; os.close(2); from toolkit.log import Log; Log().info('hello'); os.write(1, b'still here')"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)

    assert done.stdout == b"still here"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stderr_disturbs_nothing() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", "from toolkit.log import Log; Log().info('x')"], stderr=full)

    assert done.returncode == 0


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("20", 20),
        (" 10 ", 10),
        ("INFO", 20),
        ("warning", 30),
        ("WARN", 30),
        ("Fatal", 50),
        ("", None),
        ("loud", None),
        ("-1", None),
        ("2.5", None),
        ("²", None),
        ("9" * 5000, None),
    ],
)
def test_levels_are_numbers_or_names_and_anything_else_is_none(text: str, level: int | None) -> None:
    assert level_named(text) == level


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"config": '{"db": {"passwd": "tiger-one"}}'}, "cannot connect with tiger-one"),
        ({"config": json.dumps(json.dumps({"secretKey": "tiger-one"}))}, "cannot connect with tiger-one"),
        ({"env": [{"name": "API_KEY", "value": "tiger-one"}]}, "cannot connect with tiger-one"),
        ({"env": '[{"Name": "API_KEY", "Value": "tiger-one"}]'}, "cannot connect with tiger-one"),
        ({"auth_tokens": '["tiger-one", "tiger-two"]'}, "cannot connect with tiger-one"),
        ({"credentials": {"user": {"a": ["tiger-one"]}}}, "cannot connect with tiger-one"),
    ],
    ids=["JSON text", "JSON text in JSON text", "names and values", "the same as JSON text", "plural", "below a name"],
)
def test_a_secret_within_a_value_is_masked_where_it_stands_alone(values: dict[str, object], text: str) -> None:
    log = Log()
    log.hide(values)

    assert log.mask(text) == f"cannot connect with {MASK}"


def test_our_own_words_are_not_masked_because_a_secret_is_one_of_them() -> None:
    log = Log()
    log.hide({"api_key": "failed", "password": "training"})

    assert log.mask("Reporting training FAILURE: rank 3 failed") == "Reporting training FAILURE: rank 3 failed"
    assert log.mask("train.py --api_key failed --lr 1") == f"train.py --api_key {MASK} --lr 1"


def test_a_secret_that_is_a_word_is_masked_as_a_word_only() -> None:
    log = Log()
    log.hide({"password": "sunday"})

    assert log.mask("as sunday: sundays, sunday_1") == f"as {MASK}: sundays, {MASK}_1"
