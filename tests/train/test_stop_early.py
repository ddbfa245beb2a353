"""A stop while the job is being prepared, whatever that waits for, and reports that must not wait for anybody."""

import gzip
import os
import signal
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.train.base import Base, Done
from tests.train.live import Live, live
from toolkit.train.source import tree_digest

# What is allowed is 1 s; each of these once took half a minute or never ended.
PROMPT_S = 10.0
HUGE_BYTES = 1 << 36
ARCHIVED_BYTES = 1 << 33  # It takes seconds to unpack, and fits the disk: a larger member is refused.


def stopped(running: Live) -> Done:
    """Stop `train` and return how it ended, which comes at once and with a report."""
    running.signal(signal.SIGTERM)
    done = running.end(deadline_s=PROMPT_S)
    assert done.status == 143, done
    assert done.failure is not None
    assert "stopped by SIGTERM before the script began" in done.failure
    assert done.outcome["status"] == "stopped"
    return done


def until(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.005)


@pytest.mark.parametrize("name", ["nvidia-smi", "neuron-ls"])
def test_a_program_that_is_asked_about_devices_is_not_waited_for(base: Base, name: str) -> None:
    request_file = base.folder / "asked"
    base.executable(
        name, f"#!/bin/sh\necho $$ > {request_file}.new\nmv {request_file}.new {request_file}\nexec sleep 600\n"
    )

    with live(base) as running:
        until(request_file.exists)
        stopped(running)

    program = Path(f"/proc/{request_file.read_text().strip()}")
    until(lambda: not program.exists())  # Killed, not waited for: the kernel may need a moment to end it.


@pytest.mark.parametrize("variable", ["", "TOOLKIT_METRICS", "TOOLKIT_RULES"], ids=lambda name: name or "document")
def test_a_fifo_that_nobody_writes_is_not_waited_for(base: Base, variable: str) -> None:
    """A document is a regular file (toolkit/files.py): there is nothing to stop, the job ends by itself."""
    base.program("print('began')\n")
    file = base.folder / "fifo" if variable else base.config / "hyperparameters.json"
    file.unlink(missing_ok=True)
    os.mkfifo(file)

    done = base.train({variable: str(file)} if variable else None)

    assert done.status == 78, done
    assert done.failure is not None
    assert f"{file}: expected" in done.failure
    assert "a FIFO, no regular file" in done.failure
    assert done.stdout == b""


def open_files(pid: int) -> set[Path]:
    try:
        return {path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir()}
    except FileNotFoundError:  # One was closed meanwhile.
        return set()


def huge_file(folder: Path) -> Path:
    folder.mkdir()
    with (folder / "huge").open("wb") as file:
        file.truncate(HUGE_BYTES)
    return folder


def huge_archive(folder: Path) -> Path:
    """Write an archive of a file of zeros, in pieces that are compressed once."""
    header = tarfile.TarInfo("huge")
    header.size = ARCHIVED_BYTES
    zeros = gzip.compress(bytes(1 << 26))
    folder.mkdir()
    with (folder / "sourcedir.tar.gz").open("wb") as file:
        file.write(gzip.compress(header.tobuf(tarfile.GNU_FORMAT)))
        for _ in range(ARCHIVED_BYTES >> 26):
            file.write(zeros)
    return folder / "sourcedir.tar.gz"


@pytest.mark.parametrize("submitted", [huge_file, huge_archive])
def test_a_source_that_is_being_put_in_place_is_not_waited_for_and_leaves_nothing(
    base: Base, submitted: Callable[[Path], Path]
) -> None:
    source = submitted(base.folder / "source")
    base.hyperparameters({"sagemaker_submit_directory": f'"{source}"'})
    script = base.program("print('mine')\n", "mine.py")
    growing = base.code / ".toolkit-staging/huge"

    with live(base) as running:
        until(lambda: growing.exists() and growing.stat().st_size > 0)
        stopped(running)

    assert [path.name for path in base.code.iterdir()] == [script.name]


def test_a_package_whose_content_is_being_read_is_not_waited_for(base: Base) -> None:
    base.program("print('began')\n")
    base.program("from setuptools import setup\nsetup()\n", "setup.py")
    weights = huge_file(base.code / "weights") / "huge"
    os.truncate(weights, tree_digest.MOST_BYTES - (1 << 20))  # Of more no stamp is made.

    with live(base) as running:
        until(lambda: weights in open_files(running.pid))
        stopped(running)


def test_a_pip_that_hangs_is_not_waited_for(base: Base) -> None:
    base.program("print('began')\n")
    base.program(f"open({str(base.folder / 'asked')!r}, 'w')\nimport time\ntime.sleep(600)\n", "setup.py")

    with live(base, PIP_NO_BUILD_ISOLATION="0", PIP_NO_INDEX="1") as running:
        until((base.folder / "asked").exists)
        running.signal(signal.SIGTERM)
        done = running.end(deadline_s=PROMPT_S)

    assert done.status == 143
    assert b"began" not in done.stdout


@contextmanager
def made_fifos(base: Base, *names: str) -> Iterator[None]:
    """Make the script end after it has made FIFOs of *names* in the output folder."""
    mkfifos = "".join(f"os.path.exists({name!r}) and os.unlink({name!r}); os.mkfifo({name!r})\n" for name in names)
    base.program(
        f"import os, sys\nos.chdir(os.environ['SM_OUTPUT_DIR'])\n{mkfifos}print('loss=0.5')\nsys.exit(len({names}))\n"
    )
    yield


def test_reports_do_not_wait_for_a_reader_of_fifos_that_the_script_made(base: Base) -> None:
    with made_fifos(base, "outcome.json", "failure", "metrics.jsonl"):
        base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])

        done = base.train(deadline_s=30)

    assert done.status == 3
    assert done.outcome["exit_code"] == 3
    assert done.failure is not None
    assert "code 3" in done.failure


def test_a_log_file_that_is_a_fifo_is_not_waited_for(base: Base) -> None:
    logs = base.output / "data/logs"
    logs.mkdir(parents=True)
    for name in ("rank-0.log", "script.log", "algo-1.log"):
        os.mkfifo(logs / name)
    base.program("print('ran')\n")

    done = base.train(TOOLKIT_LOG_FILES="on", deadline_s=30)

    assert done.stdout == b"ran\n"
    assert done.status == 0
