"""`toolkit run --watch`: the page of a running job, in a browser and over plain HTTP."""

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser import Browser, needs_browser
from tests.commands.simulate.toolkit_run import ToolkitRun
from toolkit.commands.simulate import watch
from toolkit.commands.simulate.watch import PageServer, page_of

SCRIPT = """
import os, time
step = 0
while not os.path.exists(os.environ["END"]):
    step += 1
    print(f"step={step} loss={1 / step:.4f}", flush=True)
    time.sleep(0.1)
raise ValueError("loss is nan")
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ToolkitRun]:
    """A job that trains until the file END is there, and then fails."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = ("--watch", "--env", f"END={tmp_path / 'END'}", "--metric", "loss=loss=([0-9.]+)")
    with ToolkitRun(tmp_path, str(script), *words, OMP_NUM_THREADS="1") as run:
        run.until("step=3")
        yield run


def address_of(run: ToolkitRun) -> str:
    return next(word for word in run.console.split() if word.startswith("http://127.0.0.1:"))


def status_of(address: str, path: str, host: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


@needs_browser[0]
@needs_browser[1]
def test_a_browser_follows_the_job_to_its_end_and_the_page_stays_as_a_file(
    run: ToolkitRun, browser: Browser, tmp_path: Path
) -> None:
    browser.open(address_of(run))
    status = "return document.querySelector('.status').innerText;"
    browser.until("return document.getElementById('main').innerText.includes('loss');", "the metric")
    assert "running" in browser.value(status)

    (tmp_path / "END").touch()
    code = run.end()
    browser.until("return document.querySelector('.status').innerText.includes('failed');", "the end")

    assert code == 1
    assert "ValueError: loss is nan" in browser.value("return document.querySelector('main').innerText;")
    assert "  report: job/report.html\n" in run.console
    assert "ValueError: loss is nan" in (run.folder / "report.html").read_text()
    assert browser.logs()[0] == []


def test_only_this_machines_names_and_the_printed_address_have_the_page(run: ToolkitRun, tmp_path: Path) -> None:
    address = address_of(run)
    parts = urlsplit(address)

    answers = {
        "as printed": status_of(address, parts.path, parts.netloc),
        "by name": status_of(address, parts.path, f"LOCALHOST:{parts.port}"),
        "rebound": status_of(address, parts.path, f"attacker.example:{parts.port}"),
        "rebound with a name of ours in front": status_of(address, parts.path, "localhost.attacker.example"),
        "guessed": status_of(address, "/", parts.netloc),
    }
    (tmp_path / "END").touch()
    with pytest.raises(ConnectionError):  # Once the job's end was fetched, nobody listens any more.
        while True:
            status_of(address, parts.path, parts.netloc)
    run.end()

    assert {name: answer[0] for name, answer in answers.items()} == {
        "as printed": 200,
        "by name": 200,
        "rebound": 403,
        "rebound with a name of ours in front": 403,
        "guessed": 404,
    }
    assert "train" in answers["as printed"][1] and "train" not in answers["rebound"][1]


def test_a_port_that_is_taken_starts_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('started')")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with ToolkitRun(tmp_path, str(script), "--watch", str(port)) as run:
            code = run.end()

    assert code == 78
    assert f"expected a free port of localhost, found {port}" in run.console
    assert not run.folder.exists()


def test_a_page_is_made_once_for_all_who_ask_within_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FRESH_S", 1e6)
    calls: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = PageServer(listening, "word", lambda: calls.append("page") or "the page")  # type: ignore[func-returns-value]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/word/"

        pages = [status_of(address, "/word/", "localhost") for _ in range(5)]
        threading.Thread(target=server.finish).start()  # It waits for the request that follows.
        while not server.ended:
            pass
        last = status_of(address, "/word/", "localhost")
        thread.join()

    assert pages == [(200, "the page")] * 5 and last == (200, "the page")
    assert len(calls) == 2


def test_a_job_whose_files_cannot_be_read_is_an_answer_not_an_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = PageServer(listening, "word", lambda: page_of(tmp_path / "nothing"))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        status, text = status_of(f"http://127.0.0.1:{listening.getsockname()[1]}/", "/word/", "localhost")
        server.shutdown()
        thread.join()

    assert status == 503 and "cannot be made now" in text
