"""Checkpoints as ordinary objects: those that the layout "plain" writes, and those that somebody has copied there."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.memory import Memory
from toolkit.errors import ContractError, PlatformError
from toolkit.storage.checkpoints import Checkpoints
from toolkit.storage.config import CheckpointLayout
from toolkit.storage.restore import restore
from toolkit.storage.store import PIECE_BYTES, StorageClient, StoredObject
from toolkit.storage.uri import parse

ROOT = parse("s3://bucket/run")
PLACE = "run/hosts/0/files"


def uploader(store: Memory, folder: Path, rank: int = 0, layout: CheckpointLayout = "plain") -> Checkpoints:
    return Checkpoints(
        store,  # type: ignore[arg-type]
        ROOT,
        folder,
        rank=rank,
        host=f"algo-{rank}",
        open_file=folder.parent / "open.json",
        note=lambda size: None,
        layout=layout,
    )


def finish(store: Memory, folder: Path, rank: int = 0, layout: CheckpointLayout = "plain") -> bool:
    return uploader(store, folder, rank, layout).finish(clean=True, ended_s=time.time())


def restored(store: Memory, folder: Path, rank: int = 0) -> dict[str, bytes]:
    restore(store, ROOT, rank, folder, lambda size: None)  # type: ignore[arg-type]
    return content(folder)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def saved(folder: Path, step: int, size_bytes: int = 100, age_s: float = 0.0) -> None:
    """Write the checkpoint of *step*, so old."""
    for name in ("model", "optimizer"):
        path = folder / f"checkpoint-{step}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{name} {step} ".encode() * (size_bytes // 8))
        os.utime(path, (time.time() - age_s,) * 2)


def test_each_file_is_an_object_of_its_own_bytes_and_comes_back(tmp_path: Path) -> None:
    store, folder = Memory(), tmp_path / "saved"
    saved(folder, 5)
    (folder / "large").write_bytes(os.urandom(2 * PIECE_BYTES + 3))
    (folder / "empty").touch()
    (folder / "latest").symlink_to("checkpoint-5")

    assert finish(store, folder)

    objects = {key.removeprefix(f"{PLACE}/"): value for key, value in store.objects.items() if PLACE in key}
    assert objects == {path: value for path, value in content(folder).items() if not path.startswith("latest")}
    assert not any("/parts/" in key for key in store.objects)
    assert restored(store, tmp_path / "other") == content(folder)
    assert (tmp_path / "other/latest").readlink() == Path("checkpoint-5")
    assert (tmp_path / "other/large").stat().st_mtime_ns == (folder / "large").stat().st_mtime_ns
    assert not finish(store, tmp_path / "other"), "nothing is uploaded again"


def test_a_checkpoint_that_a_newer_one_succeeds_leaves_storage(tmp_path: Path) -> None:
    store, folder = Memory(), tmp_path / "saved"
    saved(folder, 5, age_s=60)
    assert finish(store, folder)
    for path in (folder / "checkpoint-5").iterdir():
        path.unlink()
    (folder / "checkpoint-5").rmdir()

    saved(folder, 6, age_s=30)
    assert finish(store, folder)
    saved(folder, 7)
    assert finish(store, folder)

    assert not any("checkpoint-5/" in key for key in store.objects)
    assert restored(store, tmp_path / "other") == content(folder)


def test_an_object_that_was_replaced_after_the_manifest_is_restored_whole(tmp_path: Path) -> None:
    """The host was lost between the two."""
    store, folder = Memory(), tmp_path / "saved"
    saved(folder, 5)
    assert finish(store, folder)
    newer = os.urandom(PIECE_BYTES + 5)
    store.objects[f"{PLACE}/checkpoint-5/model"] = newer

    assert restored(store, tmp_path / "other")["checkpoint-5/model"] == newer


def test_a_large_object_that_is_replaced_meanwhile_is_fetched_again(tmp_path: Path) -> None:
    folder, uri = tmp_path / "saved", f"file://{tmp_path}/kept"
    folder.mkdir()
    (folder / "large").write_bytes(b"1" * (PIECE_BYTES + 1))
    in_a_folder(uri, folder).finish(clean=True, ended_s=time.time())
    replaced: list[int] = []

    def replace(size_bytes: int) -> None:
        if not replaced:
            replaced.append(size_bytes)
            (folder / "large").write_bytes(b"2" * (PIECE_BYTES + 2))
            in_a_folder(uri, folder).finish(clean=True, ended_s=time.time())

    class Replaced(StorageClient):
        def piece(self, stored: StoredObject, start: int, end: int) -> memoryview:
            replace(end - start)
            return super().piece(stored, start, end)

    restore(Replaced(parse(uri), os.environ, timeout_s=2.0), parse(uri), 0, tmp_path / "other", lambda size: None)

    assert replaced
    assert content(tmp_path / "other") == {"large": b"2" * (PIECE_BYTES + 2)}


def test_a_missing_object_ends_the_restore_and_nothing_takes_its_place(tmp_path: Path) -> None:
    store, folder = Memory(), tmp_path / "saved"
    saved(folder, 5)
    assert finish(store, folder)
    del store.objects[f"{PLACE}/checkpoint-5/optimizer"]

    with pytest.raises(PlatformError, match="expected an object, found none"):
        restored(store, tmp_path / "other")

    assert not (tmp_path / "other/checkpoint-5").exists()
    finish(store, folder)  # The host that has it sends it again.
    assert restored(store, tmp_path / "third") == content(folder)


def in_a_folder(uri: str, folder: Path, note: Callable[[int], None] = lambda size: None) -> Checkpoints:
    """Return what uploads *folder* in the layout "plain" to a file:// URI."""
    root = parse(uri)
    store = StorageClient(root, os.environ, timeout_s=2.0)
    open_file = folder.parent / "open.json"
    return Checkpoints(store, root, folder, rank=0, host="algo-0", open_file=open_file, note=note, layout="plain")


@pytest.mark.parametrize("name", ["/".join(["d" * 200] * 5), "model#1", "a\nb", os.fsdecode(b"\xff" * 100)])
def test_a_file_whose_path_cannot_be_a_key_is_stored_in_parts(name: str, tmp_path: Path) -> None:
    folder, uri = tmp_path / "saved", f"file://{tmp_path}/kept"
    saved(folder, 5)
    odd = folder / "odd" / name
    odd.parent.mkdir(parents=True)
    odd.write_text("the content")

    checkpoints = in_a_folder(uri, folder)
    assert checkpoints.finish(clean=True, ended_s=time.time())

    assert checkpoints.left_out() == {}
    restore(StorageClient(parse(uri), os.environ, timeout_s=2.0), parse(uri), 0, tmp_path / "other", lambda size: None)
    assert content(tmp_path / "other") == content(folder)
    assert not in_a_folder(uri, folder).finish(clean=True, ended_s=time.time())  # All of it is there.


@pytest.mark.parametrize("is_file_first", [True, False])
def test_a_folder_and_a_file_may_take_each_others_place(is_file_first: bool, tmp_path: Path) -> None:
    folder, uri = tmp_path / "saved", f"file://{tmp_path}/kept"
    for is_file in (is_file_first, not is_file_first):
        shutil.rmtree(folder, ignore_errors=True)
        saved(folder, 5)
        path = folder / "last" if is_file else folder / "last/model"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"m" * 9000)
        assert in_a_folder(uri, folder).finish(clean=True, ended_s=time.time())

    store = StorageClient(parse(uri), os.environ, timeout_s=2.0)
    restore(store, parse(uri), 0, tmp_path / "other", lambda size: None)
    assert content(tmp_path / "other") == content(folder)


def test_a_large_object_notes_its_progress(tmp_path: Path) -> None:
    folder, sizes = tmp_path / "saved", list[int]()
    folder.mkdir()
    (folder / "large").write_bytes(b"x" * (2 * PIECE_BYTES + 3))

    in_a_folder(f"file://{tmp_path}/kept", folder, sizes.append).finish(clean=True, ended_s=time.time())

    assert sum(sizes) == 2 * PIECE_BYTES + 3
    assert max(sizes) <= PIECE_BYTES


def test_the_layout_may_change_and_what_is_stored_stays_as_it_is(tmp_path: Path) -> None:
    store, folder = Memory(), tmp_path / "saved"
    saved(folder, 5)
    assert finish(store, folder, layout="parts")
    saved(folder, 6)
    assert finish(store, folder, layout="plain")
    saved(folder, 7)
    assert finish(store, folder, layout="parts")

    assert {key.split("/")[4] for key in store.objects if PLACE in key} == {"checkpoint-6"}
    assert restored(store, tmp_path / "other") == content(folder)


def copied(store: Memory) -> dict[str, bytes]:
    """Put ordinary objects below the URI, as a copy of a folder leaves them, and return them by path."""
    objects = {
        "checkpoint-5/model": os.urandom(PIECE_BYTES + 7),
        "checkpoint-5/optimizer": b"o",
        "latest": b"checkpoint-5",
    }
    store.objects |= {f"run/{path}": value for path, value in objects.items()}
    return objects


@pytest.mark.parametrize("rank", [0, 1])
def test_every_host_restores_a_prefix_of_ordinary_objects(rank: int, tmp_path: Path) -> None:
    store = Memory()
    objects = copied(store)

    assert restored(store, tmp_path / "folder", rank) == objects


def test_the_first_host_goes_on_from_ordinary_objects_without_copying_or_removing_them(tmp_path: Path) -> None:
    store = Memory()
    objects = copied(store)
    for rank in (0, 1):
        folder = tmp_path / f"host-{rank}"
        restored(store, folder, rank)
        if not rank:
            saved(folder, 6)
            saved(folder, 7)
            for path in (folder / "checkpoint-5").iterdir():
                path.unlink()
            (folder / "checkpoint-5").rmdir()
            (folder / "latest").write_text("checkpoint-7")
        assert finish(store, folder, rank, "parts") == (rank == 0)

    assert {path: store.objects[f"run/{path}"] for path in objects} == objects
    assert not any(key.startswith("run/hosts/1/") for key in store.objects)
    after = restored(store, tmp_path / "other")
    assert {"checkpoint-6/model", "checkpoint-7/model", "latest"} <= set(after)
    assert after["latest"] == b"checkpoint-7"


def test_a_bucket_as_a_whole_is_no_checkpoint_folder(tmp_path: Path) -> None:
    store = Memory()
    copied(store)

    assert restore(store, parse("s3://bucket"), 0, tmp_path / "folder", lambda size: None) == (0, 0)  # type: ignore[arg-type]


def test_other_jobs_below_the_uri_are_no_checkpoints(tmp_path: Path) -> None:
    store = Memory()
    objects = copied(store)
    saved(tmp_path / "other", 7)
    Checkpoints(
        store,  # type: ignore[arg-type]
        ROOT.below("again/2"),
        tmp_path / "other",
        rank=0,
        host="algo-0",
        open_file=tmp_path / "open.json",
        note=lambda size: None,
    ).finish(clean=True, ended_s=time.time())

    assert restored(store, tmp_path / "folder") == objects


def test_the_checkpoint_folder_and_what_belongs_to_nobody_are_no_checkpoints(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    for name in ("checkpoints/old", "lost+found/x", ".toolkit-restore/x", "checkpoint-5/model"):
        (volume / name).parent.mkdir(parents=True)
        (volume / name).write_text(name)
    root, folder = parse(f"file://{volume}"), volume / "checkpoints"
    (volume / "lost+found/loop").symlink_to("..")  # It cannot be listed, as for those who are not root.

    restore(StorageClient(root, os.environ, timeout_s=2.0), root, 0, folder, lambda size: None)

    assert content(folder) == {"old": b"checkpoints/old", "checkpoint-5/model": b"checkpoint-5/model"}


def test_two_objects_that_cannot_be_files_of_one_folder_are_named(tmp_path: Path) -> None:
    store = Memory()
    store.objects |= {"run/a": b"1", "run/a/b": b"2"}

    with pytest.raises(ContractError, match="'a' is an object, and a folder of others"):
        restored(store, tmp_path / "folder")
