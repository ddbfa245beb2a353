"""`toolkit run` with a channel in storage."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.servers import S3

pytestmark = pytest.mark.storage
LISTS = """
import os, pathlib
folder = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
print(sorted((p.relative_to(folder).as_posix(), p.read_text()) for p in folder.rglob("*") if p.is_file()))
"""


def run(tmp_path: Path, s3: S3, *options: str) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code/train.py").write_text(LISTS)
    argv = (sys.executable, "-m", "toolkit", "run", "code/train.py", "--job-dir", "job", "--plain", *options)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **s3.environ}
    return subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)


def test_a_channel_in_s3_is_fetched_once_for_all_hosts(tmp_path: Path, s3: S3, bucket: str) -> None:
    store = s3.store(bucket)
    store.write("data/ü/a b.txt", b"first")
    store.write("data/empty", b"")

    done = run(tmp_path, s3, "--channel", f"train={bucket}/data", "--hosts", "2")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[('empty', ''), ('ü/a b.txt', 'first')]") == 2
    assert done.stderr.count(f"fetching {bucket}/data") == 1


def test_one_object_is_a_channel_of_one_file(tmp_path: Path, s3: S3, bucket: str) -> None:
    s3.store(bucket).write("data/a.txt", b"first")

    done = run(tmp_path, s3, "--channel", f"train={bucket}/data/a.txt:FastFile")

    assert "[('a.txt', 'first')]" in done.stdout, done.stderr


def test_a_dry_run_looks_for_the_objects_and_fetches_none(tmp_path: Path, s3: S3, bucket: str) -> None:
    s3.store(bucket).write("data/a.txt", b"first")

    completed = run(tmp_path, s3, "--channel", f"train={bucket}/data", "--dry-run")
    missing = run(tmp_path, s3, "--channel", f"train={bucket}/none", "--dry-run")

    assert completed.returncode == 0, completed.stderr
    assert missing.returncode == 78
    assert f"{bucket}/none: expected objects, found none. Correct the URI." in missing.stderr
    assert not (tmp_path / "job").exists()
