"""Files and folders that cannot be read: what storage has stays, everything else is uploaded."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.storage.memory import Memory
from tests.storage.servers import Fault, Faulty
from toolkit.errors import ContractError, PlatformError
from toolkit.storage import checkpoints, open_entries, scan
from toolkit.storage.checkpoints import FOLDER, FRESH_S, Checkpoints, OvertakenError
from toolkit.storage.mirror import MOST_REFUSED, Mirror
from toolkit.storage.restore import restore
from toolkit.storage.store import StorageClient
from toolkit.storage.uri import parse

ROOT = parse("s3://bucket/run")
ERRORS = (errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE, errno.ENOMEM)
REFUSALS: tuple[Fault, ...] = ("403", "too long")
LATER_S = checkpoints.SETTLE_S + checkpoints.PATIENCE_S


class Bed:
    """A folder with two checkpoints, of which storage has an older version."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.again = tmp_path / "checkpoints", tmp_path / "again"
        self.store = Memory()
        self.write("step-1/model", b"old 1")
        self.write("step-2/model", b"old 2")
        self.uploader = self.made()
        assert self.uploader.upload_settled(time.time() + LATER_S)
        self.write("step-1/model", b"new 1!")
        self.write("step-2/model", b"new 2!")

    def made(self, steady_s: Callable[[], float] = time.monotonic) -> Checkpoints:
        return Checkpoints(
            self.store,  # type: ignore[arg-type]
            ROOT,
            self.folder,
            rank=0,
            host="h",
            open_file=self.folder.parent / "open.json",
            note=lambda size: None,
            steady_s=steady_s,
        )

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(content)

    def stored(self) -> dict[str, bytes]:
        restore(self.store, ROOT, 0, self.again, lambda size: None)  # type: ignore[arg-type]
        return {
            str(path.relative_to(self.again)): path.read_bytes() for path in self.again.rglob("*") if path.is_file()
        }

    @contextmanager
    def failing(self, call: str, number: int, name: str) -> Iterator[None]:
        """Let os.*call* fail for the path *name* of the folder."""
        real, failing_path = getattr(os, call), str(self.folder / name)

        def fake(path: Any, *more: Any, **options: Any) -> Any:
            if isinstance(path, (str, os.PathLike)) and os.fspath(path) == failing_path.rstrip("/."):
                raise OSError(number, os.strerror(number), path)
            return real(path, *more, **options)

        setattr(os, call, fake)
        try:
            yield
        finally:
            setattr(os, call, real)


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize(("call", "name"), [("open", "step-1/model"), ("scandir", "step-1"), ("stat", "step-1/model")])
def test_an_entry_that_cannot_be_read_keeps_its_version_and_is_tried_again(
    bed: Bed, call: str, name: str, number: int
) -> None:
    now_s = time.time() + LATER_S
    with bed.failing(call, number, name):
        bed.uploader.upload_settled(now_s)
        bed.uploader.upload_settled(now_s + LATER_S)

        assert list(bed.uploader.unreadable) == ["step-1"]
        assert bed.uploader.unreadable["step-1"].endswith(f"{name}: {os.strerror(number)}")
    assert bed.stored() == {"step-1/model": b"old 1", "step-2/model": b"new 2!"}
    assert bed.uploader.upload_settled(now_s + 2 * LATER_S)
    assert bed.uploader.unreadable == {}
    assert bed.made().left_out() == {}
    assert "step-1/model" in bed.stored()


def test_a_folder_that_cannot_be_listed_loses_nothing(bed: Bed) -> None:
    with bed.failing("scandir", errno.EIO, "."):
        assert not bed.uploader.upload_settled(time.time() + LATER_S)
        assert not bed.uploader.finish(clean=True, ended_s=time.time())

        assert list(bed.uploader.left_out()) == [FOLDER]
    assert bed.stored() == {"step-1/model": b"old 1", "step-2/model": b"old 2"}


def test_what_is_open_is_not_known_without_proc_so_nothing_is_uploaded(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path) -> frozenset[str]:
        raise OSError(errno.EMFILE, "Too many open files", "/proc")

    monkeypatch.setattr(open_entries, "entries_being_written", fails)

    assert not bed.uploader.upload_settled(time.time() + LATER_S)

    assert "/proc: Too many open files" in bed.uploader.unreadable[FOLDER]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: os.truncate(path, 2), id="shrinks"),
        pytest.param(lambda path: path.write_bytes(b"new 1! and more"), id="grows"),
        pytest.param(lambda path: path.unlink(), id="is removed"),
        pytest.param(lambda path: (path.unlink(), path.mkdir()), id="becomes a folder"),
    ],
)
def test_a_file_that_changes_while_it_is_read_keeps_its_version(
    bed: Bed, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = scan.read, [1]

    def read(path: Path, start: int, size_bytes: int) -> bytes:
        if path.parent.name == "step-1" and left:
            left.pop()
            change(path)
        return real(path, start, size_bytes)

    monkeypatch.setattr(checkpoints, "read", read)

    bed.uploader.finish(clean=True, ended_s=time.time())

    assert list(bed.uploader.left_out()) in (["step-1"], [])  # A removed one is no content that is missing.
    assert bed.stored() == {"step-1/model": b"old 1", "step-2/model": b"new 2!"}


def test_a_short_read_is_read_on(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size_bytes, start: real(fd, min(size_bytes, 2), start))

    assert bed.uploader.finish(clean=True, ended_s=time.time())

    assert bed.stored() == {"step-1/model": b"new 1!", "step-2/model": b"new 2!"}


def test_a_file_that_nobody_may_read_holds_the_others_back_for_a_minute_at_most(bed: Bed) -> None:
    now_s = time.time() + checkpoints.SETTLE_S + 1
    with bed.failing("open", errno.EACCES, "step-1/model"):
        for number in range(3):
            bed.write("step-2/model", b"newer %d" % number)
            bed.uploader.upload_settled(now_s + number * LATER_S)

            assert bed.stored()["step-2/model"] in (b"old 2", b"newer %d" % number)
        assert bed.uploader.upload_settled(now_s + 4 * LATER_S) is False
    (bed.again / "step-2/model").unlink()
    assert bed.stored() == {"step-1/model": b"old 1", "step-2/model": b"newer 2"}


def test_names_of_any_bytes_and_links_to_them_come_back(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    name = os.fsdecode(b"step-\xff")
    bed.write(f"{name}/model-\udcfe", b"weights")
    (bed.folder / "latest").symlink_to(name)
    (bed.folder / "a\udc80").write_bytes(b"x")

    assert bed.uploader.finish(clean=True, ended_s=time.time())
    assert not bed.made().finish(clean=True, ended_s=time.time())

    assert bed.stored()[f"{name}/model-\udcfe"] == b"weights"
    assert (bed.again / "latest").readlink() == Path("step-\udcff")
    assert (bed.again / "a\udc80").read_bytes() == b"x"


def test_a_part_of_another_length_is_refused(bed: Bed) -> None:
    document = msgspec.json.decode(bed.store.objects["run/hosts/0/manifest.json"])
    document["files"]["step-1/model"]["size_bytes"] = 26
    bed.store.objects["run/hosts/0/manifest.json"] = msgspec.json.encode(document)

    with pytest.raises(PlatformError, match="expected 26 bytes, found 5"):
        bed.stored()

    document["files"]["step-1/model"]["parts"] = []
    bed.store.objects["run/hosts/0/manifest.json"] = msgspec.json.encode(document)
    with pytest.raises(ContractError, match="step-1/model: expected the parts of 26 bytes, found 0"):
        bed.stored()
    assert not [path for path in bed.again.rglob("model") if path.is_file()]


def test_one_file_of_output_intermediate_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    folder, stored = tmp_path / "intermediate", tmp_path / "stored"
    uri = parse(f"file://{stored}")

    def mirror() -> Mirror:
        store = StorageClient(uri, {}, timeout_s=60.0)
        return Mirror(store, uri, folder, tmp_path / "state.json", lambda size: None)

    def contents() -> dict[bytes, bytes]:
        return {os.fsencode(path.name): path.read_bytes() for path in stored.iterdir()}

    folder.mkdir()
    for name in ("a", "b", "c", "\udcff"):
        (folder / name).write_bytes(b"first")
    assert mirror().finish()
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(b"second")
    real = os.open

    def fails(path: Any, *more: Any, **options: Any) -> int:
        if str(path).endswith("intermediate/b"):
            raise OSError(errno.EIO, "Input/output error", path)
        return real(path, *more, **options)

    failing = mirror()
    os.open = fails
    try:
        failing.finish()
    finally:
        os.open = real

    assert failing.left_out() == {"b": f"{folder}/b: Input/output error"}
    assert contents() == {b"a": b"second", b"b": b"first", b"c": b"second", b"%ff": b"first"}
    assert mirror().finish()
    assert contents()[b"b"] == b"second"


def test_a_file_of_output_intermediate_that_shrinks_while_it_is_read_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    folder, stored = tmp_path / "intermediate", tmp_path / "stored"
    uri = parse(f"file://{stored}")
    mirror = Mirror(StorageClient(uri, {}, timeout_s=60.0), uri, folder, tmp_path / "state.json", lambda size: None)
    folder.mkdir()
    (folder / "a").write_bytes(b"first")
    assert mirror.finish()
    (folder / "a").write_bytes(bytes(1000))
    real = os.pread

    def shrinks(fd: int, size_bytes: int, start: int) -> bytes:
        os.truncate(folder / "a", 10)
        return real(fd, size_bytes, start)

    monkeypatch.setattr(os, "pread", shrinks)
    mirror.finish()

    assert mirror.left_out() == {"a": "it changed while it was uploaded"}
    assert (stored / "a").read_bytes() == b"first"


def test_one_file_that_storage_refuses_costs_no_other_and_is_tried_again(
    faulty: Faulty, bucket: str, tmp_path: Path
) -> None:
    folder, uri = tmp_path / "intermediate", parse(f"{bucket}/out")
    folder.mkdir()
    for name in ("a", "bad", "c"):
        (folder / name).write_bytes(b"content")
    mirror = Mirror(faulty.store(bucket), uri, folder, tmp_path / "state.json", lambda size: None)

    for fault in REFUSALS:
        faulty.fault = lambda method, path, fault=fault: fault if method == "PUT" and "bad" in path else ""  # type: ignore[misc]
        mirror.finish()
        assert mirror.left_out().keys() == mirror.refused.keys() == {"bad"}
        assert "refused" in mirror.refused["bad"]
    assert sorted(faulty.keys(bucket)) == ["out/a", "out/c"]

    faulty.fault = lambda method, path: ""
    mirror.finish()
    assert (mirror.left_out(), sorted(faulty.keys(bucket))) == ({}, ["out/a", "out/bad", "out/c"])


def test_storage_that_refuses_everything_is_an_error_after_some_files(
    faulty: Faulty, bucket: str, tmp_path: Path
) -> None:
    folder, uri = tmp_path / "intermediate", parse(f"{bucket}/out")
    folder.mkdir()
    for number in range(100):
        (folder / f"{number:03}").write_bytes(b"content")
    faulty.fault = lambda method, path: "403" if method == "PUT" else ""

    with pytest.raises(PlatformError, match="access is refused"):
        Mirror(faulty.store(bucket), uri, folder, tmp_path / "state.json", lambda size: None).finish()

    assert faulty.count("PUT", "out/") == MOST_REFUSED


def test_any_number_of_refused_files_hold_back_none_of_the_others(faulty: Faulty, bucket: str, tmp_path: Path) -> None:
    """Not for ever: those that were refused come last, also to the process that uploads at the end."""
    folder, uri = tmp_path / "intermediate", parse(f"{bucket}/out")
    folder.mkdir()
    refused = [f"bad-{number:02}" for number in range(MOST_REFUSED + 5)]
    for name in (*refused, "good"):
        (folder / name).write_bytes(b"content")
    faulty.fault = lambda method, path: "403" if method == "PUT" and "bad" in path else ""

    def mirror() -> Mirror:
        return Mirror(faulty.store(bucket), uri, folder, tmp_path / "state.json", lambda size: None)

    with pytest.raises(PlatformError, match="access is refused"):
        mirror().finish()
    last = mirror()
    last.finish()
    assert (faulty.keys(bucket), sorted(last.left_out())) == (["out/good"], refused)

    faulty.fault = lambda method, path: ""
    last = mirror()
    last.finish()
    assert (len(faulty.keys(bucket)), last.left_out()) == (len(refused) + 1, {})


def test_a_file_that_is_always_written_holds_back_none_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    folder, stored, now_s = tmp_path / "intermediate", tmp_path / "stored", [0.0]
    uri = parse(f"file://{stored}")
    (folder / "logs").mkdir(parents=True)
    (folder / "logs/image").write_bytes(b"image")
    mirror = Mirror(
        StorageClient(uri, {}, timeout_s=60.0),
        uri,
        folder,
        tmp_path / "state.json",
        lambda size: None,
        steady_s=lambda: now_s[0],
    )

    for _ in range(2):
        with (folder / "logs/events").open("ab") as file:
            file.write(b"event")
        mirror.upload_settled(time.time())
        now_s[0] += 2.0

    assert [path.name for path in (stored / "logs").iterdir()] == ["image"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_part_that_storage_has_lost_is_sent_again_while_the_folder_has_its_file(bed: Bed, is_gone: bool) -> None:
    """A disk that loses its power may keep the name of a part without its content."""
    assert bed.uploader.upload_settled(time.time() + LATER_S)
    for key in [key for key in bed.store.objects if "/parts/" in key]:
        if is_gone:
            del bed.store.objects[key]
        else:
            bed.store.objects[key] = b""

    bed.made().upload_settled(time.time() + LATER_S)

    assert bed.stored() == {"step-1/model": b"new 1!", "step-2/model": b"new 2!"}
    assert not bed.made().upload_settled(time.time() + LATER_S)


def test_a_clock_that_was_set_back_delays_no_upload(bed: Bed) -> None:
    """Files written before then seem to have changed in the future."""
    steady_s, set_back_s = [0.0], time.time() - 3600
    uploader = bed.made(steady_s=lambda: steady_s[0])

    assert not uploader.upload_settled(set_back_s)
    steady_s[0] += checkpoints.SETTLE_S
    assert uploader.upload_settled(set_back_s + checkpoints.SETTLE_S)

    assert bed.stored() == {"step-1/model": b"new 1!", "step-2/model": b"new 2!"}


def test_another_job_that_writes_to_the_same_place_is_noticed_and_nothing_is_lost(bed: Bed) -> None:
    first, second = bed.uploader, bed.made()
    assert second.upload_settled(time.time() + LATER_S)
    bed.write("step-3/model", b"new 3!")

    with pytest.raises(OvertakenError, match="another job has written this meanwhile"):
        first.upload_settled(time.time() + LATER_S)
    assert bed.stored() == {"step-1/model": b"new 1!", "step-2/model": b"new 2!"}

    assert bed.made().upload_settled(time.time() + LATER_S)
    assert bed.stored()["step-3/model"] == b"new 3!"
    with pytest.raises(OvertakenError):
        second.upload_settled(time.time() + LATER_S)


def test_storage_that_was_emptied_meanwhile_gets_everything_again(bed: Bed) -> None:
    bed.store.objects.clear()

    with pytest.raises(OvertakenError, match="somebody has removed this meanwhile"):
        bed.uploader.upload_settled(time.time() + LATER_S)
    assert bed.made().upload_settled(time.time() + LATER_S)

    assert bed.stored() == {"step-1/model": b"new 1!", "step-2/model": b"new 2!"}


@pytest.mark.parametrize("age_s", [0.0, FRESH_S + 60])
def test_a_part_that_no_manifest_names_is_left_for_an_hour_to_the_job_that_may_name_it(
    tmp_path: Path, age_s: float
) -> None:
    pytest.importorskip("obstore")
    folder, parts = tmp_path / "checkpoints", tmp_path / "stored/hosts/0/parts"
    for path in (parts / ("f" * 64), folder / "model"):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"content")
    os.utime(parts / ("f" * 64), (time.time() - age_s,) * 2)
    uri = parse(f"file://{tmp_path / 'stored'}")
    store, open_file = StorageClient(uri, {}, timeout_s=60.0), tmp_path / "open.json"

    Checkpoints(store, uri, folder, rank=0, host="h", open_file=open_file, note=lambda size: None).finish(
        clean=True, ended_s=time.time()
    )

    assert (parts / ("f" * 64)).exists() == (age_s < FRESH_S)
    assert len(list(parts.iterdir())) == (2 if age_s < FRESH_S else 1)
