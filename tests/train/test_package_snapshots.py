"""Packages of requirements.txt are kept in storage, and later starts unpack them: real pips, wheels made here."""

import gzip
import http.server
import os
import shutil
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from tests.train.base import Base, Done
from tests.train.live import live
from tests.train.test_install import Image

pytest.importorskip("obstore")
PAGE = '<a href="../../wheels/{name}">{name}</a>'


class Kept:
    """An image whose jobs keep their packages in `folder`; each `start` is that of a new container. Packages come from
    an index on *port* that serves the files of the folder `index` below the base's."""

    def __init__(self, base: Base, port: int) -> None:
        self.port = port
        self.image = Image(base)
        self.folder = base.folder / "kept"
        self.index = base.folder / "index"
        self._image = set(self._list())
        self._starts = 0

    def offer(self, name: str, version: str = "1.0", text: str = "", **content: str) -> None:
        wheel = self.image.wheel(name, version, text, **content)
        page = self.index / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(PAGE.format(name=wheel.name))

    def environ(self, **more: str) -> dict[str, str]:
        """Return the variables of a start, in a new container."""
        for path in set(self._list()) - self._image:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._starts += 1
        temporary = self.image.base.folder / f"tmp-{self._starts}"
        temporary.mkdir()
        return {
            **self.image.pip,
            "PIP_NO_INDEX": "",
            "PIP_FIND_LINKS": "",
            "PIP_INDEX_URL": f"http://user:token-{self._starts}@127.0.0.1:{self.port}/index/",
            "TMPDIR": str(temporary),
            "TOOLKIT_PACKAGES_URI": f"file://{self.folder}",
            **more,
        }

    def start(self, **more: str) -> Done:
        return self.image.base.train(self.environ(**more), command=self.image.command)

    def objects(self) -> list[Path]:
        return sorted(self.folder.iterdir()) if self.folder.exists() else []

    def _list(self) -> list[Path]:
        return [*self.image.site.iterdir(), *self.image.python.parent.iterdir()]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def snapshots(base: Base) -> Iterator[Kept]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(base.folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    snapshots = Kept(base, server.server_port)
    points = "[console_scripts]\nsay-needed = needed:main\n"
    text = "word = 'the requirement'\ndef main():\n    print('the command')\n"
    snapshots.offer("needed", text=text, **{"needed-1_dot_0_dot_dist-info__entry_points_dot_txt": points})
    base.program("needed\n", "requirements.txt")
    base.program("import needed, subprocess, sys\nprint(needed.word)\n")
    yield snapshots
    server.shutdown()
    server.server_close()


def test_a_later_start_needs_no_index_unless_the_snapshot_is_damaged(snapshots: Kept) -> None:
    first = snapshots.start()
    snapshots.index.rename(snapshots.index.with_name("gone"))
    command = snapshots.image.python.parent / "say-needed"
    snapshots.image.base.program(f"import needed, subprocess\nprint(needed.word)\nsubprocess.run([{str(command)!r}])\n")

    second = snapshots.start()

    assert first.status == 0, first
    assert "Successfully installed needed-1.0" in first.log
    assert "has no snapshot of these packages yet: pip installs them" in first.log
    assert (second.status, second.stdout.splitlines()) == (0, [b"the requirement", b"the command"]), second
    assert "[toolkit] 1 package, " in second.log
    assert f"unpacked from file://{snapshots.folder}/" in second.log
    assert "as pip installed them at 20" in second.log
    (stored,) = snapshots.objects()
    whole = stored.read_bytes()
    assert b"token-1" not in gzip.decompress(whole)

    snapshots.index.with_name("gone").rename(snapshots.index)
    os.truncate(stored, len(whole) // 2)
    third = snapshots.start()

    assert third.status == 0, third
    assert "the snapshot of these packages cannot be used: it is damaged or cut short" in third.log
    assert "pip installs the packages instead, maybe in other versions" in third.log
    assert "Successfully installed needed-1.0" in third.log
    assert abs(stored.stat().st_size - len(whole)) < 50


def test_a_package_of_the_image_that_was_replaced_is_said_and_not_stored(snapshots: Kept) -> None:
    snapshots.image.hold(snapshots.image.wheel("old", "1.0"))
    record = snapshots.image.site / "old-1.0.dist-info/RECORD"
    record.write_text("old.py,,\n" + "".join(f"old-1.0.dist-info/{name},,\n" for name in ("METADATA", "RECORD")))
    snapshots._image |= set(snapshots._list())
    snapshots.offer("old", "2.0")
    snapshots.image.base.program("old>=2\n", "requirements.txt")
    snapshots.image.base.program("import old\nprint('ran')\n")

    done = snapshots.start()

    assert done.status == 0, done
    assert "gets no snapshot of these packages: old 1.0 of the image was replaced" in done.log
    assert snapshots.objects() == []


def test_packages_are_kept_beside_checkpoints_where_no_other_place_is_named(snapshots: Kept) -> None:
    done = snapshots.start(TOOLKIT_PACKAGES_URI="", TOOLKIT_CHECKPOINT_URI=f"file://{snapshots.folder}")

    (stored,) = snapshots.folder.rglob("*.packages.gz")
    assert stored.parent == snapshots.folder / "hosts/packages", done


@pytest.mark.parametrize(
    ("place", "status", "words"),
    [
        ("bucket/key", 78, "TOOLKIT_PACKAGES_URI: expected s3://BUCKET/KEY, "),
        ("file:///snapshots/../x", 78, "TOOLKIT_PACKAGES_URI: expected a key without empty parts"),
        ("file:///proc/nowhere", 0, "the packages could not be stored for later starts: file:///proc/nowhere/"),
        ("s3://bucket/key", 0, "pip installs the packages, and they are not stored"),
    ],
)
def test_a_place_that_cannot_be_used(snapshots: Kept, place: str, status: int, words: str) -> None:
    nobody = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"}

    done = snapshots.start(TOOLKIT_PACKAGES_URI=place, TOOLKIT_STORAGE_TIMEOUT_S="1", AWS_REGION="x", **nobody)

    assert done.status == status, done
    assert words in done.log


def test_a_stop_while_storage_does_not_answer_ends_the_job(snapshots: Kept) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        keys = {"AWS_ENDPOINT_URL_S3": endpoint, "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"}
        environ = snapshots.environ(TOOLKIT_PACKAGES_URI="s3://bucket/key", **keys)
        with live(snapshots.image.base, command=snapshots.image.command, **environ) as running:
            connection, _ = silent.accept()
            running.signal()
            done = running.end()
        connection.close()

    assert done.status == 143, done
    assert "Installing collected packages" not in done.log
