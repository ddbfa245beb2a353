"""One bucket: keys, and servers that fail."""

import os
from pathlib import Path

import pytest

from tests.storage.servers import S3, Fault, Faulty
from toolkit.errors import PlatformError, UserError
from toolkit.storage.store import PIECE_BYTES, REASON_CHARACTERS, summarize_error
from toolkit.storage.uri import parse

pytestmark = pytest.mark.storage
KEYS = (
    "plain",
    "with space",
    "ümläut/ß",
    "per%cent",
    "per%41",
    "a+b&c=d",
    "~#?",
    "[b]{c}|^",
    "emoji😀",
    " lead",
    "tr ",
)


def test_any_key_is_written_listed_and_read(s3: S3, bucket: str) -> None:
    store = s3.store(bucket)
    for key in KEYS:
        store.write(f"x/{key}", key.encode())

    contents = {stored.key: store.read(stored) for stored in store.list("x")}

    assert contents == {f"x/{key}": key.encode() for key in KEYS}


def test_an_object_that_is_not_there_is_none_and_an_empty_one_is_empty(s3: S3, bucket: str) -> None:
    store = s3.store(bucket)
    store.write("empty", b"")

    empty = store.find("empty")

    assert store.find("none") is None
    assert empty is not None
    assert store.read(empty) == b""


def test_a_bucket_that_is_not_there_is_the_users_error(s3: S3) -> None:
    store = s3.store("s3://no-such-bucket/x")

    for call in (lambda: list(store.list("x")), lambda: store.write("x", b"1")):
        with pytest.raises(UserError) as caught:
            call()
        assert str(caught.value).startswith("s3://no-such-bucket/x: cannot be ")
        assert "Correct the URI" in str(caught.value)


@pytest.mark.parametrize("fault", ["500", "reset", "cut"])
def test_a_read_that_fails_twice_succeeds(faulty: Faulty, bucket: str, fault: Fault) -> None:
    store = faulty.store(bucket)
    content = os.urandom(100_000)
    store.write("x", content)
    stored = store.find("x")
    assert stored is not None
    faults = [fault, fault]
    faulty.fault = lambda method, path: faults.pop() if faults and method == "GET" else ""

    assert store.read(stored) == content
    assert not faults


@pytest.mark.parametrize("fault", ["500", "reset"])
def test_a_write_that_fails_twice_succeeds(faulty: Faulty, bucket: str, fault: Fault) -> None:
    store = faulty.store(bucket)
    faults = [fault, fault]
    faulty.fault = lambda method, path: faults.pop() if faults and method == "PUT" else ""

    store.write("x", b"content")

    stored = store.find("x")
    assert stored is not None
    assert store.read(stored) == b"content"


@pytest.mark.parametrize("fault", ["500", "reset", "hang"])
def test_storage_that_goes_on_failing_is_given_up_in_time(faulty: Faulty, bucket: str, fault: Fault) -> None:
    faulty.store(bucket).write("x", b"content")
    store = faulty.store(bucket, timeout_s=2.0)
    stored = store.find("x")
    assert stored is not None
    faulty.fault = lambda method, path: fault

    with pytest.raises(PlatformError) as caught:
        store.read(stored)

    assert str(caught.value).startswith(f"{bucket}/x: cannot be read, tried for up to 2 s: ")
    assert "Check the network and the endpoint" in str(caught.value)
    assert caught.value.exit_code == 75


def test_refused_access_is_not_tried_again_and_names_the_rights(faulty: Faulty, bucket: str) -> None:
    store = faulty.store(bucket)
    faulty.fault = lambda method, path: "403"
    faulty.seen.clear()

    with pytest.raises(PlatformError, match="access is refused") as caught:
        store.write("x", b"content")

    assert "s3:PutObject" in str(caught.value)
    assert len(faulty.seen) == 1


def test_a_large_upload_is_listed_once_it_is_whole(faulty: Faulty, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(PIECE_BYTES * 2 + 1))
    store = faulty.store(bucket, timeout_s=2.0)
    faulty.fault = lambda method, path: "500" if method == "PUT" and "partNumber=2" in path else ""

    with pytest.raises(PlatformError):
        store.upload("large", tmp_path / "large")

    assert store.find("large") is None
    faulty.fault = lambda method, path: ""
    store.upload("large", tmp_path / "large")
    assert faulty.keys(bucket) == ["large"]


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(s3: S3, bucket: str) -> None:
    store = s3.store(bucket)
    store.write("x", b"first")
    stored = store.find("x")
    assert stored is not None
    store.write("x", b"other")

    with pytest.raises(PlatformError, match="it was replaced meanwhile"):
        store.read(stored)


@pytest.mark.parametrize("name", ["a/../b", "a//b"])
def test_a_key_that_is_no_path_is_named(s3: S3, bucket: str, name: str) -> None:
    import subprocess

    from tests.storage.servers import BED

    put = """
import boto3, sys
boto3.client("s3", endpoint_url=sys.argv[1]).put_object(Bucket=sys.argv[2], Key=sys.argv[3])
"""
    subprocess.run([BED / "bin/python", "-c", put, s3.address, parse(bucket).bucket, name], check=True)

    with pytest.raises(UserError) as caught:
        list(s3.store(bucket).list(""))

    assert repr(name)[1:-1] in str(caught.value)
    assert "Rename the object" in str(caught.value)


def test_an_error_has_the_code_and_the_message_of_the_answer_and_no_half_of_its_xml(s3: S3, bucket: str) -> None:
    with pytest.raises(UserError) as caught:
        s3.store("s3://no-such-bucket-here").write("x", b"content")

    text = str(caught.value)
    assert text.endswith("404 Not Found: NoSuchBucket: The specified bucket does not exist. Correct the URI.")
    assert "<" not in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Generic error: 403 Forbidden: <?xml?>\n<Error><Code>A</Code><Message>B &amp; C.</Message><X>y</X></Error>",
            "A: B & C",
        ),
        ("Generic error: 403 Forbidden: <Error><Message>no code</Message></Error>\n\nDebug source:\nRetry", "no code"),
        ("Generic error: 502: <html><body>nginx</body></html>", "502"),
        ("Generic error: 500: <?xml version", "500"),
        ("operation timed out", "operation timed out"),
        ("word " * 100, "word ..."),
    ],
)
def test_the_words_of_an_error_end_with_a_word(text: str, words: str) -> None:
    assert summarize_error(text).endswith(words)
    assert len(summarize_error(text)) <= REASON_CHARACTERS + 4
    assert "<" not in summarize_error(text)
