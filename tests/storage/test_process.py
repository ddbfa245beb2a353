"""The process that uploads beside the script."""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from toolkit.storage.config import Transfer

WITHIN_S = 120.0


def test_what_runs_beside_the_script_writes_nothing_to_the_console(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    saved, stored = tmp_path / "checkpoints", tmp_path / "stored"
    saved.mkdir()
    (saved / "weights").write_bytes(bytes(1000))
    os.utime(saved / "weights")
    transfer = Transfer(
        task="watch",
        answer=tmp_path / "answer.json",
        state=tmp_path,
        timeout_s=10.0,
        checkpoint_uri=stored.as_uri(),
        checkpoints=saved,
        rank=0,
        host="a",
    )
    config = tmp_path / "watch.json"
    config.write_bytes(msgspec.json.encode(transfer, enc_hook=os.fspath))
    process = subprocess.Popen(
        (sys.executable, "-m", "toolkit.storage", str(config)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )

    ends_s = time.monotonic() + WITHIN_S
    while not (stored / "hosts/0/manifest.json").exists() and time.monotonic() < ends_s:
        time.sleep(0.1)
    process.terminate()

    assert process.communicate(timeout=WITHIN_S) == (b"", b"")
    assert (stored / "hosts/0/manifest.json").exists()
