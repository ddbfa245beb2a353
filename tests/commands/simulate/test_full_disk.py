"""A full disk below a job's folder: the cause stands in the summary, the exit code is 75, nothing is half-written."""

import ctypes
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root, to mount a small disk")]
LIBC = ctypes.CDLL(None, use_errno=True)
DETACHED = 2
SCRIPT = """
import os
with open(os.environ["SM_MODEL_DIR"] + "/m", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1 << 20))
    except OSError:
        if {fails}:
            raise
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 30 MB that holds the job's folder."""
    place = tmp_path / "disk"
    place.mkdir()
    if LIBC.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=30m"):
        pytest.skip(f"no disk can be mounted here: {os.strerror(ctypes.get_errno())}")
    yield place
    LIBC.umount2(os.fsencode(place), DETACHED)


@pytest.mark.parametrize("fails", [True, False])
def test_a_job_that_fills_its_disk_ends_with_75_and_says_why(tmp_path: Path, disk: Path, fails: bool) -> None:
    (tmp_path / "fills.py").write_text(SCRIPT.format(fails=fails))

    with ToolkitRun(disk, str(tmp_path / "fills.py")) as job:
        assert job.end() == 75, job.console

    reason = job.report["failure_reason"]
    assert job.report["status"] == "Failed"
    assert reason.startswith(f"InternalServerError: no space left on the disk of {disk / 'job'}: ")
    assert ("OSError: [Errno 28] No space left on device" in reason) is fails
    assert reason.partition("\n")[0] in job.console
    left = {path.name for path in (disk / "job").iterdir()}
    assert left == {".toolkit-job", "hosts", "job.json", "logs", "request.json", "source"}


def test_a_job_that_cannot_be_prepared_for_want_of_space_leaves_an_earlier_one_whole(
    tmp_path: Path, disk: Path
) -> None:
    (tmp_path / "ends.py").write_text("print('ends')\n")
    with ToolkitRun(disk, str(tmp_path / "ends.py")) as job:
        assert job.end() == 0, job.console
    facts = json.loads((disk / "job/job.json").read_bytes())
    with (disk / "large").open("wb", buffering=0) as large, pytest.raises(OSError, match="No space left"):
        while True:
            large.write(bytes(4096))

    for folder, words in ((disk, ("--replace",)), (disk / "other", ())):
        folder.mkdir(exist_ok=True)
        with ToolkitRun(folder, str(tmp_path / "ends.py"), *words) as refused:
            assert refused.end() == 75
        assert "Traceback" not in refused.console
        assert "No space left on device" in refused.console

    assert json.loads((disk / "job/job.json").read_bytes()) == facts
    assert (disk / "job/model.tar.gz").exists()
    assert {path.name for path in (disk / "other/job").iterdir()} <= {".toolkit-job"}
