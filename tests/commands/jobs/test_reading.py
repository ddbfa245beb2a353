"""A job is read from any folder that a platform or a container leaves, whole or damaged."""

import fcntl
import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from tests.commands.jobs.folders import START_S, failed, output, report, sample, simulated
from tests.folders import as_ordinary_user, unlistable
from toolkit.commands import jobs
from toolkit.commands.jobs import secrets
from toolkit.errors import UserError
from toolkit.job.outcome import Outcome
from toolkit.job.report import HostReport
from toolkit.log import Log
from toolkit.parallelism import decision, timeline

DONE = Outcome(status="succeeded", exit_code=0)


def test_a_job_of_toolkit_run_has_the_platforms_facts_and_the_outcome_of_the_host_that_failed(tmp_path: Path) -> None:
    healthy = failed("algo-2", this_host_end="was healthy")
    simulated(tmp_path / "job", report(), {"algo-1": healthy, "algo-2": failed("algo-2")}, log="one\ntwo\n")

    job = jobs.read(tmp_path / "job")

    assert (job.name, job.status, job.exit_code, job.failed_host) == ("digits", "failed", 3, "algo-2")
    assert job.outcome is not None and job.outcome.this_host_end == ""
    assert job.outcome.cause.message.startswith("ValueError: loss is nan")
    assert [(host.name, host.status, host.exit_code) for host in job.hosts] == [
        ("algo-1", "failed", 3),
        ("algo-2", "failed", 3),
    ]
    assert job.hosts[1].logs[0].read_text() == "one\ntwo\n"
    assert job.start_s == datetime(2026, 11, 18, 11, 6, 40, tzinfo=timezone.utc).timestamp()
    assert job.billable(now_s=0.0) == 25.0
    assert job.notes == ()


@pytest.mark.parametrize("inner", ["opt/ml", "opt/ml/output", "ml", "output", ""])
def test_a_containers_folder_is_read_at_any_depth(tmp_path: Path, inner: str) -> None:
    place = {"opt/ml": "opt/ml/output", "ml": "ml/output"}.get(inner, inner)
    output(tmp_path / place, failed("algo-1"), (sample("loss", 1.0, 2.0),))

    job = jobs.read(tmp_path / inner if inner == "opt/ml" else tmp_path)

    assert (job.status, job.exit_code, job.failed_host) == ("failed", 3, "algo-1")
    assert [host.name for host in job.hosts] == ["algo-1"]
    assert (job.start_s, job.end_s) == (START_S + 1, START_S + 10)
    assert job.billable(now_s=0.0) == 9.0


def test_hosts_side_by_side_are_one_job_whose_outcome_is_of_the_host_that_failed(tmp_path: Path) -> None:
    for name in ("algo-10", "algo-2", "algo-1"):
        output(tmp_path / name / "output", failed("algo-2", this_host_end="" if name == "algo-2" else "was healthy"))

    job = jobs.read(tmp_path)

    assert [host.name for host in job.hosts] == ["algo-1", "algo-2", "algo-10"]
    assert job.outcome is not None and job.outcome.this_host_end == ""
    assert job.billable(now_s=0.0) == 27.0


def test_a_job_runs_while_toolkit_run_holds_its_lock_and_is_unfinished_without(tmp_path: Path) -> None:
    begun = report("InProgress", end_time="", billable_seconds=0.0, exit_code=None, hosts={}, failed_host="")
    simulated(tmp_path / "job", begun, {"algo-1": None})
    lock = os.open(tmp_path / "job" / ".toolkit-job", os.O_RDWR | os.O_CREAT)

    fcntl.flock(lock, fcntl.LOCK_EX)
    running = jobs.read(tmp_path / "job")
    os.close(lock)
    left = jobs.read(tmp_path / "job")

    assert (running.status, running.hosts[0].status, running.end_s) == ("running", "running", None)
    assert running.start_s is not None and running.billable(now_s=running.start_s + 60) == 60.0
    assert (left.status, left.hosts[0].status) == ("unfinished", "unfinished")


def test_a_time_limit_counts_the_seconds_of_training(tmp_path: Path) -> None:
    begun = report("InProgress", end_time="", exit_code=None, hosts={}, max_run_seconds=100.0, waited_seconds=20.0)
    simulated(tmp_path / "job", begun, {"algo-1": None})

    job = jobs.read(tmp_path / "job")

    assert job.start_s is not None
    assert job.limit_left_s(job.start_s + 70) == 50.0
    assert job.limit_left_s(job.start_s + 500) == 0.0
    assert msgspec.structs.replace(job, max_run_s=None).limit_left_s(job.start_s + 70) is None


def test_a_container_without_an_outcome_runs_if_it_wrote_lately(tmp_path: Path) -> None:
    folder = output(tmp_path / "output", metrics=(sample("loss", 1.0, 2.0),))
    written_s = (folder / "metrics.jsonl").stat().st_mtime

    assert jobs.read(tmp_path, now_s=written_s + 5).status == "running"
    assert jobs.read(tmp_path, now_s=written_s + 5000).status == "unfinished"


def test_a_vanished_host_and_one_whose_folder_is_gone_are_hosts_of_the_job(tmp_path: Path) -> None:
    hosts = {
        "algo-1": HostReport(exit_code=75, status="failed"),
        "algo-2": HostReport(exit_code=137, status="vanished", cause="killed with everything on it"),
        "algo-3": HostReport(exit_code=1, cause="the container was not started: no such image"),
    }
    simulated(tmp_path / "job", report(hosts=hosts), {"algo-1": failed("algo-2"), "algo-2": None})

    job = jobs.read(tmp_path / "job")

    assert [(host.name, host.status) for host in job.hosts] == [
        ("algo-1", "failed"),
        ("algo-2", "vanished"),
        ("algo-3", "failed"),
    ]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[1, 2]", b'{"status": "done"}', b"[" * 20_000])
def test_a_damaged_file_becomes_a_sentence_and_the_rest_is_read(tmp_path: Path, content: bytes) -> None:
    folder = output(tmp_path / "output", failed("algo-1"), (sample("loss", 1.0, 2.0),))
    (folder / "failure").write_text("ExecuteUserScriptError:\nExitCode 3\n")
    (folder / "outcome.json").write_bytes(content)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(content)

    job = jobs.read(tmp_path)

    assert (job.status, job.outcome) == ("failed", None)
    assert job.reason.startswith("ExecuteUserScriptError")
    assert len(job.notes) == 1 and "outcome.json is damaged" in job.notes[0]
    assert [row["value"] for row in jobs.metrics(tmp_path)] == [1.0]


@pytest.mark.parametrize("name", ["monitor/samples", "monitor/steps", "profiler/framework", "data/logs"])
def test_a_folder_that_cannot_be_listed_becomes_a_sentence_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = output(tmp_path / "output", failed("algo-1"), (sample("loss", 1.0, 2.0),))
    (folder / name).mkdir(parents=True, exist_ok=True)
    unlistable(monkeypatch, folder / name)

    job = jobs.read(tmp_path)

    assert job.status == "failed" and job.outcome is not None
    assert job.notes == (f"{folder / name} cannot be read (Input/output error); what it says is missing here.",)


def test_a_damaged_job_json_leaves_what_the_hosts_say(tmp_path: Path) -> None:
    simulated(tmp_path / "job", report(), {"algo-1": DONE, "algo-2": DONE})
    (tmp_path / "job" / "job.json").write_text("{")

    job = jobs.read(tmp_path / "job")

    assert (job.status, job.exit_code, len(job.hosts)) == ("succeeded", 0, 2)
    assert "job.json is damaged" in job.notes[0]


@pytest.mark.parametrize("folder", ["", "empty", "file"])
def test_a_folder_without_a_job_is_an_error_that_says_what_was_expected(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")

    with pytest.raises(UserError, match="expected a job folder") as raised:
        jobs.read(tmp_path / (folder or "missing"))

    assert raised.value.exit_code == 78


def test_secret_hyperparameters_are_masked_in_what_the_job_said(tmp_path: Path) -> None:
    folder = output(tmp_path / "opt" / "ml" / "output", failed("algo-1"))
    (folder / "failure").write_text("ValueError: bad key hunter2hunter2\n")
    config = tmp_path / "opt" / "ml" / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text('{"api_key": "\\"hunter2hunter2\\""}')

    job = jobs.read(tmp_path)

    assert job.reason == "ValueError: bad key ******\n"
    assert job.mask("the key is hunter2hunter2") == "the key is ******"


def test_secrets_of_the_environment_are_masked_by_digests_in_a_file_of_their_owner(tmp_path: Path) -> None:
    output(tmp_path / "hosts" / "algo-1" / "opt" / "ml" / "output", failed("algo-1"))
    log = Log()
    log.hide({"API_KEY": "hunter2hunter2", "LR": "0.1"})
    secrets.write(tmp_path / "hosts" / "algo-1", log)
    file = tmp_path / "hosts" / "algo-1" / secrets.FILE

    job = jobs.read(tmp_path)

    assert job.mask("the key is b'hunter2hunter2', 0.1") == "the key is b'******', 0.1"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in file.read_text()
    file.write_text("{")
    assert jobs.read(tmp_path).mask("hunter2hunter2") == "hunter2hunter2"


# Every name below an output folder that a command opens.
OPENED = (
    "success",
    "failure",
    "metrics.jsonl",
    "data/logs/rank-0.log",
    f"data/{decision.FILE}",
    f"data/{timeline.FOLDER}/{timeline.PREFIX}0.jsonl",
    "monitor/monitor.json",
    "monitor/findings.jsonl",
    "monitor/samples/1.samples",
    "monitor/steps/1.steps",
    "profiler/framework/algo-1_rank-0.json",
    "profiler/framework/steps-1-2/rank-0.pt.trace.json.gz",
    "profiler/framework/steps-1-2/rank-1.pt.trace.json",
    "profiler/system/incremental/2026111811/1795000000.algo-1.json",
)


@pytest.mark.parametrize("words", [("report",), ("rules", "diagnose"), ("compare",)])
def test_no_command_waits_for_a_fifo_in_the_output_folder(tmp_path: Path, words: tuple[str, ...]) -> None:
    for name in ("one", "two"):
        folder = output(tmp_path / name / "opt/ml/output", DONE)
        for path in map(folder.joinpath, OPENED):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(path)
    jobs_named = (tmp_path / "one", tmp_path / "two")[: 2 if words == ("compare",) else 1]
    argv = (sys.executable, "-m", "toolkit", *words, *map(str, jobs_named))

    done = subprocess.run(
        (*argv, "-o", "-") if words != ("rules", "diagnose") else argv, capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 0
    # `rules diagnose` has no page for its notes.
    warned = [line for line in done.stderr.splitlines() if "cannot be read (a FIFO, no regular file)" not in line]
    assert warned == []
    assert bool(done.stderr) == (words == ("rules", "diagnose"))
    if words == ("report",):
        for name in ("metrics.jsonl", "monitor/findings.jsonl", "profiler/framework/algo-1_rank-0.json"):
            # Without spaces: a long path is broken into lines.
            assert f"output/{name}cannotberead(aFIFO,noregularfile)" in "".join(done.stdout.split())


def test_a_host_that_cannot_be_looked_at_is_named_and_costs_no_other(tmp_path: Path) -> None:
    for name in ("algo-1", "algo-2"):
        output(tmp_path / name / "output", DONE)
    (tmp_path / "algo-1" / "output").chmod(0)
    (tmp_path / "lost+found").mkdir(0)

    read = as_ordinary_user(
        "import json; from toolkit.commands import jobs; job = jobs.read(sys.argv[1]);"
        "print(json.dumps([[host.name for host in job.hosts], job.notes]))",
        tmp_path,
    )

    assert read.stderr == ""
    names, notes = json.loads(read.stdout)
    assert names == ["algo-2"]
    assert [note.split(" cannot be read (Permission denied)")[0] for note in notes] == [
        str(tmp_path / "algo-1/output/outcome.json"),
        str(tmp_path / "lost+found/opt/ml/output"),
    ]


def test_a_folder_of_which_nothing_can_be_looked_at_is_not_called_one_without_jobs(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir(0)

    read = as_ordinary_user("from toolkit.commands import jobs; jobs.read(sys.argv[1])", tmp_path / "job")

    assert f"PermissionError: [Errno 13] Permission denied: '{tmp_path}/job" in read.stderr
