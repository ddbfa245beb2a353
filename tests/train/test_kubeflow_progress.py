"""A TrainJob's progress, posted while a real job runs: to a server as Kubeflow Trainer's, and to servers that fail."""

import json
import os
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.train.base import Base
from tests.train.live import Live, live
from tests.train.test_together import Hosts

DEADLINE_S = 60.0
TOKEN = "eyJ-sesame-open-9"
# Says a first half, and the second once the file `go` is there.
HALVES = """
import os, sys, time
from toolkit import status
print("loss=0.5", flush=True)
status.progress(0.25)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
print("loss=0.125", flush=True)
status.progress(0.5)
sys.exit(int(os.environ.get("CODE", "0")))
"""
# The same without a word.
SILENT = HALVES.replace("status.progress", "str").replace("loss=", "")


class Server:
    """A status server on this machine. `status`: what it answers with, None: it takes a request and never answers."""

    def __init__(self, status: int | None = 200, certificate: Path | None = None) -> None:
        self.posts: list[dict[str, Any]] = []
        self.came = threading.Condition()
        self.released = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.came:
                    server.posts.append({"path": self.path, "headers": dict(self.headers), **body})
                    server.came.notify_all()
                if status is None:
                    server.released.wait(DEADLINE_S)
                    return
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
            self.scheme = "https"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self._http.server_address[1]}/trainjobs/digits/status"

    def until(self, **expected: object) -> dict[str, Any]:
        """Wait for a post with *expected* in its trainerStatus and return that."""
        ends_s = time.monotonic() + DEADLINE_S
        with self.came:
            while True:
                for post in self.posts:
                    if expected.items() <= post["trainerStatus"].items():
                        return dict(post["trainerStatus"])
                assert self.came.wait(ends_s - time.monotonic()), f"no post with {expected} among {self.posts}"

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class Pod:
    """A host of a TrainJob whose script says loss=N, and where its progress goes."""

    def __init__(self, base: Base, server: Server) -> None:
        self.base = base
        self.server = server
        self.go = base.folder / "go"
        self.token = base.folder / "token"
        self.token.write_text(TOKEN + "\n")
        base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
        base.program(HALVES)
        self.environ = {
            "TOOLKIT_PLATFORM": "kubeflow",
            "TOOLKIT_BASE": str(base.root),
            "TOOLKIT_DISTRIBUTION": "none",
            "HOSTNAME": "digits-node-0-0",
            "GO": str(self.go),
            "KUBEFLOW_TRAINER_SERVER_URL": server.url,
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.token),
        }


def loss(value: str) -> list[dict[str, str]]:
    return [{"name": "loss", "value": value}]


def sidecar(train: Live) -> int | None:
    """Return the pid of `train`'s sidecar, None if there is none (or none yet)."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == train.pid and b"kubeflow_progress.py" in (path / "cmdline").read_bytes():
                return int(path.name)
        except OSError:
            continue  # It ended while we looked.
    return None


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def pod(base: Base, server: Server) -> Pod:
    return Pod(base, server)


def certificate(folder: Path) -> Path:
    """Make a certificate for 127.0.0.1 that vouches for itself; its key lies beside it."""
    certificate_file = folder / "ca.crt"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=trainer -addext subjectAltName=IP:127.0.0.1"
    try:
        subprocess.run(
            [*command.split(), "-out", certificate_file, "-keyout", certificate_file.with_suffix(".key")],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return certificate_file


def test_a_trainjob_shows_how_far_its_script_says_it_is_and_the_latest_metrics(pod: Pod, server: Server) -> None:
    with live(pod.base, **pod.environ) as running:
        first = server.until(progressPercentage=25, metrics=loss("0.5"))
        pod.go.touch()
        done = running.end()

    assert done.status == 0, done
    last = server.posts[-1]["trainerStatus"]
    assert (last["progressPercentage"], last["metrics"]) == (50, loss("0.125"))
    assert last["estimatedRemainingSeconds"] >= 0
    assert "estimatedRemainingSeconds" not in first  # From one point there is no pace.
    assert time.strptime(last["lastUpdatedTime"], "%Y-%m-%dT%H:%M:%SZ")
    assert server.posts[-1]["path"] == "/trainjobs/digits/status"
    assert server.posts[-1]["headers"]["Content-Type"] == "application/json"
    assert {post["headers"]["Authorization"] for post in server.posts} == {f"Bearer {TOKEN}"}
    assert "Kubeflow" not in done.log


def test_the_servers_certificate_is_checked_and_its_token_is_nowhere_but_in_the_post(base: Base) -> None:
    ca_file = certificate(base.folder)
    server = Server(certificate=ca_file)
    try:
        pod = Pod(base, server)
        with live(base, **pod.environ, KUBEFLOW_TRAINER_SERVER_CA_CERT=str(ca_file)) as running:
            server.until(progressPercentage=25)
            pod.go.touch()
            done = running.end()
    finally:
        server.close()

    assert done.status == 0, done
    assert server.posts[-1]["headers"]["Authorization"] == f"Bearer {TOKEN}"
    left = [path.read_bytes() for path in base.root.rglob("*") if path.is_file()]
    assert not [text for text in (done.stdout, done.stderr, *left) if TOKEN.encode() in text]


def test_a_renewed_token_is_used_from_then_on(pod: Pod, server: Server) -> None:
    with live(pod.base, **pod.environ) as running:
        server.until(progressPercentage=25)
        pod.token.write_text("renewed")
        pod.go.touch()
        running.end()

    assert server.posts[-1]["headers"]["Authorization"] == "Bearer renewed"


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        ("refuses", 0),
        ("hangs", 3),
        ("is absent", 0),
        ("is not the one", 3),
        ("token is gone", 0),
        ("token is odd", 3),
    ],
)
def test_a_server_that_fails_changes_nothing_but_one_line_of_the_log(base: Base, trouble: str, code: int) -> None:
    server = Server(
        status={"refuses": 401, "hangs": None}.get(trouble, 200),
        certificate=certificate(base.folder) if trouble == "is not the one" else None,
    )
    pod = Pod(base, server)
    if trouble == "is absent":
        server.close()
    if trouble == "token is gone":
        pod.token.unlink()
    if trouble == "token is odd":
        pod.token.write_text(f"{TOKEN}\nX-More: 1")
    try:
        with live(base, **pod.environ, CODE=str(code)) as running:
            if trouble == "hangs":
                server.until()
            else:
                running.until(b"Kubeflow's status server ")
            pod.go.touch()
            done = running.end()  # However long the server hangs.
    finally:
        if trouble != "is absent":
            server.close()

    assert done.status == code, done
    assert done.stdout == b"loss=0.5\nloss=0.125\n"
    assert done.log.count("Kubeflow") == 1 or trouble == "hangs"
    assert TOKEN not in done.log
    assert done.succeeded == (code == 0)
    assert "kubeflow" not in json.dumps(done.outcome).lower()


def test_nothing_is_posted_for_a_script_that_says_nothing(pod: Pod, server: Server) -> None:
    pod.base.program(SILENT)
    pod.go.touch()

    done = pod.base.train(pod.environ)

    assert done.status == 0, done
    assert server.posts == []


def test_a_setting_switches_it_off(pod: Pod, server: Server) -> None:
    with live(pod.base, **pod.environ, TOOLKIT_KUBEFLOW_PROGRESS="off") as running:
        running.until(b"loss=0.5")
        assert sidecar(running) is None
        pod.go.touch()
        done = running.end()

    assert done.status == 0, done
    assert server.posts == []


def test_a_sidecar_that_is_killed_is_no_failure_of_the_job(pod: Pod, server: Server) -> None:
    with live(pod.base, **pod.environ) as running:
        server.until(progressPercentage=25)
        pid = sidecar(running)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while sidecar(running) is not None:
            time.sleep(0.01)
        pod.go.touch()
        done = running.end()

    assert done.status == 0, done
    assert done.succeeded
    assert len(done.outcome["exits"]) == 1


def test_a_stop_is_the_scripts_and_the_last_progress_is_posted_behind_it(pod: Pod, server: Server) -> None:
    saves = "import signal\ndef save(*_):\n    status.progress(0.75); print('saved', flush=True); sys.exit(0)\n"
    pod.base.program(HALVES.replace("print(", saves + "signal.signal(signal.SIGTERM, save)\nprint(", 1))

    with live(pod.base, **pod.environ) as running:
        server.until(progressPercentage=25)
        running.signal()
        done = running.end()

    assert b"saved" in done.stdout
    assert server.posts[-1]["trainerStatus"]["progressPercentage"] == 75


def test_half_a_line_is_still_shown_at_once(pod: Pod) -> None:
    pod.base.program(HALVES.replace('"loss=0.5"', '"half a line", end=""'))

    with live(pod.base, **pod.environ) as running:
        running.until(b"half a line")
        pod.go.touch()
        done = running.end()

    assert done.stdout == b"half a lineloss=0.125\n"


def test_only_the_leader_posts(tmp_path: Path, server: Server) -> None:
    hosts = Hosts(tmp_path, ("digits-node-0-0.digits", "digits-node-0-1.digits"))
    pods = [Pod(base, server) for base in hosts.bases.values()]
    common = {**hosts.environ, "PET_NNODES": "2", "PET_MASTER_ADDR": "digits-node-0-0.digits"}
    with (
        live(pods[0].base, **common, **pods[0].environ, PET_NODE_RANK="0") as leader,
        live(pods[1].base, **common, **pods[1].environ, PET_NODE_RANK="1") as follower,
    ):
        follower.until(b"loss=0.5")
        server.until(progressPercentage=25)
        assert sidecar(leader) is not None
        assert sidecar(follower) is None
        for pod in pods:
            pod.go.touch()
        ends = [leader.end(), follower.end()]

    assert [end.status for end in ends] == [0, 0], ends
    assert server.posts[-1]["trainerStatus"]["progressPercentage"] == 50
