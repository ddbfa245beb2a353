"""toolkit why as a person and a program call it, on jobs that `train` has left."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.jobs.folders import failed, output, report, sample, simulated
from tests.storage.servers import S3
from tests.train.base import Base
from toolkit.commands.jobs.evidence import MOST_BYTES
from toolkit.job.report import HostReport

ROOT = Path(__file__).parents[2]


def why(*words: str | Path, status: int = 0, **variables: str) -> str:
    """Return what `toolkit why` prints: on standard output, or, where it fails, as its error."""
    completed = subprocess.run(
        [sys.executable, "-m", "toolkit.cli.main", "why", *map(str, words)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        env={"PATH": "/usr/bin:/bin", **variables},
        cwd=ROOT,
    )
    assert completed.returncode == status, completed.stderr
    assert len(completed.stdout.encode()) <= 2000
    return completed.stderr if status else completed.stdout


def document(*words: str | Path, **variables: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(why(*words, "--json", status=0, **variables))
    return answer


def test_a_job_of_two_hosts_names_the_cause_the_culprit_and_the_line_of_its_log(tmp_path: Path) -> None:
    log = "step 1\nTraceback (most recent call last):\nValueError: loss is nan\n[toolkit] ValueError: loss is nan\n"
    job = simulated(
        tmp_path / "job",
        report(),
        {"algo-1": failed("algo-2", this_host_end="was healthy"), "algo-2": failed("algo-2")},
    )
    (job / "logs/algo-2.log").write_text(log)
    output(job / "hosts/algo-2/opt/ml/output", metrics=(sample("loss", 0.25, 9.5, host="algo-2"),))

    assert why(job).splitlines() == [
        "digits: FAILED, exit code 3 (ExecuteUserScriptError)",
        "Cause: ValueError: loss is nan (at train.py:5 in step)",
        "What to do: Look at train.py:5, which raised it; correct it, then start the job again.",
        "Culprit: host algo-2, rank 1 (local rank 0), pid 71: ended with code 3",
        f"Evidence: logs/algo-2.log, byte {log.index('ValueError')}: ValueError: loss is nan",
        "Healthy: algo-1 was healthy; last metrics loss 0.25, 0.5 s before the failure",
        f"Look: toolkit report {job}; hosts/algo-2/opt/ml/output/outcome.json; logs/algo-2.log",
        f"Folder: {job}",
    ]
    answer = document(job)
    assert (answer["state"], answer["host"], answer["rank"], answer["blame"]) == ("failed", "algo-2", 1, "user")


def test_a_container_that_failed_shows_the_line_with_its_secret_masked(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.hyperparameters({"sagemaker_program": json.dumps("train.py"), "api_token": json.dumps("tok-5f1c99d07a2b")})
    base.program("import sys\nprint('step 1', flush=True)\nraise ValueError('refused for tok-5f1c99d07a2b')\n")

    base.train(TOOLKIT_LOG_FILES="on")
    answer = document(base.root)

    assert answer["cause"].startswith("ValueError: refused for ******")
    line = answer["evidence"]
    assert line["text"] == "ValueError: refused for ******"
    rest = (base.root / line["file"]).read_bytes()[line["offset_bytes"] :]
    assert rest.startswith(b"ValueError: refused for ")


def test_escape_sequences_of_an_error_reach_no_terminal(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.program("raise ValueError('\\x1b[31mred\\x1b[0m and \\x07')\n")

    base.train()
    texts = why(base.root), document(base.root)["cause"]

    assert not [text for text in texts if "\x1b" in text or "\x07" in text]
    assert "ValueError: red and " in texts[0]


def test_a_folder_of_several_jobs_is_no_job(tmp_path: Path) -> None:
    for name in ("one", "other"):
        job = simulated(tmp_path / name, report(), {"algo-1": failed("algo-1")}, "x\n")
        (job / "metrics.jsonl").write_text("")

    assert "expected a job folder" in why(tmp_path, status=78)


def test_a_code_without_an_error_says_how_the_process_ended_and_what_it_last_said(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.program("import sys\nprint('no such shard', flush=True)\nsys.exit(7)\n")

    base.train()
    answer = document(base.root)

    assert answer["cause"] == "script ended with code 7; it last said: no such shard"
    assert answer["evidence"]["file"] == "output/outcome.json"


def test_a_host_that_vanished_is_the_culprit(tmp_path: Path) -> None:
    hosts = {
        "algo-1": HostReport(exit_code=75, status="failed", cause="lost host algo-2"),
        "algo-2": HostReport(exit_code=137, status="vanished", cause="killed with everything on it"),
    }
    job = simulated(
        tmp_path / "job", report(hosts=hosts, exit_code=75), {"algo-1": failed("algo-2"), "algo-2": None}, "x\n"
    )

    answer = document(job)

    assert (answer["culprit"], answer["host"], answer["rank"]) == ("host algo-2", "algo-2", None)
    assert "vanished" in answer["cause"]
    assert answer["healthy"].startswith("algo-1 lost host algo-2")
    assert "kernel log" in answer["next_action"]


def test_a_job_that_left_nothing_but_a_log_shows_its_last_line(tmp_path: Path) -> None:
    folder = output(tmp_path / "output")
    (folder / "data/logs").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("")
    (folder / "data/logs/algo-1-rank-0.log").write_text("step 1\nstep 2\n")

    answer = document(tmp_path)

    assert (answer["state"], answer["exit_code"]) in (("unfinished", None), ("running", None))
    assert answer["evidence"] == {"text": "step 2", "file": "output/data/logs/algo-1-rank-0.log", "offset_bytes": 7}


def test_a_job_that_has_no_host_yet_is_starting(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    job = simulated(tmp_path / "job", report("InProgress", hosts={}, exit_code=None, failed_host="", end_time=""), {})

    with (job / ".toolkit-job").open("w") as mark:  # As `toolkit run` holds it.
        fcntl.flock(mark, fcntl.LOCK_EX)
        answer = document(job)

    assert (answer["state"], answer["cause"]) == ("running", "It is starting: no host has begun yet.")


def test_a_job_that_succeeded_asks_for_nothing(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.program("print('done')\n")

    base.train()
    answer = document(base.root)

    assert (answer["state"], answer["culprit"], answer["evidence"]) == ("succeeded", "", None)
    assert answer["next_action"].startswith("Nothing")


@pytest.mark.storage
def test_a_job_in_storage_is_read_at_its_address(tmp_path: Path, s3: S3) -> None:
    error = "ValueError: loss is nan\n"
    log = "step\n" * (MOST_BYTES // 4) + error
    store = s3.store(bucket := s3.bucket("jobs-of-why"))
    job = simulated(tmp_path / "job", report(), {"algo-1": None, "algo-2": failed("algo-2")}, log)
    for path in (path for path in job.rglob("*") if path.is_file()):
        store.upload(f"runs/7/{path.relative_to(job)}", path)
    store.write("runs/7/model.tar.gz", b"x")
    store.write("other/file", b"x")

    answer = document(f"{bucket}/runs/7", **s3.environ)

    assert (answer["state"], answer["host"], answer["folder"]) == ("failed", "algo-2", f"{bucket}/runs/7")
    assert answer["evidence"] == {
        "text": "ValueError: loss is nan",
        "file": "logs/algo-2.log",
        "offset_bytes": len(log) - len(error),
    }
    assert "found other objects" in why(f"{bucket}/other", status=78, **s3.environ)
    assert "found none" in why(f"{bucket}/nothing", status=78, **s3.environ)


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("no-such-job", "expected the name of a job or its folder, found 'no-such-job'"),
        ("ftp://host/job", "expected s3://BUCKET/KEY"),
        ("file:///no/such/folder", "no/such/folder"),
        (ROOT / "docs", "expected a job folder"),
    ],
)
def test_what_is_no_job_is_an_error_of_the_user(tmp_path: Path, word: str, words: str) -> None:
    assert words in why(word, status=78, HOME=str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b'{"schema_version": 99, "status": "failed"}'])
def test_an_outcome_that_cannot_be_read_is_of_a_job_that_runs_no_more(tmp_path: Path, content: bytes) -> None:
    folder = output(tmp_path / "output")
    (folder / "outcome.json").write_bytes(content)

    answer = document(tmp_path)

    assert (answer["state"], answer["exit_code"]) == ("unfinished", None)
    assert answer["cause"].startswith("How the job ended is not known: output/outcome.json is damaged (")
    assert "killed" not in answer["next_action"]


def test_report_and_describe_begin_with_the_same_lines(tmp_path: Path) -> None:
    job = simulated(tmp_path / "job", report(), {"algo-1": failed("algo-2"), "algo-2": failed("algo-2")}, "x\n")
    lines = why(job).splitlines()

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "toolkit.cli.main", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True).stdout

    assert run("describe", str(job)).splitlines()[: len(lines)] == lines
    assert json.loads(run("describe", str(job), "--json"))["Why"] == document(job)
    page = json.loads(run("report", str(job), "--format", "json", "-o", "-"))
    blocks = page["sections"][0]["blocks"]
    assert [f"{block['name']}: {block['text']}" for block in blocks[:3]] == [lines[1], *lines[3:5]]
