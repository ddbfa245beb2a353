"""Spot interruptions of `toolkit run`: the job starts again on new hosts, from its checkpoints."""

import fcntl
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun, tracker_run
from toolkit.cli.main import main
from toolkit.commands import jobs
from toolkit.commands.simulate import facts, follow
from toolkit.commands.simulate.report import summary
from toolkit.job.report import HostReport, Interruption, JobReport, spot_words

COUNTED = ("--metric", r"counted=counted=(\d+)")


def lines(console: str, start: str) -> list[str]:
    return [line.strip() for line in console.splitlines() if line.strip().startswith(start)]


def test_an_interrupted_job_starts_again_from_its_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--interrupt", "0s", "--interrupt", "6s+1s", "--checkpoints", str(tmp_path / "kept"))
    with ToolkitRun(tmp_path, "waits_once.py", "--hosts", "2", "--name", "spot", *COUNTED, *words) as job:
        assert job.end() == 0, job.console

    message = job.report
    first, second = message["interruptions"]
    assert (message["status"], message["secondary_status"], job.codes) == (
        "Completed",
        "Completed",
        {"algo-1": 0, "algo-2": 0},
    )
    assert (first["checkpoint_time"], first["folder"], second["folder"]) == ("", "interrupted/1", "interrupted/2")
    assert second["time"] < second["end_time"] < second["resumed_time"] < message["end_time"]
    assert second["checkpoint_time"]
    assert {host["exit_code"] for host in second["hosts"].values()} == {143}
    assert 1 < message["waited_seconds"] < message["training_seconds"]
    paid_s = (message["training_seconds"] - message["waited_seconds"]) * 2
    assert message["billable_seconds"] == pytest.approx(paid_s, abs=0.01)

    # All else is as on a new machine; what an earlier start left is beside it.
    assert sorted(job.archive("output.tar.gz")) == ["start-2"]
    earlier = job.folder / "interrupted/2"
    assert (earlier / "hosts/algo-1/opt/ml/output/data/start-1").exists()
    assert "counted=1\n" in (earlier / "logs/algo-2.log").read_text()
    assert "counted=2\n" in (job.folder / "logs/algo-2.log").read_text()
    assert json.loads((earlier / "job.json").read_text())["secondary_status"] == "Interrupted"
    assert not (earlier / "hosts/algo-1/opt/ml/checkpoints").exists()
    assert tracker_run(earlier) == tracker_run(job.folder) == tracker_run(job.folder, "algo-2")
    assert [row["value"] for row in jobs.metrics(job.folder)] == [1, 1, 2, 2]
    assert [attempt.status for attempt in jobs.read(job.folder).earlier] == ["stopped", "stopped"]

    interrupted = lines(job.console, "interrupted after")
    assert (
        interrupted[0].startswith("interrupted after")
        and ", no checkpoint seen; started again after " in interrupted[0]
    )
    assert ", its last checkpoint " in interrupted[1]
    for start in ("Training seconds: ", "Billable seconds: ", "Managed Spot Training savings: "):
        assert len(lines(job.console, start)) == 1
    described = facts.read_facts(job.folder, 0.0)
    assert lines(facts.text(described), "Managed Spot") == lines(job.console, "Managed Spot")
    document = facts.document(described)
    assert document["EnableManagedSpotTraining"] is True
    assert document["TrainingTimeInSeconds"] == message["training_seconds"]
    assert document["BillableTimeInSeconds"] == pytest.approx(message["billable_seconds"] / 2, abs=0.001)
    with pytest.raises(SystemExit) as caught:
        monkeypatch.setattr(sys, "argv", ["toolkit", "report", str(job.folder), "-o", "-"])
        main()
    page = capsys.readouterr().out
    assert caught.value.code == 0
    assert "with 2 spot interruptions." in page
    assert "interrupted/2" in page and "Managed spot training: Training seconds: " in page


@pytest.mark.parametrize(("code", "reported"), [("0", 0), ("3", 143)])
def test_however_the_script_ends_at_an_interruption_the_job_starts_again(
    tmp_path: Path, code: str, reported: int
) -> None:
    words = ("--interrupt", "6s", "--checkpoints", str(tmp_path / "kept"), "--hyperparameter", f"code={code}")
    with ToolkitRun(tmp_path, "waits_once.py", *words) as job:
        assert job.end() == 0, job.console

    (interruption,) = job.report["interruptions"]
    assert interruption["hosts"]["algo-1"]["exit_code"] == reported
    assert sorted(job.archive("output.tar.gz")) == ["start-2"]


def test_without_checkpoints_the_job_starts_from_scratch_and_says_so(tmp_path: Path) -> None:
    with ToolkitRun(
        tmp_path, "counts_to.py", "--interrupt", "0s", "--interrupt", "1h", "--hyperparameter", "steps=1"
    ) as job:
        assert job.end() == 0, job.console

    assert "nothing outlives an interruption" in job.console
    assert "begin=0\n" in job.console
    assert len(job.report["interruptions"]) == 1
    (note,) = job.report["notes"]
    assert note.startswith("not interrupted at 3600 s: the job ended after ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_job_that_waits_for_new_hosts_can_be_stopped(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with ToolkitRun(tmp_path, "counts_to.py", "--interrupt", "0s+1h") as job:
        job.until("new ones come in 3600 s")
        waiting = facts.read_facts(job.folder, 4e9)
        job.signal(number)
        assert job.end() == code

    assert (waiting.status, waiting.secondary_status, waiting.billable_s < 600) == ("InProgress", "Interrupted", True)
    assert "InProgress (interrupted)" in facts.table((waiting,), relative_to=tmp_path)
    message = job.report
    assert (message["status"], message["secondary_status"], len(message["interruptions"])) == ("Stopped", "Stopped", 1)
    assert message["interruptions"][0]["resumed_time"] == ""
    assert "; not started again" in job.console
    assert (job.folder / "logs/algo-1.log").exists()


def test_the_time_for_training_and_waiting_together_is_a_limit(tmp_path: Path) -> None:
    with ToolkitRun(tmp_path, "counts_to.py", "--interrupt", "0s+1h", "--max-wait", "6s") as job:
        assert job.end() == 143

    facts = job.report
    assert (facts["status"], facts["secondary_status"]) == ("Stopped", "MaxWaitTimeExceeded")
    assert 6 <= facts["training_seconds"] < 60
    assert facts["billable_seconds"] < facts["training_seconds"]


def test_a_job_whose_next_start_cannot_be_prepared_has_failed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text("sample")
    words = ("--interrupt", "0s+5s", "--channel", f"train={data}")
    with ToolkitRun(tmp_path, "counts_to.py", *words) as job:
        job.until("new ones come in 5 s")
        data.unlink()
        assert job.end() == 78

    facts = job.report
    assert (facts["status"], facts["exit_code"]) == ("Failed", 78)
    assert facts["failure_reason"].startswith("InternalServerError: the job could not be started again: ")
    assert str(data) in facts["failure_reason"]


def test_attach_shows_each_line_once_though_logs_move(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    (folder / "logs").mkdir(parents=True)
    log = folder / "logs/algo-1.log"
    log.write_text("one\n")
    lock = os.open(folder / ".toolkit-job", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    blocks: list[bytes] = []
    read = threading.Event()

    def put(block: bytes) -> None:
        blocks.append(block)
        read.set()

    follower = threading.Thread(target=follow.follow, args=(folder, put))
    follower.start()
    assert read.wait(60)
    with log.open("a") as file:
        (folder / "interrupted/1").mkdir(parents=True)
        (folder / "logs").rename(folder / "interrupted/1/logs")
        file.write("two\n")
    (folder / "logs").mkdir()
    log.write_text("three\n")
    os.close(lock)
    follower.join(60)

    assert b"".join(blocks).decode() == "one\ntwo\nthree\n"


def spot_report(**more: Any) -> JobReport:
    interruption = Interruption(
        time="2026-11-18T11:06:50.000Z",
        end_time="2026-11-18T11:06:52.000Z",
        resumed_time="2026-11-18T11:07:02.000Z",
        training_seconds=12.0,
        checkpoint_time="2026-11-18T11:06:49.500Z",
        folder="interrupted/1",
    )
    return JobReport(
        name="digits",
        status="Completed",
        exit_code=0,
        hosts={"algo-1": HostReport(exit_code=0), "algo-2": HostReport(exit_code=0)},
        training_seconds=40.0,
        billable_seconds=60.0,
        waited_seconds=10.0,
        managed_spot=True,
        interruptions=(interruption,),
        **more,
    )


def test_the_summary_has_the_words_of_sagemakers_sdk() -> None:
    assert summary(spot_report(), Path("jobs/digits")).splitlines()[3:-1] == [
        "  interrupted after 12 s of training, its last checkpoint 2.5 s old; started again after 10.0 s",
        "  Training seconds: 80",
        "  Billable seconds: 60",
        "  Managed Spot Training savings: 25.0%",
    ]


def test_a_job_that_ended_at_once_has_no_savings() -> None:
    assert spot_words(0.0, 0.0) == ("Training seconds: 0", "Billable seconds: 0")
