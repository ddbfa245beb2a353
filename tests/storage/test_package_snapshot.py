"""Snapshots of packages: stored once, unpacked whole or not at all, whatever is wrong with the object or the disk."""

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from tests.storage.servers import S3, Faulty
from toolkit.errors import PlatformError
from toolkit.storage import package_snapshot
from toolkit.storage.installed import Environment
from toolkit.storage.package_snapshot import SnapshotError, StoredSet
from toolkit.storage.store import StorageClient
from toolkit.storage.uri import Uri, parse

pytest.importorskip("obstore")
INSTALLED_S = 1_700_000_000.0


class Image:
    """A prefix with the package "image", into which packages are installed; a copy of it is another container."""

    def __init__(self, folder: Path, environment: Environment | None = None) -> None:
        self.prefix = folder / "image"
        self.site = self.prefix / "lib/site-packages"
        self.state = folder / "state"
        self.state.mkdir(parents=True)
        self.site.mkdir(parents=True)
        self.environment = Environment(
            prefix=str(self.prefix), folders=(str(self.site),), search_path=(str(self.site),), facts=("3.11",)
        )

    def install(self, name: str, **content: str) -> None:
        """Write a package of the module *name*, a command, and *content* by path ("__" for "/")."""
        info = self.site / f"{name}-1.0.dist-info"
        info.mkdir()
        command = self.prefix / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/sh\necho {name}\n")
        command.chmod(0o755)
        (self.site / f"{name}.py").write_text(f"name = {name!r}\n")
        names = [f"{name}.py", f"../../bin/{name}", f"{info.name}/METADATA", f"{info.name}/RECORD", "gone.pyc"]
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        for path, text in content.items():
            place = self.site / path.replace("__", "/").replace("INFO", info.name).replace("_dot_", ".")
            place.parent.mkdir(exist_ok=True, parents=True)
            place.write_text(text)
            names.append(str(place.relative_to(self.site)))
        (info / "RECORD").write_text("".join(f'"{path}",,\n' for path in names))

    def tree(self) -> dict[str, tuple[int, bytes]]:
        return {
            str(path.relative_to(self.prefix)): (path.stat().st_mode, path.read_bytes())
            for path in sorted(self.prefix.rglob("*"))
            if path.is_file()
        }

    def unpack(self, uri: Uri, key: str = "key", store: StorageClient | None = None) -> StoredSet | None:
        client = store or StorageClient(uri, {}, timeout_s=5.0)
        return package_snapshot.restore(client, uri, key, self.environment, self.state, lambda _: None)

    def store(self, uri: Uri, store: StorageClient | None = None) -> StoredSet | None:
        client = store or StorageClient(uri, {}, timeout_s=5.0)
        return package_snapshot.store_new(client, uri, "pip", self.environment, INSTALLED_S, self.state, lambda _: None)

    def back(self) -> None:
        """Remove what was installed: the image is as it was pulled."""
        shutil.rmtree(self.prefix)
        self.site.mkdir(parents=True)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path / "one")


@pytest.fixture
def uri(tmp_path: Path) -> Uri:
    return parse(f"file://{tmp_path}/kept")


def stored_object(uri: Uri) -> Path:
    (path,) = Path(f"/{uri.key}").iterdir()
    return path


def store_one(image: Image, uri: Uri) -> dict[str, tuple[int, bytes]]:
    """Install and store a package, and go back to the image as it was; return the tree that was stored."""
    assert image.unpack(uri) is None
    image.install("needed", data__words="1\n")
    assert image.store(uri)
    installed = image.tree()
    image.back()
    return installed


def test_what_was_installed_comes_back_with_its_modes_and_times(image: Image, uri: Uri) -> None:
    installed = store_one(image, uri)
    source = image.site / "needed.py"

    found = image.unpack(uri)

    assert found is not None
    assert (found.packages, found.installer, found.written_s) == (1, "pip", INSTALLED_S)
    assert image.tree() == installed
    assert installed["bin/needed"][0] & 0o111
    assert source.stat().st_mtime == int(source.stat().st_mtime)
    assert list(image.site.glob(".toolkit*")) == []


@pytest.mark.parametrize("changed", ["requirements", "python", "image", "place"])
def test_a_set_of_something_else_is_not_taken(image: Image, uri: Uri, changed: str) -> None:
    store_one(image, uri)
    key = "key"
    if changed == "requirements":
        key = "other"
    elif changed == "image":
        (image.site / "torch-2.1.dist-info").mkdir()
    else:
        more: dict[str, Any] = {"facts": ("3.12",)} if changed == "python" else {"prefix": f"{image.prefix}/other"}
        image.environment = msgspec.structs.replace(image.environment, **more)

    assert image.unpack(uri, key) is None
    assert not (image.site / "needed.py").exists()


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the first line of the object *path*."""
    line, _, rest = gzip.decompress(path.read_bytes()).partition(b"\n")
    header = json.loads(line)
    change(header)
    path.write_bytes(gzip.compress(json.dumps(header).encode() + b"\n" + rest))


def with_path(name: str) -> Callable[[Path], None]:
    def change(header: dict[str, Any]) -> None:
        header["files"][0]["file"]["path"] = name

    return lambda path: rewrite(path, change)


def with_metadata(name: str) -> Callable[[Path], None]:
    return lambda path: rewrite(path, lambda header: header.update(metadata=[name]))


def with_first(**facts: object) -> Callable[[Path], None]:
    return lambda path: rewrite(path, lambda header: header["files"][0]["file"].update(facts))


def flip(path: Path) -> None:
    line, _, rest = gzip.decompress(path.read_bytes()).partition(b"\n")
    path.write_bytes(gzip.compress(line + b"\n" + rest[:3] + bytes((rest[3] ^ 1,)) + rest[4:]))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(b""), "the snapshot's first line: expected JSON, found"),
        (lambda path: path.write_bytes(b"no gzip at all"), "it is damaged or cut short"),
        (lambda path: os.truncate(path, path.stat().st_size - 20), "it is damaged or cut short"),
        (lambda path: path.write_bytes(gzip.compress(b"{}\n")), "the snapshot's first line: "),
        (lambda path: path.write_bytes(gzip.compress(b"\xff" * 100)), "the snapshot's first line: "),
        (lambda path: path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1])), "is cut short"),
        (lambda path: path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + b"1")), "more than its"),
        (flip, "is damaged"),
        (lambda path: rewrite(path, lambda header: header.update(key="0" * 40)), "it is of another set"),
        (lambda path: rewrite(path, lambda header: header.update(version=2)), "the snapshot's first line: "),
        (with_path("../../outside"), "it has a file outside of the environment"),
        (with_path("/etc/passwd"), "it has a file outside of the environment"),
        (with_path("lib/../../outside"), "it has a file outside of the environment"),
        (with_path("link/outside"), "link leads outside of"),
        (with_path("lib/site-packages"), "lib/site-packages is a folder here"),
        (with_metadata("lib/site-packages/needed"), "it has no list of files of"),
        (with_metadata("../needed-1.0.dist-info"), "it has a file outside of the environment"),
        (with_first(size_bytes=-1), "is cut short"),
    ],
)
def test_a_damaged_or_hostile_object_changes_nothing_and_is_replaced(
    image: Image, uri: Uri, damage: Callable[[Path], None], reason: str
) -> None:
    store_one(image, uri)
    whole = stored_object(uri).read_bytes()
    damage(stored_object(uri))
    outside = image.prefix.parent / "outside-folder"
    outside.mkdir()
    (image.prefix / "link").symlink_to(outside)

    with pytest.raises(SnapshotError, match=reason):
        image.unpack(uri)

    assert (image.tree(), list(outside.iterdir()), list(image.site.iterdir())) == ({}, [], [])
    image.install("needed", data__words="1\n")
    assert image.store(uri)
    assert abs(len(stored_object(uri).read_bytes()) - len(whole)) < 100
    image.back()
    assert image.unpack(uri)


def test_a_file_that_claims_more_than_the_disk_has_is_refused_at_once(image: Image, uri: Uri) -> None:
    store_one(image, uri)
    with_first(size_bytes=1 << 60)(stored_object(uri))

    with pytest.raises(PlatformError, match="expected room for"):
        image.unpack(uri)

    assert image.tree() == {}


def replaced(image: Image) -> None:
    (image.site / "old-1.0.dist-info/RECORD").unlink()
    shutil.rmtree(image.site / "old-1.0.dist-info")
    image.install("needed")


def egg(image: Image) -> None:
    (image.site / "needed-1.0.egg-info").mkdir()


def editable(image: Image) -> None:
    image.install("needed", INFO__direct_url_dot_json='{"url": "file:///code", "dir_info": {"editable": true}}')


def secret(image: Image) -> None:
    image.install("needed", INFO__direct_url_dot_json='{"url": "https://user:secret@host/needed.whl"}')


def outside(image: Image) -> None:
    image.install("needed")
    record = image.site / "needed-1.0.dist-info/RECORD"
    record.write_text(f"{record.read_text()}../../../elsewhere,,\n")


def missing(image: Image) -> None:
    image.install("needed")
    (image.site / "needed.py").unlink()


def link(image: Image) -> None:
    image.install("needed")
    (image.site / "needed.py").unlink()
    (image.site / "needed.py").symlink_to("/etc/hostname")


@pytest.mark.parametrize(
    ("install", "reason"),
    [
        (replaced, "old 1.0 of the image was replaced: put the newer one into the image"),
        (egg, "needed 1.0 was installed without a list of its files"),
        (editable, r"needed 1.0 is used from its sources \(-e\)"),
        (secret, "needed 1.0 names credentials in its direct_url.json"),
        (outside, "needed 1.0 has a file outside of .*: ../../../elsewhere"),
        (missing, "needed 1.0 lists needed.py, which is missing"),
        (link, "needed 1.0 lists needed.py, which is no regular file"),
    ],
)
def test_what_cannot_be_told_from_the_image_is_not_stored(
    image: Image, uri: Uri, install: Callable[[Image], None], reason: str
) -> None:
    image.install("old")
    assert image.unpack(uri) is None
    install(image)

    with pytest.raises(SnapshotError, match=reason):
        image.store(uri)

    assert not Path(f"/{uri.key}").exists()


def test_nothing_new_is_not_stored(image: Image, uri: Uri) -> None:
    assert image.unpack(uri) is None

    assert image.store(uri) is None
    assert not Path(f"/{uri.key}").exists()


def test_a_package_that_appears_meanwhile_is_not_written_over(image: Image, uri: Uri) -> None:
    store_one(image, uri)
    found = image.environment
    image.environment = msgspec.structs.replace(found, search_path=())  # As if it came after the look at the image.
    stored = stored_object(uri)
    stored.rename(stored.with_name(f"{package_snapshot.make_key('key', image.environment)}.packages.gz"))
    rewrite(stored_object(uri), lambda header: header.update(key=stored_object(uri).name.partition(".")[0]))
    image.install("needed")
    before = image.tree()

    with pytest.raises(SnapshotError, match=r"needed-1.0.dist-info is there already"):
        image.unpack(uri)

    assert image.tree() == before


def test_two_that_store_at_once_leave_one_whole_object(moto: S3, s3: S3, bucket: str, tmp_path: Path) -> None:
    uri = parse(f"{bucket}/team/packages")
    images = [Image(tmp_path / "at" / name) for name in ("a", "b")]
    for one in images:
        assert one.unpack(uri, store=s3.store(str(uri))) is None
        one.install("needed", data__words="x" * 100_000)
    shutil.copy(images[0].state / "packages.json", images[1].state)  # One key, as in two containers of one image.

    threads = [Thread(target=one.store, args=(uri, s3.store(str(uri)))) for one in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(s3.keys(bucket)) == 1
    installed = images[0].tree()
    images[0].back()
    assert images[0].unpack(uri, store=s3.store(str(uri)))
    assert images[0].tree() == installed


def test_storage_that_breaks_off_an_upload_has_no_object(faulty: Faulty, bucket: str, tmp_path: Path) -> None:
    uri = parse(f"{bucket}/packages")
    image = Image(tmp_path / "one")
    store = faulty.store(str(uri), timeout_s=1.0)
    assert image.unpack(uri, store=store) is None
    image.install("needed")
    faulty.fault = lambda method, path: "half" if method in ("PUT", "POST") else ""

    with pytest.raises(PlatformError):
        image.store(uri, store)

    faulty.fault = lambda method, path: ""
    assert faulty.keys(bucket) == []
    assert image.unpack(uri, store=store) is None


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, for a mount")
@pytest.mark.parametrize("size", ["16k", "4m"])
def test_site_packages_on_a_disk_of_its_own_that_may_be_full(
    image: Image, uri: Uri, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert image.unpack(uri) is None
    image.install("needed", data__words="x" * 100_000)
    assert image.store(uri)
    installed = image.tree()
    image.back()
    monkeypatch.setattr("toolkit.storage.download.check_room", lambda _folder, _bytes: None)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(image.site)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        if size == "4m":
            assert image.unpack(uri)
            assert image.tree() == installed
        else:
            with pytest.raises(PlatformError, match="No space left on device"):
                image.unpack(uri)
            assert image.tree() == {}
            assert list(image.site.iterdir()) == []
    finally:
        subprocess.run(["umount", str(image.site)], check=True)
