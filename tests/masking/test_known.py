"""A known secret is masked in every encoding: 27 values, 24 encodings each."""

import base64
import html
import json
import re
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote, quote_plus

import pytest

from toolkit.log import Log
from toolkit.masking.canonical import LAYERS, Traced, canonical
from toolkit.masking.known import Known
from toolkit.masking.text import MASK

VALUES = [
    "hunter2hunter2",
    "Zk9vvQ1bTq",
    "correct horse battery",
    "p@ss/w0rd#1?x",
    "it's a secret",
    'say "friend" now',
    "back\\slash\\n\\t",
    "C:\\new\\table\\x41",
    "50%off%41%zz",
    "tom & jerry <tj>",
    "&amp;entity&lt;9",
    "plus+slash/equal==",
    "naïve-Größe-7",
    "пароль-секрет-8",
    "密码密码123",
    "emoji-🔑-key-9",
    "tab\tand\nline-end",
    "  padded value  ",
    "ends with newline\n",
    "$HOME and `id` x9",
    "--dashes-first",
    '{"a": "b\'c"}',
    "1234567890123",
    "3906f401-7a3c-424a-aa6e",
    "semi;colon,comma:x",
    "0xdeadbeef\\'\"q",
    "q`w\"e'r\\t'y\"u",
]


def in_html_numbers(text: str) -> str:
    return "".join(f"&#{ord(letter)};" if not letter.isalnum() else letter for letter in text)


def in_ansi_c(text: str) -> str:
    content = "".join(chr(byte) if byte < 128 and chr(byte).isalnum() else f"\\{byte:03o}" for byte in text.encode())
    return f"$'{content}'"


def in_colours(text: str) -> str:
    return f"\x1b[32m{text[:5]}\x1b[0m\x1b[1;36m{text[5:]}\x1b[0m"


ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "stripped": str.strip,
    "URL": lambda text: quote(text, safe=""),
    "URL, small digits": lambda text: quote(text, safe="").replace("%2B", "%2b").replace("%3D", "%3d"),
    "form": quote_plus,
    "URL twice": lambda text: quote(quote(text)),
    "every byte in percent": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "HTML": html.escape,
    "HTML twice": lambda text: html.escape(html.escape(text)),
    "HTML numbers": in_html_numbers,
    "repr": repr,
    "repr of repr": lambda text: repr(repr(text)),
    "ascii": ascii,
    "bytes": lambda text: repr(text.encode()),
    "repr of bytes' repr": lambda text: repr(repr(text.encode())),
    "JSON": json.dumps,
    "JSON in JSON in JSON": lambda text: json.dumps(json.dumps(json.dumps(text))),
    "JSON in a URL": lambda text: quote(json.dumps(text)),
    "JSON in HTML": lambda text: html.escape(json.dumps(text)),
    "shell": shlex.quote,
    "shell in JSON": lambda text: json.dumps(shlex.quote(text)),
    "shell, $'...'": in_ansi_c,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 of user:value": lambda text: base64.b64encode(f"user:{text}@host".encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(f"u={text}&v=1".encode()).decode(),
    "hexadecimal": lambda text: text.encode().hex(),
    "coloured": in_colours,
    "UTF-16 escapes": lambda text: "".join(
        f"\\u{ord(letter):04x}" if ord(letter) < 65536 else letter for letter in text
    ),
}


def parts(secret: str) -> list[str]:
    """Return all parts of four characters of a secret, as they read once decoded."""
    form = canonical(secret.strip())
    return [form[index : index + 4] for index in range(len(form) - 3)]


def readable(text: str) -> str:
    """Return all that can be read in what is not masked: decoded, also from base64 and hexadecimal digits."""
    texts = [canonical(text.replace(MASK, "\0"))]
    for run in re.findall(r"[A-Za-z0-9+/_-]+", text):
        for start in range(4):
            code = run[start:].replace("-", "+").replace("_", "/")
            texts.append(base64.b64decode(code[: len(code) // 4 * 4]).decode("utf-8", "replace"))
            with suppress(ValueError):
                texts.append(bytes.fromhex(run[start:]).decode("utf-8", "replace"))
    return "\n".join(texts)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_known_secret_is_masked_in_every_encoding(encoding: str) -> None:
    assert len(VALUES) == 27
    pairs = []
    for value in VALUES:
        log = Log()
        log.hide({"api_key": value})
        encoded = ENCODINGS[encoding](value)

        masked = log.mask(f"before\n<{encoded}>\nafter")

        if MASK not in masked or any(part in readable(masked) for part in parts(value)):
            pairs.append((value, masked))
        assert masked.startswith("before\n<")
        assert masked.endswith(">\nafter")

    assert not pairs


@pytest.mark.parametrize(
    ("secret", "text", "masked"),
    [
        ("it's a secret", "say 'it'\"'\"'s a secret' twice", f"say '{MASK}' twice"),
        ("a+b/c=d9", "https://h/?k=a%2Bb%2Fc%3Dd9&n=1", f"https://h/?k={MASK}&n=1"),
        ("a+b/c=d9", "%22a%2Bb%2Fc%3Dd9%22%3A 1", f"%22{MASK}%22%3A 1"),
        ("sunday", "as sunday: sundays, sunday_1, %73unday", f"as {MASK}: sundays, {MASK}_1, {MASK}"),
        ("back\\slash", "b'back\\\\slash', backslashes", f"b'{MASK}', backslashes"),
        ("two words", "two\\nwords and two  words", f"{MASK} and two  words"),
        ("hunter2hunter2", "Basic dXNlcjpodW50ZXIyaHVudGVyMg==, next", f"Basic dXNlcj{MASK}, next"),
    ],
)
def test_what_stands_around_an_encoded_secret_stays(secret: str, text: str, masked: str) -> None:
    log = Log()
    log.hide({"note": {"password": secret}})

    assert log.mask(text) == masked


@pytest.mark.parametrize(
    "text", ["", "plain", "a%2Bb", "\\\\'x%27\\x41\\u00e9&amp;amp;", "%", "\\", "&#x110000;", "\\U00110000"]
)
def test_the_one_form_and_its_trace_are_the_same(text: str) -> None:
    traced = Traced(text)

    assert traced.text == canonical(text)
    assert all(
        0 <= a <= b <= len(text) for a, b in (traced.origin(index, index + 1) for index in range(len(traced.text)))
    )


def test_a_secret_with_half_a_surrogate_pair_is_masked() -> None:
    log = Log()
    log.hide({"api_key": "\ud800hunter2hunter2"})  # As JSON may write it; no text that a variable can hold.

    assert log.mask("got \ud800hunter2hunter2, \\ud800hunter2hunter2") == f"got {MASK}, {MASK}"


def test_a_long_text_of_escapes_takes_the_time_that_its_length_needs() -> None:
    log = Log()
    log.hide({f"API_KEY_{n}": f"secret{n}%value\\{n}" for n in range(30)})
    begun = time.process_time()

    for unit in (
        "\\",
        "%25",
        "%",
        "&amp;",
        "&",
        "\\x41",
        "\\u0041",
        "\\101",
        "'\"",
        "\x1b[",
        "secret1%value\\1 ",
        "%73",
    ):
        log.mask(unit * (262_144 // len(unit)))

    # 2 s on a slow machine; a search that goes back over the text takes minutes.
    assert time.process_time() - begun < 60


def test_a_secret_that_was_encoded_more_often_than_it_is_decoded_is_masked_as_far() -> None:
    text = "a&b"
    for _ in range(LAYERS + 2):
        text = quote(text, safe="")

    form = canonical(text)

    assert "%" in form
    assert Traced(text).text == form


@pytest.mark.parametrize("secret", ["''''''''", "abc"])
def test_a_secret_whose_other_forms_are_short_is_masked_as_it_was_given(secret: str) -> None:
    known = Known()
    known.add([secret])

    assert [f"key {secret}."[slice(*span)] for span in known.spans(f"key {secret}.")] == [secret]
    assert known.spans("an ordinary line") == []
