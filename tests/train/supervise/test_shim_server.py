"""The server of rank shims, with real sockets."""

import os
import random
import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from toolkit.train.supervise.limits import exhausted
from toolkit.train.supervise.shim_server import ShimServer


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open no further descriptor."""
    lowest_free = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest_free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_descriptor_for_a_shim_the_limit_is_told_and_the_shim_stays_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # A socket's path may have at most 107 bytes.
    with closing(ShimServer(tmp_path)) as server, socket.socket(socket.AF_UNIX) as shim:
        shim.connect(server.path.name)
        with no_descriptor_left(), pytest.raises(OSError, match="Too many open files") as raised:
            server.accept()
        limit = exhausted(raised.value)

        connection = server.accept()

        assert limit is not None
        assert limit.exit_code == 75
        assert connection is not None
        connection.close()


def test_without_a_shim_there_is_no_connection(tmp_path: Path) -> None:
    with closing(ShimServer(tmp_path)) as server:
        assert server.accept() is None


STRANGE = {
    "noise": bytes(range(256)) * 4,
    "no number": b"rank five\n",
    "a negative number": b"rank -1\n\n",
    "a number of any size": b"rank 99999999999999\n",
    "a body without fields": b"5\nabcde",
    "a request without arguments": b"9\n/\x000\x000\x00A=b",
    "more arguments than there are": b"9\n/\x000\x009\x00abc",
    "a status page's message": b'{"request": "trace", "steps": 5}\n',
    "a signal without a number": b"7\n/\x000\x001\x00asignal \nsignal x\n",
}


@pytest.mark.parametrize("kind", STRANGE)
def test_what_no_shim_sends_ends_its_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(ShimServer(tmp_path)) as server, socket.socket(socket.AF_UNIX) as shim:
        shim.connect(server.path.name)
        connection = server.accept()
        assert connection is not None
        shim.sendall(STRANGE[kind])

        _, gone = connection.read()

        assert gone and connection.is_strange
        connection.close()


def test_random_messages_raise_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chance = random.Random(26)
    with closing(ShimServer(tmp_path)) as server:
        for _ in range(300):
            with socket.socket(socket.AF_UNIX) as shim:
                shim.connect(server.path.name)
                connection = server.accept()
                assert connection is not None
                word = chance.choice([b"", b"daemon ", b"launch ", b"rank "])
                shim.sendall(word + b"%d\n" % chance.randrange(40) + chance.randbytes(chance.randrange(60)))
                connection.read()
                connection.close()
