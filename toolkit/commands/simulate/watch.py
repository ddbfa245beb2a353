"""Serves the page of a running job on localhost (`toolkit run --watch`), in a process of its own.

The process runs at a low priority, reads the job's files only when somebody asks, and answers from its last page for
some seconds. Nothing that it does or fails to do reaches the job. Its address holds a random word, so that other users
of the machine do not read the page, and it answers under the names of this machine alone, so that a website whose name
resolves to 127.0.0.1 (DNS rebinding) does not either.
"""

import os
import re
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from toolkit.commands.simulate import owners
from toolkit.errors import UserError
from toolkit.train.supervise.children import fork_call, send
from toolkit.train.supervise.kernel import prctl

PAGE = "report.html"
LOCALHOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
FRESH_S = 2.0  # A page is as old as this at least before it is made anew, and five times as old as it took to make.
PATIENCE = 5
WATCHED_S = 10.0  # Somebody who asked within this time gets the page of the job's end.
LAST_S = 5.0  # How long that page waits to be asked for.
NICENESS = 10
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Type": "text/html; charset=utf-8",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Make = Callable[[Path], str]


class LivePage:
    """The server of a job's page. The port is taken at once, the process starts with the job."""

    def __init__(self, port: int, make: Make) -> None:
        """Listen at *port* of localhost (0: any that is free). *make* makes the page of a job's folder.

        Raises:
            UserError: the port is taken.
        """
        self._make = make
        self._pid = 0
        self._end_pipe = -1  # A pipe whose other end only the server has.
        self._token = secrets.token_urlsafe(12)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((LOCALHOST, port))
        except OSError as error:
            self._socket.close()
            raise UserError(
                f"expected a free port of localhost, found {port}: {error.strerror}",
                where="toolkit run: --watch",
                hint="Name another port, or none.",
            ) from None
        self._socket.listen()
        self.address = f"http://{LOCALHOST}:{self._socket.getsockname()[1]}/{self._token}/"  # For a browser.

    def start(self, job_dir: Path) -> None:
        """Serve the page of the job in *job_dir* from now on."""
        self._end_pipe, alive = os.pipe()
        self._pid = fork_call(lambda: self._serve(job_dir, alive), prctl=prctl())
        os.close(alive)
        self._socket.close()

    def end(self) -> None:
        """Let who watches get the page of the job's end, and end the server within some seconds."""
        self._socket.close()
        if not self._pid:
            return
        send(self._pid, signal.SIGTERM)
        poll = select.poll()
        poll.register(self._end_pipe, select.POLLIN)
        if not poll.poll((2 * LAST_S + 2) * 1000):
            send(self._pid, signal.SIGKILL)
        os.close(self._end_pipe)
        try:
            os.waitpid(self._pid, 0)
        except ChildProcessError:
            pass  # It ended before the job did, and was reaped.
        self._pid = 0

    def _serve(self, job_dir: Path, alive: int) -> int:
        _let_go(keep=(self._socket.fileno(), alive))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # Of all threads: sigwait takes it.
        server = PageServer(self._socket, self._token, lambda: self._make(job_dir))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        signal.sigwait({signal.SIGTERM})
        server.finish()
        return 0


class PageServer(ThreadingHTTPServer):
    """Answers every request for the page from one copy of it."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, token: str, make: Callable[[], str]) -> None:
        super().__init__((LOCALHOST, 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.path = f"/{token}/"
        self._make = make
        self._page = b""
        self._rendered_s = -1e9
        self._took_s = 0.0
        self._requested_s = -1e9
        self._lock = threading.Lock()
        self.ended = False
        self._last_sent = threading.Event()
        self._answering = 0
        self._quiet = threading.Condition()

    def page(self) -> tuple[bytes, bool]:
        """Return the page, made anew if the last one is old or the job has ended, and whether it is the last one."""
        with self._lock:
            self._requested_s = began_s = time.monotonic()
            if self.ended or began_s - self._rendered_s > max(FRESH_S, PATIENCE * self._took_s):
                self._page = self._make().encode("utf-8", "replace")
                self._rendered_s = time.monotonic()
                self._took_s = self._rendered_s - began_s
            return self._page, self.ended

    def sent_last(self) -> None:
        """Note that somebody has the page of the job's end."""
        self._last_sent.set()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count an answer while it is made and sent: none is cut off by the server's end."""
        with self._quiet:
            self._answering += 1
        try:
            yield
        finally:
            with self._quiet:
                self._answering -= 1
                self._quiet.notify_all()

    def finish(self) -> None:
        """Wait until the page of the job's end was sent, for a while, if somebody watches; then answer no more."""
        with self._lock:
            self.ended = True
        if time.monotonic() - self._requested_s < WATCHED_S:
            self._last_sent.wait(LAST_S)
        self.shutdown()
        with self._quiet:
            self._quiet.wait_for(lambda: not self._answering, LAST_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that goes away is no event."""


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of the page; nothing else is there."""

    server_version = "toolkit"
    sys_version = ""
    timeout = 30.0

    def do_GET(self) -> None:
        """Answer with the page."""
        with cast(PageServer, self.server).answering():
            self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with the head alone."""
        with cast(PageServer, self.server).answering():
            self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _answer(self, *, with_body: bool) -> None:
        server = cast(PageServer, self.server)
        if re.sub(r":\d+$", "", self.headers.get("Host", "")).lower() not in NAMES:
            self._send(403, b"This server answers under the name localhost alone.\n", with_body, "text/plain")
        elif self.path != server.path:
            self._send(404, b"No page here. The address that toolkit run printed has it.\n", with_body, "text/plain")
        else:
            try:
                page, is_last = server.page()
            except Exception as error:  # noqa: BLE001 - whatever it met in the job's files, the next request may not.
                text = f"The page cannot be made now: {type(error).__name__}: {error}\n"
                self._send(503, text.encode("utf-8", "replace"), with_body, "text/plain")
                return
            self._send(200, page, with_body)
            if is_last:
                server.sent_last()

    def _send(self, code: int, body: bytes, with_body: bool, kind: str = "") -> None:
        self.send_response(code)
        for name, value in {**HEADERS, "Content-Length": str(len(body))}.items():
            self.send_header(name, f"{kind}; charset=utf-8" if kind and name == "Content-Type" else value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def page_of(job_dir: Path) -> str:
    """Return the HTML page of the job in *job_dir*."""
    from toolkit.commands import jobs
    from toolkit.commands.report.html.page import render
    from toolkit.commands.report.sections.page import build_page

    now_s = time.time()
    return render(build_page(jobs.read(job_dir, now_s=now_s), now_s=now_s))


def write_page(job_dir: Path) -> Path:
    """Write the page of the job in *job_dir* there, and return the file.

    Raises:
        OSError: it cannot be written.
    """
    path, part = job_dir / PAGE, job_dir / f".{PAGE}.part"
    part.write_text(page_of(job_dir), encoding="utf-8")
    part.replace(path)
    heir = owners.heir(job_dir)
    if heir is not None:
        owners.give(path, heir)
    return path


def _let_go(keep: tuple[int, int]) -> None:
    """Let go of everything of `toolkit run` but *keep*: its console, its locks, its share of the cores."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    low, high = sorted(keep)
    os.closerange(3, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, 4096)
    os.nice(NICENESS)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # Before NumPy is imported.
