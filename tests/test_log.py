import json
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.log import MASK, Log, level_named, looks_secret, masked


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "apikey",
        "openaiApiKey",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "HF_TOKEN",
        "token",
        "AZURE_STORAGE_KEY",
        "ssh_private_key",
        "WANDB_API_KEY",
        "db_password",
        "PASSPHRASE",
        "creds",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "keyboard",
        "monkey",
        "max_tokens",
        "tokens_per_second",
        "tokenizer",
        "TOKENIZERS_PARALLELISM",
        "eos_token_id",
        "num_key_value_heads",
        "key_padding_mask",
        "key_dim",
        "learning_rate",
    ],
)
def test_words_of_models_are_no_secrets(name: str) -> None:
    assert not looks_secret(name)


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

    shown = log.mask(text)

    assert MASK in shown
    assert not any(word in shown for word in ("abc-def", "frank", "1234", "secret", "first", "quotes", "MII"))


def test_a_short_number_under_a_name_with_key_in_it_is_a_setting() -> None:
    log = Log()
    log.hide({"key_frames": "100000"})

    assert log.mask("--key_frames 100000") == "--key_frames 100000"


def test_text_that_no_encoding_takes_is_still_said() -> None:
    log = Log()
    lines = collected(log)

    log.info("bad \udcff name")

    assert lines == [b"[toolkit] bad \\udcff name\n"]


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
