"""A checkpoint counts as whole, on disk and in storage, if all its files are there."""

import time
from pathlib import Path

import pytest

from tests.soak import checkpoints, stored
from tests.soak.checkpoints import SUMS
from tests.storage.servers import S3
from toolkit.storage.checkpoints import Checkpoints
from toolkit.storage.uri import parse


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(checkpoints, "SIZES", {"a.bin": 1000, "b.bin": 3000})
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    checkpoints.write(folder / "step-0")
    return folder


def test_a_checkpoint_is_whole_with_its_sums_alone(folder: Path) -> None:
    checkpoints.write(folder / "step-1")
    (folder / "step-1" / SUMS).unlink()

    assert checkpoints.whole_on_disk(folder) == {0}


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_checkpoint_that_does_not_fit_its_sums_is_an_error(folder: Path, damage: str) -> None:
    if damage == "changed":
        (folder / "step-0/a.bin").write_bytes(b"x")
    else:
        (folder / "step-0/a.bin").unlink()

    with pytest.raises(ValueError, match="SUMS names"):
        checkpoints.whole_on_disk(folder)


def test_the_writer_keeps_three_and_a_half_written_one_is_removed_in_its_turn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    writer = checkpoints.Writer(folder)
    (folder / "step-0" / SUMS).unlink()

    for _ in range(4):
        writer.write_if_due()

    assert {path.name for path in folder.iterdir()} == {"step-2", "step-3", "step-4"}


@pytest.mark.storage
def test_a_part_that_is_missing_or_damaged_in_storage_is_found(
    s3: S3, bucket: str, folder: Path, tmp_path: Path
) -> None:
    store, root, place = s3.store(bucket), parse(f"{bucket}/run"), f"{bucket[5:]}/run/hosts/0"
    state_before = stored.read_whole(s3, place)
    uploads = Checkpoints(store, root, folder, rank=0, host="a", open_file=tmp_path / "open", note=lambda size: None)
    uploads.finish(clean=True, ended_s=time.time())
    after = stored.read_whole(s3, place)
    part = next(key for key in s3.keys(bucket) if "/parts/" in key)

    store.write(part, b"x")
    damaged = stored.read_whole(s3, place)
    store.delete([part])
    missing = stored.read_whole(s3, place)

    assert (state_before, after) == ((set(), ""), ({0}, ""))
    assert "a part that is damaged" in damaged[1]
    assert "a part that is missing" in missing[1]
