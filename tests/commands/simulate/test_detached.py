"""`toolkit run --detach`, and the commands that take the job's name afterwards, as a person uses them."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.simulate.toolkit_run import DEADLINE_S, ROOT

# Counts until its folder holds a file `end`, whose text is the exit code.
SCRIPT = """
import os, pathlib, sys, time
from toolkit import status

end = pathlib.Path({end!r})
for step in range(1, 100_000):
    print(f"step={{step}} loss={{1 / step:.4f}}", flush=True)
    if end.exists():
        sys.exit(int(end.read_text()))
    time.sleep(0.05)
"""
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n" + (
    "while True:\n    time.sleep(0.05)\n"
)


class Desk:
    """A person's folder with a script, and their commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
        (folder / "count.py").write_text(SCRIPT.format(end=str(folder / "end")))
        (folder / "deaf.py").write_text(DEAF)

    def toolkit(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.argv(*words),
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    def argv(self, *words: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "toolkit.cli.main", *words)

    def detach(self, script: str, *words: str) -> Path:
        """Start a detached job called "it"; return its folder."""
        done = self.toolkit("run", script, "--detach", "--name", "it", *words)
        assert (done.returncode, done.stdout.splitlines()) == (0, ["it", "jobs/it"]), done.stderr
        return self.folder / "jobs/it"

    def describe(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.toolkit("describe", "it", "--json").stdout)
        return facts

    def end(self, code: int) -> None:
        """Let the script end with *code*."""
        (self.folder / "part").write_text(str(code))
        (self.folder / "part").rename(self.folder / "end")


def until(holds: Callable[[], bool], name: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"waited {DEADLINE_S} s for {name}"
        time.sleep(0.05)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.end(0)  # What a failed test left running.


def test_a_detached_job_goes_on_without_its_terminal_and_can_be_attached_to(desk: Desk) -> None:
    main_end, theirs = pty.openpty()
    words = ("run", "count.py", "--detach", "--name", "it", "--metric", "loss=loss=([0-9.]+)")
    command = subprocess.Popen(
        desk.argv(*words), cwd=desk.folder, env=desk.environ, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    assert command.wait(DEADLINE_S) == 0
    os.close(main_end)  # Hangs up: SIGHUP to the session, and no more output to it.

    running = desk.describe()
    desk.end(3)
    attached = desk.toolkit("attach", "it")

    assert (running["TrainingJobStatus"], running["TrainingEndTime"]) == ("InProgress", "")
    assert attached.returncode == 3
    assert "step=1 loss=1.0000\n" in attached.stdout
    assert "it: Failed, exit code 3" in attached.stdout
    description = desk.describe()
    assert (description["TrainingJobStatus"], description["ExitCode"]) == ("Failed", 3)
    assert description["FailureReason"].startswith("AlgorithmError: ")
    assert [metric["MetricName"] for metric in description["FinalMetricDataList"]] == ["loss"]
    assert description["ModelArtifacts"]["S3ModelArtifacts"] == str(desk.folder / "jobs/it/model.tar.gz")
    assert 0 < description["BillableTimeInSeconds"] == description["TrainingTimeInSeconds"]


def test_stop_ends_the_job_as_the_platform_does_and_waits(desk: Desk) -> None:
    folder = desk.detach("count.py", "--hosts", "2")
    original = desk.toolkit("jobs", "--running")

    stopped = desk.toolkit("stop", str(folder))

    assert original.stdout.splitlines()[1].split()[:2] == ["it", "InProgress"]
    assert stopped.returncode == 0
    assert "it: Stopped, exit code 143" in stopped.stderr
    assert json.loads((folder / "job.json").read_text())["status"] == "Stopped"
    assert desk.toolkit("jobs", "--running").stdout == ""
    assert desk.toolkit("jobs").stdout.splitlines()[1].split()[-2:] == ["143", "jobs/it"]
    again = desk.toolkit("stop", "it")
    assert (again.returncode, "it does not run: Stopped" in again.stderr) == (0, True)


def test_a_script_that_ignores_sigterm_is_killed_at_once_by_stop_now(desk: Desk) -> None:
    folder = desk.detach("deaf.py")
    until(lambda: "deaf" in (folder / "console.log").read_text(), "the script")

    stopped = desk.toolkit("stop", "it", "--now")

    assert "SIGKILL to all hosts" in stopped.stderr
    assert desk.describe()["TrainingJobStatus"] == "Stopped"


def test_ctrl_c_ends_attach_alone(desk: Desk) -> None:
    desk.detach("count.py")
    words = desk.argv("attach", "it", "--tail", "0")
    with subprocess.Popen(words, cwd=desk.folder, env=desk.environ, stdout=subprocess.PIPE, text=True) as attached:
        assert attached.stdout is not None
        assert any(line.startswith("step=") for line in attached.stdout)  # Until the first one.
        attached.send_signal(signal.SIGINT)
        attached.communicate(timeout=DEADLINE_S)

    assert attached.returncode == 130
    assert desk.describe()["TrainingJobStatus"] == "InProgress"
    desk.end(0)
    assert desk.toolkit("attach", "it", "--tail", "1").returncode == 0


def test_of_a_job_whose_runner_was_killed_every_command_says_so(desk: Desk) -> None:
    folder = desk.detach("count.py")
    os.kill(json.loads((folder / ".toolkit-job").read_text())["pid"], signal.SIGKILL)

    attached = desk.toolkit("attach", "it")

    assert attached.returncode == 75
    assert "it: InternalServerError: `toolkit run` (pid " in attached.stderr
    assert desk.toolkit("jobs").stdout.splitlines()[1].startswith("it    Failed (runner died)")
    description = desk.describe()
    assert (description["TrainingJobStatus"], description["SecondaryStatus"], description["ExitCode"]) == (
        "Failed",
        "Interrupted",
        None,
    )
    assert description["TrainingEndTime"] >= description["TrainingStartTime"]
    assert "it does not run: Failed" in desk.toolkit("stop", "it").stderr


def test_jobs_are_known_by_name_to_every_command(desk: Desk) -> None:
    desk.end(0)
    for name in ("one", "two", "three"):
        desk.toolkit("run", "count.py", "--name", name, "--quiet")

    newest = desk.toolkit("jobs", "--limit", "2").stdout.splitlines()[1:]
    report = desk.toolkit("report", "one", "-o", "-")
    diagnosed = desk.toolkit("rules", "diagnose", "two")
    compared = desk.toolkit("compare", "one", "two")
    refused = desk.toolkit("jobs", "--limit", "0")

    assert [line.split()[0] for line in newest] == ["three", "two"]
    assert (report.returncode, report.stdout.startswith("one")) == (0, True), report.stderr
    assert (diagnosed.returncode, diagnosed.stdout.startswith("two: ")) == (0, True), diagnosed.stderr
    assert (compared.returncode, compared.stdout.splitlines()[-1]) == (0, "jobs/compare.html"), compared.stderr
    assert (desk.folder / "jobs/compare.html").exists()
    assert (refused.returncode, "--limit: expected a number of jobs of at least 1" in refused.stderr) == (78, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metric", "loss=("), "metric 'loss': expected a regular expression"),
        (("--env", "TOOLKIT_GRACE_S=soon"), "TOOLKIT_GRACE_S: expected seconds"),
    ],
)
def test_what_ends_with_78_does_so_before_a_detached_job_starts(
    desk: Desk, words: tuple[str, ...], message: str
) -> None:
    done = desk.toolkit("run", "count.py", "--detach", "--name", "it", *words)

    assert (done.returncode, done.stdout) == (78, "")
    assert message in done.stderr
    assert not (desk.folder / "jobs/it/job.json").exists()


def test_what_keeps_a_job_from_starting_is_the_commands_own_error(desk: Desk) -> None:
    (desk.folder / "jobs/it").mkdir(parents=True)
    (desk.folder / "jobs/it/notes.txt").write_text("mine")

    done = desk.toolkit("run", "count.py", "--detach", "--name", "it")

    assert done.returncode == 78
    assert "expected the folder of an earlier job, found other files" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("counts", "expected the name of a job or its folder, found 'counts'. Did you mean count?"),
        (".", "expected a job folder of `toolkit run`, found another folder"),
    ],
)
def test_a_job_that_is_not_there_is_said_with_the_nearest_name(desk: Desk, word: str, message: str) -> None:
    desk.end(0)
    desk.toolkit("run", "count.py", "--name", "count", "--job-dir", "elsewhere/1")

    for command in ("attach", "stop", "describe"):
        done = desk.toolkit(command, word)
        assert (done.returncode, message in done.stderr) == (78, True), done.stderr
    assert "\nstep=1 " in desk.toolkit("attach", "count").stdout
