"""The folder for temporary files, in a /tmp that others share."""

import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.train.base import TRAIN, Base
from toolkit.train.platforms.sagemaker.read_job import folders


@pytest.fixture
def shared(base: Base) -> Path:
    """Return a folder that every user may write to."""
    folder = base.folder / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def scratch(base: Base, shared: Path) -> Path:
    return folders(base.environ(TMPDIR=str(shared))).scratch


def test_a_link_where_the_folder_should_be_is_not_followed(base: Base, shared: Path) -> None:
    (base.folder / "theirs").mkdir()
    scratch(base, shared).symlink_to(base.folder / "theirs")
    (shared / f"toolkit-{os.getuid()}-pip.lock").symlink_to(base.folder / "theirs/lock")
    base.program("print('ran')\n")
    (base.code / "requirements.txt").write_text("./empty\n")
    (base.code / "empty").mkdir()

    done = base.train(TMPDIR=str(shared), PIP_NO_INDEX="1")

    assert "expected a folder of this user alone, found a link to" in done.log
    assert f"pip.lock: expected a lock file of user {os.getuid()}, found something else" in done.log
    assert list((base.folder / "theirs").iterdir()) == []


def test_nothing_is_left_after_a_run_nor_after_the_next_one_of_a_run_that_was_killed(base: Base, shared: Path) -> None:
    base.program("import time; print('up', flush=True); time.sleep(600)\n")
    environ = base.environ(TMPDIR=str(shared))
    killed = subprocess.Popen(TRAIN, env=environ, cwd=base.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"up\n"
    (run,) = scratch(base, shared).iterdir()
    assert stat.S_IMODE(run.stat().st_mode) == stat.S_IMODE(run.parent.stat().st_mode) == 0o700
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.read()  # Until the guardian has ended the script, and with it gone itself.
    killed.stdout.close()
    base.program("")
    ends_s = time.monotonic() + 30

    while True:
        assert base.train(TMPDIR=str(shared)).status == 0
        if not run.exists() or time.monotonic() > ends_s:
            break

    assert list(shared.iterdir()) == []
