"""`toolkit run` with unusual consoles and paths: the job and its exit code stay the same."""

import fcntl
import json
import os
import subprocess
import termios
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import COMMAND, ROOT


def run_shown(folder: Path, *words: str, redirect: str = "") -> "subprocess.CompletedProcess[str]":
    """Run `toolkit run` on *words* in *folder*, through a shell that redirects its streams."""
    return subprocess.run(
        ("bash", "-c", f'set -o pipefail; "$@" {redirect}', "bash", *COMMAND, *words),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/train.py").write_text("for n in range(12): print(n, flush=True)\nraise SystemExit(7)\n")
    return tmp_path


@pytest.mark.parametrize("redirect", [">/dev/full", "2>/dev/full", ">/dev/full 2>&1", ">&-", "2>&-", "| true"])
def test_a_console_that_takes_nothing_changes_neither_the_job_nor_its_exit_code(folder: Path, redirect: str) -> None:
    done = run_shown(folder, "source/train.py", "--job-dir", "job", redirect=redirect)

    assert done.returncode == 7, done.stderr
    assert json.loads((folder / "job/job.json").read_bytes())["exit_code"] == 7
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("source/train.py", "--job-dir", "source/train.py"),
        ("source/train.py", "--checkpoints", "source/train.py"),
        ("source/train.py", "--job-dir", "source/train.py/below"),
        ("source/train.py", "--job-dir", "x" * 300),
    ],
)
def test_a_path_that_cannot_be_used_is_named_and_ends_with_78(folder: Path, words: tuple[str, ...]) -> None:
    done = run_shown(folder, *words)

    assert done.returncode == 78, done.stderr
    assert "Traceback" not in done.stderr
    assert f"{folder}/" in done.stderr


def test_jobs_that_begin_within_a_second_have_folders_of_their_own(folder: Path) -> None:
    for _ in range(2):
        run_shown(folder, "source/train.py", "--quiet")

    assert len(list((folder / "jobs").iterdir())) == 2


SAVES = """
import os, signal, sys, time
def save(*_):
    open(os.environ["SM_MODEL_DIR"] + "/saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
while True:
    print("step", flush=True)
    time.sleep(0.05)
"""


@pytest.mark.parametrize("look", ["--hosts=1", "--hosts=2", "--plain"])
def test_a_terminal_that_goes_away_stops_the_job_as_sighup_does(folder: Path, look: str) -> None:
    pytest.importorskip("rich")
    (folder / "source/train.py").write_text(SAVES)
    terminal, its_end = os.openpty()
    process = subprocess.Popen(
        (*COMMAND, "source/train.py", "--job-dir", "job", look),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "NO_COLOR": ""},
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(its_end)
    output = b""
    while output.count(b"step") < 20:
        output += os.read(terminal, 65536)

    os.close(terminal)
    status = process.wait(60)

    facts = json.loads((folder / "job/job.json").read_bytes())
    assert (status, facts["status"]) == (143, "Stopped")
    assert len(list((folder / "job/hosts").glob("*/opt/ml/model/saved"))) == len(facts["hosts"])
