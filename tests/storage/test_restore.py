"""A restore into a folder that has something else at the same names, and of hosts that have different kinds of them."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.simulate.nobody import nobodys_folder
from tests.storage.memory import Memory
from toolkit.errors import ContractError, PlatformError
from toolkit.storage.checkpoints import Checkpoints
from toolkit.storage.restore import restore
from toolkit.storage.scan import STAGING
from toolkit.storage.uri import parse

ROOT = parse("s3://bucket/run")
OLD_S = 1e9


def linked(path: Path) -> None:
    (path.parent / "other").mkdir(parents=True)
    (path.parent / "other/model").write_text("of other")
    path.symlink_to("other")


def foldered(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "model").write_text("in a folder")


def filed(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file")


KINDS: tuple[Callable[[Path], None], ...] = (linked, foldered, filed)


def dated(folder: Path, time_s: float) -> Path:
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (time_s, time_s), follow_symlinks=False)
    return folder


def stored(store: Memory, folder: Path, rank: int = 0) -> None:
    open_file = folder.parent / "open.json"
    uploader = Checkpoints(
        store,  # type: ignore[arg-type]
        ROOT,
        folder,
        rank=rank,
        host=f"algo-{rank}",
        open_file=open_file,
        note=lambda size: None,
    )
    assert uploader.finish(clean=True, ended_s=time.time())


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("is_newer", [False, True], ids=["older", "newer"])
@pytest.mark.parametrize("lay_second", KINDS)
@pytest.mark.parametrize("lay_first", KINDS)
def test_another_kind_of_entry_in_the_folder_is_replaced_unless_it_is_newer(
    tmp_path: Path, lay_first: Callable[[Path], None], lay_second: Callable[[Path], None], is_newer: bool
) -> None:
    store, first, second = Memory(), tmp_path / "first", tmp_path / "second"
    lay_first(first / "deep/last")
    dated(first, 1.5e9)
    stored(store, first)
    lay_second(second / "deep/last")
    there_before = contents(second)
    dated(second, time.time() + 60 if is_newer else OLD_S)

    restore(store, ROOT, 0, second, lambda size: None)  # type: ignore[arg-type]

    if is_newer:
        assert there_before.items() <= contents(second).items()
    else:
        assert contents(first).items() <= contents(second).items()
        assert "other/model" not in there_before or (second / "other/model").read_text() == "of other"
    restore(store, ROOT, 0, tmp_path / "third", lambda size: None)  # type: ignore[arg-type]
    assert contents(tmp_path / "third") == contents(first)


@pytest.mark.parametrize("lay_first", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_each_host_gets_its_own_kind_of_an_entry_and_nothing_is_written_through_a_link(
    tmp_path: Path, lay_first: Callable[[Path], None], other: Callable[[Path], None]
) -> None:
    store = Memory()
    kinds = (lay_first, other)
    for rank, kind in enumerate(kinds):
        kind(tmp_path / str(rank) / "last")
        stored(store, tmp_path / str(rank), rank)

    for rank, owner in ((0, 0), (1, 1), (2, 0)):
        again = tmp_path / f"again-{rank}"
        restore(store, ROOT, rank, again, lambda size: None)  # type: ignore[arg-type]
        assert contents(tmp_path / str(owner)).items() <= contents(again).items()
        assert not (again / "other").exists() or (again / "other/model").read_text() == "of other"


@pytest.mark.parametrize("lay", KINDS)
@pytest.mark.parametrize("name", [STAGING, f"{STAGING}/x"])
def test_whatever_a_script_put_at_the_name_of_the_staging_folder_is_removed(
    tmp_path: Path, name: str, lay: Callable[[Path], None]
) -> None:
    store, again = Memory(), tmp_path / "again"
    filed(tmp_path / "first/model")
    stored(store, tmp_path / "first")
    lay(again / name)

    restore(store, ROOT, 0, again, lambda size: None)  # type: ignore[arg-type]

    assert (again / "model").read_text() == "a file"
    assert not os.path.lexists(again / STAGING)
    assert name != STAGING or lay is not linked or (again / "other/model").read_text() == "of other"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "found an empty file"),
        (b'{"host": "h", ', "truncated"),
        (b'{"host": "h", "written_s": 0, "files": 1}', "files"),
        (b'{"host": "h", "written_s": 0, "part_bytes": 0, "files": {"a": {}}}', "a positive part_bytes, found 0"),
    ],
)
def test_a_damaged_manifest_is_refused_with_what_to_do(tmp_path: Path, content: bytes, says: str) -> None:
    store = Memory()
    store.write("run/hosts/0/manifest.json", content)

    with pytest.raises(ContractError, match=f"{says}.*Remove the manifest"):
        restore(store, ROOT, 0, tmp_path / "again", lambda size: None)  # type: ignore[arg-type]


def test_a_restore_that_ended_while_a_read_only_file_took_its_place_goes_on_later() -> None:
    """Here because its folder could not be written then; a kill at that moment leaves the same."""
    with nobodys_folder() as folder:
        saved, again, store = folder / "checkpoints", folder / "again", Memory()
        filed(saved / "step/model")
        (saved / "step/model").chmod(0o444)
        stored(store, saved)
        (again / "step").mkdir(parents=True)
        (again / "step").chmod(0o555)

        with pytest.raises(PlatformError, match="Permission denied"):
            restore(store, ROOT, 0, again, lambda size: None)  # type: ignore[arg-type]
        (again / "step").chmod(0o755)
        restore(store, ROOT, 0, again, lambda size: None)  # type: ignore[arg-type]

        assert (again / "step/model").read_text() == "a file"
        assert (again / "step/model").stat().st_mode & 0o777 == 0o444


def test_hosts_that_share_the_folder_restore_it_once(tmp_path: Path) -> None:
    saved, again, store = tmp_path / "checkpoints", tmp_path / "again", Memory()
    for number in range(3):
        filed(saved / f"step/{number}")
    stored(store, saved)
    got: list[tuple[int, int]] = []

    def second_restore() -> None:
        got.append(restore(store, ROOT, 1, again, lambda size: None))  # type: ignore[arg-type]

    second = threading.Thread(target=second_restore)
    waiting = [second]

    def on_request(name: str) -> None:
        if (again / STAGING).exists() and waiting:
            waiting.pop().start()
            second.join(0.5)  # In vain: it waits for the first one.

    store.on_request = on_request
    got.append(restore(store, ROOT, 0, again, lambda size: None))  # type: ignore[arg-type]
    second.join()

    assert got == [(3, 18), (0, 0)]
    assert [path.name for path in again.iterdir()] == ["step"]


def test_a_host_that_waits_for_another_sees_its_progress(tmp_path: Path) -> None:
    """Also while that one only looks at what an earlier try has fetched: else it would be given up as stuck."""
    saved, again, store = tmp_path / "checkpoints", tmp_path / "again", Memory()
    for number in range(3):
        filed(saved / f"step/{number}")
    stored(store, saved)
    semaphore = threading.Semaphore(0)
    second = threading.Thread(target=lambda: restore(store, ROOT, 1, again, lambda size: semaphore.release()))  # type: ignore[arg-type]
    came: list[int] = []

    def end_after_the_last(size: int) -> None:
        came.append(size)
        if len(came) == 3:
            raise KeyboardInterrupt

    def hear(size: int) -> None:
        if second.ident is None:
            second.start()
        came.append(semaphore.acquire(timeout=60))

    with pytest.raises(KeyboardInterrupt):
        restore(store, ROOT, 0, again, end_after_the_last)  # type: ignore[arg-type]
    restore(store, ROOT, 0, again, hear)  # type: ignore[arg-type]
    second.join()

    assert came == [6, 6, 6, True, True, True]
