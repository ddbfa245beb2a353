"""The process that uploads beside the script."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.storage.servers import Fault, Faulty
from toolkit.records import encode
from toolkit.storage.config import TransferTask

WITHIN_S = 120.0


def watch(tmp_path: Path, saved: Path, stored: Path) -> Path:
    """Return the configuration of a process that uploads *saved* to *stored*."""
    transfer = TransferTask(
        task="watch",
        answer=tmp_path / "answer.json",
        state=tmp_path,
        timeout_s=10.0,
        checkpoint_uri=f"file://{stored}",
        checkpoints=saved,
        rank=0,
        host="a",
    )
    config = tmp_path / "watch.json"
    config.write_bytes(encode(transfer))
    return config


def test_what_runs_beside_the_script_writes_nothing_to_the_console(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    saved, stored = tmp_path / "checkpoints", tmp_path / "stored"
    saved.mkdir()
    (saved / "weights").write_bytes(bytes(1000))
    os.utime(saved / "weights")
    config = watch(tmp_path, saved, stored)
    process = subprocess.Popen(
        (sys.executable, "-m", "toolkit.storage", str(config)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )

    ends_s = time.monotonic() + WITHIN_S
    while not (stored / "hosts/0/manifest.json").exists() and time.monotonic() < ends_s:
        time.sleep(0.1)
    process.terminate()

    assert process.communicate(timeout=WITHIN_S) == (b"", b"")
    assert (stored / "hosts/0/manifest.json").exists()


def test_what_cannot_be_read_has_one_line_and_another_when_it_can(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, to run as one who may not read everything")
    saved, stored = tmp_path / "checkpoints", tmp_path / "stored"
    manifest = stored / "hosts/0/manifest.json"
    for name in ("a", "b"):
        (saved / name).mkdir(parents=True)
        (saved / name / "weights").write_bytes(b"weights")
    (saved / "a").chmod(0)
    command = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", sys.executable, "-m", "toolkit.storage")
    process = subprocess.Popen((*command, str(watch(tmp_path, saved, stored))), stderr=subprocess.PIPE)
    assert process.stderr is not None

    first = process.stderr.readline().decode()
    (saved / "a").chmod(0o700)
    second = process.stderr.readline().decode()
    ends_s = time.monotonic() + WITHIN_S
    while not (manifest.exists() and b"a/weights" in manifest.read_bytes()) and time.monotonic() < ends_s:
        time.sleep(0.1)
    process.terminate()

    assert process.communicate(timeout=WITHIN_S)[1] == b""
    assert first == (
        f"storage: file://{stored}: a cannot be read ({saved}/a: Permission denied); storage keeps what it has of it;"
        " tried again every 2 s\n"
    )
    assert second == f"storage: file://{stored}: everything can be read again\n"
    assert b"a/weights" in manifest.read_bytes()
    assert b"b/weights" in manifest.read_bytes()


def test_a_slow_upload_does_not_delay_the_next_look(faulty: Faulty, bucket: str, tmp_path: Path) -> None:
    """A look pauses by what it took of a core; by the time that it took, this one would pause for 75 s."""
    folder = tmp_path / "intermediate"
    folder.mkdir()
    (folder / "first").write_bytes(b"first")
    uploaded = threading.Event()

    def slow(method: str, path: str) -> Fault:
        if method == "PUT" and path.endswith("/first"):
            (folder / "second").write_bytes(b"second")
            uploaded.wait(1.5)
        elif method == "PUT" and path.endswith("/second"):
            uploaded.set()
        return ""

    faulty.fault = slow
    transfer = TransferTask(
        task="watch",
        answer=tmp_path / "answer.json",
        state=tmp_path,
        timeout_s=10.0,
        intermediate_uri=f"{bucket}/out",
        intermediate=folder,
        rank=0,
        host="a",
    )
    (tmp_path / "watch.json").write_bytes(encode(transfer))
    process = subprocess.Popen((sys.executable, "-m", "toolkit.storage", str(tmp_path / "watch.json")))

    is_uploaded = uploaded.wait(WITHIN_S / 2)
    process.terminate()

    assert process.wait(timeout=WITHIN_S) == 0
    assert is_uploaded
