"""The server of rank shims, with real sockets."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from toolkit.supervise.limits import exhausted
from toolkit.supervise.shim_server import ShimServer


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
