"""TOOLKIT_NOTIFY: `train` tells a webhook what happens to the job, and waits for none (docs/notify.md)."""

import http.server
import json
import signal
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.hosts import Hosts
from tests.train.base import ROOT, Base
from tests.train.live import live
from toolkit.job.explanation import LIMIT_BYTES

BED = ROOT / ".beds/notify"
RAISES = "raise ValueError('loss is nan')\n"
# Fails once, with progress, then trains.
FAILS_ONCE = """
import os
from toolkit import status
status.heartbeat(1)
if os.environ["TOOLKIT_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), 9)
print("trained")
"""
# Says that its loss is NaN until the monitor has found it.
SAYS_NAN = """
import os, time
path = os.environ["SM_OUTPUT_DIR"] + "/monitor/findings.jsonl"
ends_s = time.monotonic() + 60
while not os.path.exists(path) and time.monotonic() < ends_s:
    print("step=1 loss=nan", flush=True)
    time.sleep(0.1)
"""


class Webhook:
    """An HTTP server on loopback. *statuses*: what it answers, one after the other, the last one again and again."""

    def __init__(self, *statuses: int, location: str = "") -> None:
        hook = self
        self.bodies: list[dict[str, Any]] = []
        self.authorization: str | None = None
        left = list(statuses or (200,))

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.bodies.append(json.loads(body))
                hook.authorization = self.headers["Authorization"]
                self.send_response(left.pop(0) if len(left) > 1 else left[0])
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                hook.bodies.append({"event": "GET"})

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/hook/T00-secret-path"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def events(self) -> list[str]:
        return [body["event"] for body in self.bodies]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook() -> Iterator[Webhook]:
    webhook = Webhook()
    yield webhook
    webhook.close()


@contextmanager
def silent() -> Iterator[str]:
    """Accept connections at the address that is yielded, and never answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hook"


def test_the_end_of_a_failed_job_is_told_with_cause_culprit_and_last_lines(base: Base, hook: Webhook) -> None:
    base.program(RAISES)

    done = base.train(TOOLKIT_NOTIFY=hook.address)

    assert done.status == 1
    [body] = hook.bodies
    assert (body["event"], body["job"], body["schema_version"]) == ("end", "walk", 1)
    why = body["why"]
    assert (why["state"], why["exit_code"], why["host"]) == ("failed", 1, "algo-1")
    assert why["cause"].startswith("ValueError: loss is nan (at ")
    assert why["culprit"].startswith("host algo-1, script, pid ")
    assert body["last_lines"][-1] == "ValueError: loss is nan"
    assert body["text"].startswith("walk: FAILED, exit code 1 (ExecuteUserScriptError)\nCause: ValueError")
    assert len(body["text"].encode()) <= LIMIT_BYTES
    document = (base.output / "outcome.json").read_bytes()
    assert document[why["evidence"]["offset_bytes"] :].startswith(b'"message": "ValueError: loss is nan')
    assert "arrive" not in done.log


def test_secrets_are_masked_and_the_address_stands_in_no_log(base: Base, hook: Webhook) -> None:
    base.hyperparameters({"api_token": json.dumps("tok-5f1c99d07a2b")})
    base.program("raise ValueError('refused for tok-5f1c99d07a2b')\n")

    done = base.train(TOOLKIT_NOTIFY=hook.address)

    assert "5f1c99d07a2b" not in json.dumps(hook.bodies)
    assert "refused for ******" in hook.bodies[0]["why"]["cause"]
    assert hook.address not in done.log
    assert all(hook.address not in path.read_text(errors="replace") for path in base.output.rglob("*.json"))


def test_user_and_password_of_the_address_go_into_the_header_alone(base: Base, hook: Webhook) -> None:
    base.program(RAISES)

    done = base.train(TOOLKIT_NOTIFY=hook.address.replace("//", "//me:w%40rd@"))

    assert hook.authorization == "Basic " + b64encode(b"me:w@rd").decode()
    assert "w%40rd" not in json.dumps(hook.bodies) + done.log


def test_a_restart_is_told_before_the_end(base: Base, hook: Webhook) -> None:
    base.program(FAILS_ONCE)

    done = base.train(TOOLKIT_NOTIFY=hook.address, TOOLKIT_RESTARTS="2")

    assert done.status == 0
    assert sorted(hook.events) == ["end", "restart"]
    told = {body["event"]: body["why"] for body in hook.bodies}
    assert "killed by SIGKILL" in told["restart"]["cause"]
    assert (told["restart"]["state"], told["restart"]["exit_code"]) == ("restarting", None)
    assert told["end"]["state"] == "succeeded"


def test_a_hang_is_told_while_it_lasts(base: Base, hook: Webhook) -> None:
    base.program("import time\ntime.sleep(600)\n")

    done = base.train(TOOLKIT_NOTIFY=hook.address, TOOLKIT_STALL_S="1")

    assert done.status == 124
    assert sorted(hook.events) == ["end", "hang"]
    told = {body["event"]: body["why"] for body in hook.bodies}
    assert told["hang"]["state"] == "hanging"
    assert told["end"]["kind"] == "Hang"


def test_a_finding_is_told_if_its_rule_asks_for_it(base: Base, hook: Webhook) -> None:
    base.program(SAYS_NAN)
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": r"loss=(\S+)"}])
    rules = {"ExplodingTensor": {"action": "notify"}}

    done = base.train(
        TOOLKIT_NOTIFY=hook.address,
        TOOLKIT_MONITOR="1",
        TOOLKIT_MONITOR_INTERVAL_S="0.1",
        TOOLKIT_PROFILER_RULES=json.dumps(rules),
    )

    assert (done.status, sorted(hook.events)) == (0, ["end", "finding"])
    told = {body["event"]: body["why"] for body in hook.bodies}
    assert (told["finding"]["kind"], told["finding"]["state"]) == ("ExplodingTensor", "running")
    assert "loss" in told["finding"]["cause"]


@pytest.mark.parametrize("fault", ["raises", "leader killed"])
def test_one_host_speaks_for_all(tmp_path: Path, hook: Webhook, fault: str) -> None:
    words = {"fault": "raises" if fault == "raises" else "", "at": "algo-2", "steps": "6000"}
    with Hosts(tmp_path, 2, "script", environ={"TOOLKIT_NOTIFY": hook.address}, words=words) as hosts:
        hosts.start()
        if fault == "leader killed":
            assert hosts.until(lambda: hosts.all_here, 60.0)
            hosts.signal("algo-1", signal.SIGKILL)

        assert hosts.until(hosts.over, 60.0)

    [body] = hook.bodies
    culprit = "algo-2" if fault == "raises" else "algo-1"
    assert (body["event"], body["why"]["host"]) == ("end", culprit)
    assert ("boom on algo-2" if fault == "raises" else "host algo-1 vanished") in body["why"]["cause"]


def test_documents_that_are_wrong_are_told_as_well(base: Base, hook: Webhook) -> None:
    base.document("inputdataconfig.json", b"{")

    done = base.train(TOOLKIT_NOTIFY=hook.address)

    assert done.status == 78
    assert "inputdataconfig.json" in hook.bodies[0]["why"]["cause"]


def test_a_server_that_fails_is_asked_three_times(base: Base) -> None:
    base.program("print('done')\n")
    recovers, fails = Webhook(503, 503, 200), Webhook(500)

    well, badly = base.train(TOOLKIT_NOTIFY=recovers.address), base.train(TOOLKIT_NOTIFY=fails.address)

    assert (well.status, badly.status, len(recovers.bodies), len(fails.bodies)) == (0, 0, 3, 3)
    assert "did not arrive" not in well.log
    assert "TOOLKIT_NOTIFY: a message did not arrive: the server answers 500 Internal Server Error" in badly.log
    assert badly.succeeded
    recovers.close()
    fails.close()


@pytest.mark.parametrize(("status", "words"), [(404, "404 Not Found"), (302, "a redirect, which is not followed")])
def test_what_another_try_does_not_mend_is_tried_once(base: Base, hook: Webhook, status: int, words: str) -> None:
    base.program("print('done')\n")
    refuses = Webhook(status, location=hook.address)

    done = base.train(TOOLKIT_NOTIFY=refuses.address)

    assert (done.status, len(refuses.bodies), hook.bodies) == (0, 1, [])
    assert words in done.log
    refuses.close()


def test_a_server_that_does_not_answer_holds_the_end_for_five_seconds_at_most(base: Base) -> None:
    base.program("print('done')\n")

    with silent() as address:
        began_s = time.monotonic()
        done = base.train(TOOLKIT_NOTIFY=address)
        took_s = time.monotonic() - began_s

    assert done.succeeded
    assert "the server did not answer within 5 s" in done.log or "does not answer: timed out" in done.log
    assert took_s < 25.0  # Three tries of 5 s, and their pauses, would be more, with the job.


def test_nobody_who_listens_costs_a_line(base: Base) -> None:
    base.program("print('done')\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    done = base.train(TOOLKIT_NOTIFY=f"http://127.0.0.1:{port}/hook")

    assert done.status == 0
    assert done.log.count("a message did not arrive: the server does not answer: Connection refused") == 1


def test_a_stop_is_told(base: Base, hook: Webhook) -> None:
    base.program("import time\nprint('here', flush=True)\ntime.sleep(600)\n")

    with live(base, TOOLKIT_NOTIFY=hook.address) as running:
        running.until(b"here")
        running.signal()
        running.end()

    assert [body["why"]["state"] for body in hook.bodies] == ["stopped"]


def test_another_address_is_served_by_apprise(base: Base, hook: Webhook) -> None:
    python = BED / "bin/python"
    if not (BED / ".ready").exists():
        pytest.skip("needs the test bed .beds/notify (scripts/beds/notify)")
    base.program(RAISES)
    address = hook.address.replace("http://", "json://")

    done = base.train(
        command=(str(python), "-m", "toolkit.cli.main", "train"), PYTHONPATH=str(ROOT), TOOLKIT_NOTIFY=address
    )

    assert done.status == 1
    [body] = hook.bodies
    assert body["title"] == "walk: failed"
    assert "Cause: ValueError: loss is nan" in body["message"]
    assert "did not arrive" not in done.log


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("hooks.example.com/x", "found no address"),
        ("https:///path", "found one without a host"),
        ("https://host:port/x", "found a damaged one"),
        ("mailtos://user:word@example.com", "needs the package apprise"),
    ],
)
def test_a_wrong_address_ends_the_job_before_its_script(base: Base, address: str, words: str) -> None:
    base.program("print('began')\n")

    done = base.train(TOOLKIT_NOTIFY=address)

    assert done.status == 78
    assert "TOOLKIT_NOTIFY: " in done.log and words in done.log
    assert "began" not in done.log
    assert "user:word" not in done.log
