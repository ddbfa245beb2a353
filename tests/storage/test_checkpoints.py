"""A checkpoint folder and its storage: what is uploaded, and what is restored."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from tests.storage.servers import S3, Faulty
from toolkit.errors import ContractError, PlatformError
from toolkit.storage import checkpoints
from toolkit.storage.checkpoints import Checkpoints
from toolkit.storage.restore import restore
from toolkit.storage.scan import STAGING
from toolkit.storage.store import PIECE_BYTES
from toolkit.storage.uri import parse

pytestmark = pytest.mark.storage
LATER_S = checkpoints.SETTLE_S + 1.0


def uploader(s3: S3, root: str, folder: Path, rank: int = 0, *, timeout_s: float = 10.0) -> Checkpoints:
    return Checkpoints(
        s3.store(root, timeout_s=timeout_s),
        parse(root),
        folder,
        rank=rank,
        host=f"algo-{rank + 1}",
        open_file=folder.parent / f"open-{rank}.json",
        note=lambda size: None,
    )


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def restored(s3: S3, root: str, folder: Path, rank: int = 0) -> dict[str, bytes]:
    restore(s3.store(root), parse(root), rank, folder, lambda size: None)
    return contents(folder)


def test_a_folder_comes_back_as_it_was(s3: S3, bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    files = {
        "step-10/model.pt": os.urandom(2 * PIECE_BYTES + 17),
        "step-10/empty": b"",
        "step-10/deep/er/ünïcode and space": b"x",
        "latest.txt": b"step-10",
    }
    for name, content in files.items():
        write(folder, name, content)
    (folder / "latest").symlink_to("step-10")
    (folder / "latest.txt").chmod(0o600)
    root = f"{bucket}/jobs/with space"

    assert uploader(s3, root, folder).upload_settled(time.time() + LATER_S)

    again = tmp_path / "again"
    assert restored(s3, root, again) == contents(folder)
    assert (again / "latest").readlink() == Path("step-10")
    assert (again / "latest.txt").stat().st_mode & 0o777 == 0o600
    assert (again / "step-10/model.pt").stat().st_mtime_ns == (folder / "step-10/model.pt").stat().st_mtime_ns
    assert not (again / STAGING).exists()


def test_what_has_not_changed_is_not_sent_again(faulty: Faulty, bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    write(folder, "a", b"first")
    uploader(faulty, bucket, folder).upload_settled(time.time() + LATER_S)
    again = uploader(faulty, bucket, folder)
    faulty.seen.clear()

    assert not again.upload_settled(time.time() + LATER_S)
    write(folder, "b", b"first")
    assert again.upload_settled(time.time() + LATER_S)

    assert faulty.count("PUT", "/parts/") == 0  # The same content.
    assert faulty.count("PUT", "/manifest.json") == 1


def test_an_entry_that_is_being_written_keeps_its_last_version(s3: S3, bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    write(folder, "model.pt", b"whole")
    sync = uploader(s3, bucket, folder)
    sync.upload_settled(time.time() + LATER_S)

    with (folder / "model.pt").open("wb") as file:
        file.write(b"half of the new")
        file.flush()
        write(folder, "other/x", b"done")
        now_s = time.time() + LATER_S
        assert not sync.upload_settled(now_s)
        assert sync.upload_settled(now_s + checkpoints.PATIENCE_S + 1)
        halfway = restored(s3, bucket, tmp_path / "halfway")
        file.write(b" version")
    assert sync.upload_settled(time.time() + LATER_S)

    assert halfway == {"model.pt": b"whole", "other/x": b"done"}
    assert restored(s3, bucket, tmp_path / "end")["model.pt"] == b"half of the new version"


def test_a_file_that_changed_a_moment_ago_waits(s3: S3, bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    write(folder, "model.pt", b"1")
    sync = uploader(s3, bucket, folder)

    assert not sync.upload_settled(time.time())
    assert sync.upload_settled(time.time() + LATER_S)


def test_a_file_that_changes_while_it_is_uploaded_keeps_its_last_version(
    faulty: Faulty, bucket: str, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    write(folder, "model/weights", b"whole")
    sync = uploader(faulty, bucket, folder)
    sync.upload_settled(time.time() + LATER_S)
    write(folder, "model/weights", b"second version")

    def change(method: str, path: str) -> str:
        if method == "PUT" and "/parts/" in path:
            write(folder, "model/weights", b"third")
        return ""

    faulty.fault = change  # type: ignore[assignment]
    assert not sync.upload_settled(time.time() + LATER_S)
    faulty.fault = lambda method, path: ""

    assert restored(faulty, bucket, tmp_path / "then") == {"model/weights": b"whole"}
    assert sync.upload_settled(time.time() + LATER_S)
    assert restored(faulty, bucket, tmp_path / "end") == {"model/weights": b"third"}


@pytest.mark.parametrize("part", ["/parts/", "/manifest.json"])
def test_an_upload_that_breaks_off_leaves_the_last_version_whole(
    faulty: Faulty, bucket: str, tmp_path: Path, part: str
) -> None:
    folder = tmp_path / "checkpoints"
    write(folder, "model", os.urandom(PIECE_BYTES + 1))
    uploader(faulty, bucket, folder).upload_settled(time.time() + LATER_S)
    original = contents(folder)
    write(folder, "model", os.urandom(3 * PIECE_BYTES))
    sync = uploader(faulty, bucket, folder, timeout_s=1.0)
    puts = iter(range(100))
    first = 2 if part == "/parts/" else 0
    faulty.fault = lambda method, path: "500" if method == "PUT" and part in path and next(puts) >= first else ""

    with pytest.raises(PlatformError):
        sync.upload_settled(time.time() + LATER_S)

    faulty.fault = lambda method, path: ""
    assert restored(faulty, bucket, tmp_path / "then") == original
    faulty.seen.clear()
    assert uploader(faulty, bucket, folder).upload_settled(time.time() + LATER_S)
    assert faulty.count("PUT", "/parts/") < 3  # The parts that had arrived are not sent again.
    assert restored(faulty, bucket, tmp_path / "end") == contents(folder)


def test_after_a_crash_what_was_being_written_keeps_its_last_version(s3: S3, bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    write(folder, "old", b"whole")
    uploader(s3, bucket, folder).upload_settled(time.time() + LATER_S)
    write(folder, "old", b"hal")
    write(folder, "new/weights", b"hal")
    sync = uploader(s3, bucket, folder)

    sync.finish(clean=False, ended_s=time.time())

    assert set(sync.left_out()) == {"old", "new"}
    assert restored(s3, bucket, tmp_path / "then") == {"old": b"whole"}
    assert uploader(s3, bucket, folder).finish(clean=True, ended_s=time.time())
    assert restored(s3, bucket, tmp_path / "end") == {"old": b"hal", "new/weights": b"hal"}


def test_files_that_are_removed_leave_storage_and_take_their_parts_along(s3: S3, bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    sync = uploader(s3, bucket, folder)
    for step in range(4):
        write(folder, f"step-{step}", os.urandom(100))
        if step:
            (folder / f"step-{step - 1}").unlink()
        assert sync.upload_settled(time.time() + LATER_S)

    assert list(restored(s3, bucket, tmp_path / "then")) == ["step-3"]
    assert len(s3.keys(bucket)) <= 3  # The manifest, and the parts of two versions.


def test_every_host_gets_the_files_of_all_and_uploads_its_own(s3: S3, bucket: str, tmp_path: Path) -> None:
    first, second = tmp_path / "1/checkpoints", tmp_path / "2/checkpoints"
    write(first, "model", b"of rank 0")
    write(first, "state", b"of host 0")
    write(second, "state", b"of host 1")
    for rank, folder in enumerate((first, second)):
        uploader(s3, bucket, folder, rank).upload_settled(time.time() + LATER_S)

    again = [tmp_path / f"again-{rank}/checkpoints" for rank in range(3)]
    got = [restored(s3, bucket, folder, rank) for rank, folder in enumerate(again)]

    assert got[0] == got[2] == {"model": b"of rank 0", "state": b"of host 0"}
    assert got[1] == {"model": b"of rank 0", "state": b"of host 1"}
    assert not uploader(s3, bucket, again[1], 1).upload_settled(time.time() + LATER_S)
    write(again[1], "model", b"changed by host 1")
    assert uploader(s3, bucket, again[1], 1).upload_settled(time.time() + LATER_S)
    assert restored(s3, bucket, tmp_path / "end", 1)["model"] == b"changed by host 1"


def test_a_restore_that_breaks_off_leaves_nothing_half_and_goes_on_later(
    faulty: Faulty, bucket: str, tmp_path: Path
) -> None:
    folder, again = tmp_path / "checkpoints", tmp_path / "again"
    write(folder, "model", os.urandom(6 * PIECE_BYTES))
    write(folder, "a-small-one", b"x")
    uploader(faulty, bucket, folder).upload_settled(time.time() + LATER_S)
    gets = iter(range(100))
    faulty.fault = lambda method, path: "500" if method == "GET" and "/parts/" in path and next(gets) >= 4 else ""

    with pytest.raises(PlatformError):
        restore(faulty.store(bucket, timeout_s=1.0), parse(bucket), 0, again, lambda size: None)

    assert [path.name for path in again.iterdir()] == [STAGING]
    faulty.fault = lambda method, path: ""
    faulty.seen.clear()
    assert restored(faulty, bucket, again) == contents(folder)
    assert faulty.count("GET", "/parts/") < 6


def test_a_damaged_part_is_never_restored(s3: S3, bucket: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoints", "model", b"weights").parent
    uploader(s3, bucket, folder).upload_settled(time.time() + LATER_S)
    part = next(key for key in s3.keys(bucket) if "/parts/" in key)
    s3.store(bucket).write(part, b"weightz")

    with pytest.raises(PlatformError, match="the part is damaged"):
        restored(s3, bucket, tmp_path / "again")

    assert contents(tmp_path / "again").keys() <= {path for path in contents(tmp_path / "again") if STAGING in path}


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "a/../../b"])
def test_a_manifest_that_leads_outside_is_refused(s3: S3, bucket: str, tmp_path: Path, name: str) -> None:
    document = {"version": 1, "host": "algo-1", "written_s": 0, "files": {name: {"parts": []}}}
    s3.store(bucket).write("hosts/0/manifest.json", msgspec.json.encode(document))

    with pytest.raises(ContractError, match="paths within a folder"):
        restored(s3, bucket, tmp_path / "again")


def test_a_newer_file_of_this_host_stays(s3: S3, bucket: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoints", "model", b"old").parent
    uploader(s3, bucket, folder).upload_settled(time.time() + LATER_S)
    write(folder, "model", b"newer")

    assert restored(s3, bucket, folder) == {"model": b"newer"}


def test_a_thousand_small_files_come_back(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    folder, root = tmp_path / "checkpoints", f"file://{tmp_path}/storage"
    for number in range(1_000):
        write(folder, f"shard-{number % 100}/{number}", b"%d" % number)
    store = S3("")

    assert uploader(store, root, folder).finish(clean=True, ended_s=time.time())

    assert restored(store, root, tmp_path / "again") == contents(folder)
