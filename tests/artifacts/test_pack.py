import os
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from toolkit.artifacts.pack import pack
from toolkit.errors import PlatformError
from toolkit.log import Log


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "z" / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "weights.pt").write_bytes(b"weights" * 1000)
    (folder / "a.txt").write_text("a")
    (folder / "z" / "deep" / "b.txt").write_text("b")
    (folder / "latest").symlink_to("weights.pt")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def names(archive: Path) -> list[str]:
    with tarfile.open(archive, "r:gz") as tar:
        return tar.getnames()


def test_the_content_lies_at_the_top_in_order(model: Path, tmp_path: Path) -> None:
    archive = tmp_path / "out" / "model.tar.gz"

    size = pack(model, archive)

    assert size == archive.stat().st_size
    assert names(archive) == ["a.txt", "empty", "latest", "run.sh", "weights.pt", "z", "z/deep", "z/deep/b.txt"]
    assert [path.name for path in archive.parent.iterdir()] == ["model.tar.gz"]


def test_tar_gives_back_what_was_packed(model: Path, tmp_path: Path) -> None:
    pack(model, tmp_path / "model.tar.gz")
    (tmp_path / "back").mkdir()

    subprocess.run(["tar", "-xzf", tmp_path / "model.tar.gz", "-C", tmp_path / "back"], check=True)

    assert subprocess.run(["diff", "-r", "--no-dereference", model, tmp_path / "back"]).returncode == 0
    assert os.access(tmp_path / "back" / "run.sh", os.X_OK)


def test_the_same_files_give_the_same_bytes(model: Path, tmp_path: Path) -> None:
    pack(model, tmp_path / "first.tar.gz")
    pack(model, tmp_path / "second.tar.gz")

    first = (tmp_path / "first.tar.gz").read_bytes()
    assert first == (tmp_path / "second.tar.gz").read_bytes()
    assert first[4:8] == bytes(4)  # gzip's own time (RFC 1952), in whole seconds: the two were made in the same one.


def test_sockets_and_fifos_are_left_out_and_said(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(model / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(model / "socket"))
        pack(model, tmp_path / "model.tar.gz", Log())

    assert not {"fifo", "socket"} & set(names(tmp_path / "model.tar.gz"))
    assert capfd.readouterr().err.splitlines() == [
        f"[toolkit] warning: {model}/{name}: expected a file, folder or link; model.tar.gz does not contain it"
        for name in ("fifo", "socket")
    ]


def test_an_archive_within_its_own_folder_leaves_itself_out(model: Path) -> None:
    pack(model, model / "model.tar.gz")
    pack(model, model / "model.tar.gz")

    assert "a.txt" in names(model / "model.tar.gz")
    assert not [name for name in names(model / "model.tar.gz") if name.startswith("model.tar.gz")]


def test_an_empty_folder_gives_an_empty_archive(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    pack(tmp_path / "empty", tmp_path / "model.tar.gz")

    assert names(tmp_path / "model.tar.gz") == []


def test_a_failure_keeps_the_older_archive_and_leaves_no_piece(model: Path, tmp_path: Path) -> None:
    archive = tmp_path / "model.tar.gz"
    pack(model, archive)
    whole = archive.read_bytes()

    with pytest.raises(PlatformError, match=r"cannot pack .*/absent: No such file or directory"):
        pack(tmp_path / "absent", archive)

    assert archive.read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.tar.gz"]


def test_a_full_disk_is_said_with_the_archives_name(model: Path, tmp_path: Path) -> None:
    (model / "noise").write_bytes(os.urandom(300_000))
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "x", small], capture_output=True).returncode:
        pytest.skip("needs to be allowed to mount a tmpfs")

    try:
        with pytest.raises(PlatformError, match=rf"^{small}/model\.tar\.gz: cannot pack .*No space left on device"):
            pack(model, small / "model.tar.gz")

        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)
