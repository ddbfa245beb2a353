"""Servers of object storage on loopback: moto's, and a proxy before it whose answers fail as a test asks."""

import http.client
import http.server
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from toolkit.storage.store import StorageClient
from toolkit.storage.uri import parse

BED = Path(__file__).parents[2] / ".beds/storage"
START_S = 60.0
# "500", "403": this answer. "reset": the connection breaks. "cut": half of the answer's body comes. "hang": the same,
# and the connection stays open. "slow": the answer comes a piece every 0.2 s. "half": the connection breaks when half
# of the request has come. "lost": the request is done, and the connection breaks without an answer. "stall": no answer.
# "too long": what S3 says of a key of more than 1,024 bytes.
Fault = Literal["", "500", "403", "too long", "reset", "cut", "hang", "slow", "half", "lost", "stall"]


class S3:
    """An S3 server at `address`, http://HOST:PORT."""

    def __init__(self, address: str) -> None:
        self.address = address

    @property
    def environ(self) -> dict[str, str]:
        """The variables that lead a client there."""
        keys = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret-of-the-test"}
        return {"AWS_ENDPOINT_URL_S3": self.address, "AWS_REGION": "eu-central-1", **keys}

    def bucket(self, name: str) -> str:
        """Make a bucket and return its URI."""
        place = "<LocationConstraint>eu-central-1</LocationConstraint>"
        body = f"<CreateBucketConfiguration>{place}</CreateBucketConfiguration>".encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.address}/{name}", method="PUT", data=body)).close()
        return f"s3://{name}"

    def store(self, uri: str, *, timeout_s: float = 10.0) -> StorageClient:
        """Return the toolkit's client for the bucket of *uri*; the environment must lead there."""
        return StorageClient(parse(uri), self.environ, timeout_s=timeout_s)

    def keys(self, uri: str) -> list[str]:
        """Return all keys of the bucket of *uri*."""
        return [stored.key for stored in self.store(uri).list("")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(argv: list[str], port: int, log: Path) -> Iterator[None]:
    """Run *argv*, a server, until the end of the block; it listens at *port* when the block begins."""
    with log.open("wb") as file:
        process = subprocess.Popen(argv, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    try:
        ends_s = time.monotonic() + START_S
        while not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends_s, log.read_text()
            threading.Event().wait(0.05)
        yield
    finally:
        process.kill()  # Azurite takes its time after SIGTERM.
        process.wait(timeout=START_S)


@contextmanager
def moto(folder: Path) -> Iterator[S3]:
    """Run moto's server of AWS's APIs; its log is in *folder*."""
    port = free_port()
    argv = [str(BED / "bin/python"), str(BED / "bin/moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with running(argv, port, folder / "moto.log"):
        yield S3(f"http://127.0.0.1:{port}")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _break(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


class Faulty(S3):
    """A proxy before *s3*. `fault(method, path)` says how the next answer fails; `seen` are the requests that came."""

    def __init__(self, s3: S3) -> None:
        self._behind = s3.address.removeprefix("http://")
        self.fault: Callable[[str, str], Fault] = lambda method, path: ""
        self.seen: list[tuple[str, str]] = []
        self._over = threading.Event()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._answer(self)

            do_PUT = do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815 - the names of http.server

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        super().__init__(f"http://127.0.0.1:{self._server.server_address[1]}")
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def count(self, method: str, part: str) -> int:
        """Return how many requests of *method* came whose path contains *part*."""
        return sum(verb == method and part in path for verb, path in self.seen)

    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        method, path = handler.command, handler.path
        self.seen.append((method, path))
        fault = self.fault(method, path)
        size = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(size // 2 if fault == "half" else size)
        if fault == "stall":
            self._over.wait(60)
        if fault in ("reset", "half", "stall"):
            _break(handler.connection)
            return
        if fault in ("500", "403"):
            handler.send_response(int(fault))
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        if fault == "too long":
            answer_bytes = b"<Error><Code>KeyTooLongError</Code><Message>Your key is too long</Message></Error>"
            handler.send_response(400)
            handler.send_header("Content-Length", str(len(answer_bytes)))
            handler.end_headers()
            handler.wfile.write(answer_bytes)
            return
        behind = http.client.HTTPConnection(self._behind, timeout=60)
        behind.request(method, path, body, dict(handler.headers.items()))
        answer = behind.getresponse()
        content = answer.read()
        behind.close()
        if fault == "lost":
            _break(handler.connection)
            return
        handler.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                handler.send_header(name, value)
        length = answer.getheader("Content-Length") if method == "HEAD" else str(len(content))
        handler.send_header("Content-Length", length or "0")
        handler.end_headers()
        try:
            self._write(handler, content, fault)
        except OSError:
            pass  # The client has gone.

    def _write(self, handler: http.server.BaseHTTPRequestHandler, content: bytes, fault: Fault) -> None:
        if fault in ("cut", "hang"):
            handler.wfile.write(content[: len(content) // 2])
            handler.wfile.flush()
            self._over.wait(60 if fault == "hang" else 0)
        elif fault == "slow":
            for index in range(0, len(content), 1 << 18):
                handler.wfile.write(content[index : index + (1 << 18)])
                self._over.wait(0.2)
        else:
            handler.wfile.write(content)
