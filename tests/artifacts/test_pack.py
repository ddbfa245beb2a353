import errno
import gzip
import io
import os
import socket
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkit.artifacts import pack as pack_module
from toolkit.artifacts.pack import pack, write
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


class Chunks:
    """A sink that keeps what it gets, and calls *on_write* with the number of bytes before each."""

    def __init__(self, on_write: Callable[[int], None] = lambda got: None) -> None:
        self.blocks: list[bytes] = []
        self._on_write = on_write

    def write(self, block: bytes) -> None:
        self._on_write(sum(map(len, self.blocks)))
        self.blocks.append(block)

    @property
    def whole(self) -> bytes:
        return b"".join(self.blocks)


def test_any_number_of_threads_gives_the_same_bytes_of_one_gzip_member(model: Path) -> None:
    (model / "log").write_bytes(b"".join(b"step %d: loss %d\n" % (n, n * n) for n in range(100_000)))
    (model / "noise").write_bytes(os.urandom(1_000_001))
    sinks = {threads: Chunks() for threads in (1, 2, 7)}

    sizes = {write(model, sink, "model.tar.gz", threads=threads) for threads, sink in sinks.items()}

    (whole,) = {sink.whole for sink in sinks.values()}
    assert sizes == {len(whole)}
    member = zlib.decompressobj(31)  # One member only, with its checksum and length.
    with tarfile.open(fileobj=io.BytesIO(member.decompress(whole))) as tar:
        for name in ("log", "noise"):
            content = tar.extractfile(name)
            assert content is not None and content.read() == (model / name).read_bytes()
    assert member.eof and not member.unused_data


def test_the_size_is_that_of_pythons_gzip_within_2_percent(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    sources = sorted(Path(__file__).resolve().parents[2].joinpath("toolkit").rglob("*.py"))
    (folder / "text").write_bytes(b"".join(path.read_bytes() for path in sources))
    with tarfile.open(tmp_path / "theirs.tar.gz", "w:gz", compresslevel=6) as tar:
        tar.add(folder / "text", "text")

    size = pack(folder, tmp_path / "model.tar.gz")

    assert size <= 1.02 * (tmp_path / "theirs.tar.gz").stat().st_size


def test_a_file_with_two_names_is_packed_once(model: Path, tmp_path: Path) -> None:
    (model / "z" / "same.pt").hardlink_to(model / "weights.pt")

    pack(model, tmp_path / "model.tar.gz")

    with tarfile.open(tmp_path / "model.tar.gz") as tar:
        assert (tar.getmember("z/same.pt").islnk(), tar.getmember("z/same.pt").linkname) == (True, "weights.pt")


def test_names_times_and_modes_are_as_tarfile_has_them(model: Path, tmp_path: Path) -> None:
    (model / "a long name, ".ljust(120, "x")).write_text("long")
    (model / os.fsdecode(b"not UTF-8 \xff")).write_text("bytes")
    os.utime(model / "a.txt", ns=(0, 1_700_000_000_123_456_789))
    with tarfile.open(tmp_path / "theirs.tar.gz", "w:gz") as tar:
        tar.add(model, arcname="")

    pack(model, tmp_path / "model.tar.gz")

    def facts(archive: str) -> dict[str, tuple[object, ...]]:
        with tarfile.open(tmp_path / archive) as tar:
            return {
                each.name: (each.mtime, each.mode, each.uid, each.gid, each.uname, each.gname, each.type, each.linkname)
                for each in tar.getmembers()
                if each.name
            }

    assert facts("model.tar.gz") == facts("theirs.tar.gz")


def test_a_file_that_becomes_shorter_is_said_with_its_name(model: Path) -> None:
    noise = model / "noise"
    noise.write_bytes(os.urandom(4 << 20))

    with pytest.raises(OSError, match=rf"{noise} became shorter while it was packed: expected 4194304 bytes, found"):
        write(model, Chunks(lambda got: os.truncate(noise, 0) if got > 100_000 else None), "model.tar.gz", threads=1)


def test_a_sink_that_fails_gets_no_end(model: Path) -> None:
    (model / "noise").write_bytes(os.urandom(4 << 20))

    def full(got: int) -> None:
        if got > 1 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")

    sink = Chunks(full)
    with pytest.raises(OSError, match="No space left"):
        write(model, sink, "model.tar.gz", threads=2)

    with pytest.raises(EOFError):
        gzip.decompress(sink.whole)


def test_a_large_file_is_packed_with_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with (tmp_path / "model" / "weights").open("wb") as file:
        file.write(os.urandom(1 << 20))
        file.truncate(96 << 20)
    program = (
        "import resource, sys; from pathlib import Path; from toolkit.artifacts.pack import write, pack;"
        "file = open('/dev/null', 'wb'); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "write(Path(sys.argv[1]), file, 'model.tar.gz', threads=4);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )

    said = subprocess.run([sys.executable, "-c", program, tmp_path / "model"], capture_output=True, check=True)

    assert int(said.stdout) < 24 << 10  # KiB


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), max_size=120)


@given(
    name=TEXTS,
    link=TEXTS,
    owner=TEXTS,
    kind=st.sampled_from((tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)),
    number=st.integers(0, 8**8),
    size=st.integers(0, 8**12),
    mtime=st.floats(-2e9, 8.0**12) | st.floats(1.7e9, 1.9e9) | st.integers(0, 10**10).map(float),
)
@example(name="a" * 99, link="", owner="root", kind=tarfile.DIRTYPE, number=0, size=0, mtime=1795747660.5)
@example(name="a" * 100, link="", owner="root", kind=tarfile.DIRTYPE, number=0, size=0, mtime=1795747660.5)
def test_headers_are_those_of_tarfile(
    name: str, link: str, owner: str, kind: bytes, number: int, size: int, mtime: float
) -> None:
    info = tarfile.TarInfo(name)
    info.linkname, info.uname, info.gname, info.type = link, owner, owner, kind
    info.uid, info.gid, info.size, info.mtime, info.mode = number, number, size, mtime, 0o750
    expected = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")

    assert pack_module._Headers().written(info) == expected
