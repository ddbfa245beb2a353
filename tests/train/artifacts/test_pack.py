import errno
import gzip
import io
import os
import re
import socket
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.folders import as_ordinary_user, make_levels
from toolkit import folders
from toolkit.errors import PlatformError
from toolkit.log import Log
from toolkit.train.artifacts import members
from toolkit.train.artifacts import pack as pack_module
from toolkit.train.artifacts.members import Origin
from toolkit.train.artifacts.pack import pack, write


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

    packed = pack(model, archive)

    assert (packed.size_bytes, packed.faults) == (archive.stat().st_size, ())
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


def test_a_failure_keeps_the_older_archive(model: Path, tmp_path: Path) -> None:
    archive = tmp_path / "model.tar.gz"
    pack(model, archive)
    content = archive.read_bytes()

    archive.with_name("model.tar.gz.part").mkdir()
    with pytest.raises(PlatformError, match=r"/model\.tar\.gz: model\.tar\.gz could not be packed: Is a directory"):
        pack(model, archive)
    archive.with_name("model.tar.gz.part").rmdir()

    assert archive.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.tar.gz"]


def test_a_full_disk_is_said_with_the_archives_name(model: Path, tmp_path: Path) -> None:
    (model / "noise").write_bytes(os.urandom(300_000))
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "x", small], capture_output=True).returncode:
        pytest.skip("needs to be allowed to mount a tmpfs")

    try:
        with pytest.raises(
            PlatformError,
            match=rf"^{small}/model\.tar\.gz: model\.tar\.gz could not be packed: No space left on device",
        ):
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

    sizes = {write(model, sink, "model.tar.gz", threads=threads).size_bytes for threads, sink in sinks.items()}

    (complete,) = {sink.whole for sink in sinks.values()}
    assert sizes == {len(complete)}
    member = zlib.decompressobj(31)  # One member only, with its checksum and length.
    with tarfile.open(fileobj=io.BytesIO(member.decompress(complete))) as tar:
        for name in ("log", "noise"):
            content = tar.extractfile(name)
            assert content is not None and content.read() == (model / name).read_bytes()
    assert member.eof and not member.unused_data


def test_the_size_is_that_of_pythons_gzip_within_2_percent(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    sources = sorted(Path(__file__).resolve().parents[3].joinpath("toolkit").rglob("*.py"))
    (folder / "text").write_bytes(b"".join(path.read_bytes() for path in sources))
    with tarfile.open(tmp_path / "theirs.tar.gz", "w:gz", compresslevel=6) as tar:
        tar.add(folder / "text", "text")

    size = pack(folder, tmp_path / "model.tar.gz").size_bytes

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
                item.name: (item.mtime, item.mode, item.uid, item.gid, item.uname, item.gname, item.type, item.linkname)
                for item in tar.getmembers()
                if item.name
            }

    assert facts("model.tar.gz") == facts("theirs.tar.gz")


@pytest.mark.parametrize(
    ("new_bytes", "fault"),
    [
        (1 << 20, r"became shorter while it was packed: in the archive its last [\d,]+ of 4,194,304 bytes are zeros"),
        (5 << 20, r"became longer while it was packed: the archive has its first 4,194,304 bytes"),
    ],
)
def test_a_file_that_changes_its_size_costs_no_other_file(model: Path, new_bytes: int, fault: str) -> None:
    noise = model / "noise"
    noise.write_bytes(os.urandom(4 << 20))
    sink = Chunks(lambda got: os.truncate(noise, new_bytes) if 100_000 < got < 1 << 20 else None)

    packed = write(model, sink, "model.tar.gz", threads=1)

    assert [bool(re.fullmatch(rf"{noise}: {fault}", sentence)) for sentence in packed.faults] == [True]
    with tarfile.open(fileobj=io.BytesIO(sink.whole)) as tar:
        assert tar.getmember("noise").size == 4 << 20
        assert tar.getnames()[-1] == "z/deep/b.txt"


@pytest.mark.parametrize("good_bytes", [0, pack_module.READ_BYTES])
def test_a_file_that_cannot_be_read_costs_no_other_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good_bytes: int
) -> None:
    (model / "noise").write_bytes(os.urandom(1 << 20))
    (model / "same").hardlink_to(model / "noise")
    bad, read = (model / "noise").stat().st_ino, os.read

    def failing(fd: int, size: int) -> bytes:
        if os.fstat(fd).st_ino == bad and os.lseek(fd, 0, os.SEEK_CUR) >= good_bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, size)

    monkeypatch.setattr(os, "read", failing)
    packed = pack(model, tmp_path / "model.tar.gz")

    with tarfile.open(tmp_path / "model.tar.gz") as tar:
        if good_bytes:
            content = tar.extractfile("noise")
            assert content is not None and content.read(good_bytes) == (model / "noise").read_bytes()[:good_bytes]
            assert packed.faults == (
                f"{model}/noise: cannot be read to its end (Input/output error): "
                "in the archive its last 786,432 of 1,048,576 bytes are zeros",
            )
        else:
            assert "noise" not in tar.getnames()
            assert packed.faults == tuple(
                f"{model}/{name}: cannot be read (Input/output error); model.tar.gz does not contain it"
                for name in ("noise", "same")
            )
        assert tar.getnames()[-1] == "z/deep/b.txt"


def test_an_ordinary_user_gets_all_but_what_he_cannot_read(model: Path, tmp_path: Path) -> None:
    (model / "private").write_text("private")
    (model / "closed").mkdir()
    (model / "closed" / "below").write_text("below")
    (model / "private").chmod(0)
    (model / "closed").chmod(0)
    try:
        completed = as_ordinary_user(
            "from pathlib import Path\n"
            "from toolkit.train.artifacts.pack import pack; from toolkit.log import Log\n"
            "print(len(pack(Path(sys.argv[1]), Path(sys.argv[2]), Log()).faults))",
            model,
            tmp_path / "out" / "model.tar.gz",
        )
    finally:
        (model / "closed").chmod(0o755)

    assert (completed.returncode, completed.stdout) == (0, "2\n"), completed.stderr
    assert completed.stderr.splitlines() == [
        f"[toolkit] warning: {model}/{name}: cannot be read (Permission denied); model.tar.gz does not contain it"
        for name in ("closed", "private")
    ]
    assert {"closed", "weights.pt", "z/deep/b.txt"} <= set(names(tmp_path / "out" / "model.tar.gz"))


class TestLinks:
    """An archive is unpacked elsewhere, by `extractall(filter="data")`, which refuses links that lead outside."""

    @staticmethod
    def unpacked(content: Path | list[Origin], tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
        packed = pack(content, tmp_path / "model.tar.gz")
        with tarfile.open(tmp_path / "model.tar.gz") as tar:
            tar.extractall(tmp_path / "back", filter="data")
        return tmp_path / "back", packed.faults

    @pytest.mark.parametrize(
        ("name", "target", "expected"),
        [
            ("best", "{model}/z/deep/b.txt", "z/deep/b.txt"),
            ("z/deep/up", "{model}/weights.pt", "../../weights.pt"),
            ("z/up", "../a.txt", "../a.txt"),
            ("z/around", "../../model/a.txt", "../a.txt"),
            ("z/detour", "deep/../../a.txt", "../a.txt"),
            ("z/folder", "{model}/empty", "../empty"),
            ("z/all", "..", ".."),
            ("top", "{model}", "."),
            ("z/second", "{model}/latest", "../weights.pt"),
            ("in-job", "/opt/ml/model/a.txt", "a.txt"),
        ],
    )
    def test_to_inside_become_relative(
        self, model: Path, tmp_path: Path, name: str, target: str, expected: str
    ) -> None:
        base = tmp_path / "ml"
        base.mkdir()
        (base / "model").symlink_to(model)
        (model / name).symlink_to(target.format(model=model))

        back, faults = self.unpacked([Origin(folder=model, base=base)], tmp_path)

        assert (str((back / name).readlink()), faults) == (expected, ())
        assert (back / name).exists()

    def test_to_outside_become_the_files(self, model: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        (outside / "checkpoint").mkdir(parents=True)
        (outside / "checkpoint" / "part").write_text("part")
        (outside / "checkpoint" / "first").symlink_to(outside / "checkpoint" / "part")
        (outside / "checkpoint" / "back").symlink_to(model / "a.txt")
        (outside / "checkpoint" / "never").symlink_to(".")
        (outside / "hop").symlink_to("checkpoint/part")
        (model / "folder").symlink_to(outside / "checkpoint")
        (model / "file").symlink_to("../outside/hop")

        back, faults = self.unpacked(model, tmp_path)

        assert faults == ()
        assert not (back / "folder").is_symlink() and not (back / "file").is_symlink()
        assert (back / "file").read_text() == (back / "folder" / "part").read_text() == "part"
        assert str((back / "folder" / "first").readlink()) == "part"
        assert str((back / "folder" / "back").readlink()) == "../a.txt"
        assert str((back / "folder" / "never").readlink()) == "."

    @pytest.mark.parametrize(
        ("target", "reason", "stays"),
        [
            ("gone", "is a link to gone, where nothing is", True),
            ("/gone/away", "is a link to /gone/away, where nothing is", False),
            ("../gone", "is a link to ../gone, where nothing is", False),
            ("bad", "is a link to bad, which cannot be read (Too many levels of symbolic links)", False),
            ("/", "is a link to /, a folder that contains the packed one", False),
            ("..", "is a link to .., a folder that contains the packed one", False),
            ("/proc/self", "is a link to /proc/self, which is no file but the kernel's", False),
            ("/dev/zero", "is a link to /dev/zero, which is neither file nor folder", False),
            ("a.txt/below", "is a link to a.txt/below, which cannot be read (Not a directory)", False),
        ],
    )
    def test_that_lead_nowhere_are_named(
        self, model: Path, tmp_path: Path, target: str, reason: str, stays: bool
    ) -> None:
        (model / "bad").symlink_to(target)

        back, faults = self.unpacked(model, tmp_path)

        assert faults == (
            f"{model}/bad: {reason}; model.tar.gz {'contains the link' if stays else 'does not contain it'}",
        )
        assert os.path.lexists(back / "bad") == stays
        assert (back / "weights.pt").exists()

    def test_to_more_than_the_disk_has_free_are_named(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "sparse").mkdir()
        with (tmp_path / "sparse" / "file").open("wb") as file:
            file.truncate(1 << 42)
        (model / "folder").symlink_to("../sparse")
        (model / "file").symlink_to("../sparse/file")

        _, faults = self.unpacked(model, tmp_path)

        assert len(faults) == 2 and all("bytes that the archive's disk has free" in fault for fault in faults)

    def test_to_folders_of_very_many_files_are_named(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(members, "LINKED_ENTRIES", 5)
        for folder in ("one", "two"):
            (tmp_path / folder).mkdir()
            for number in range(3):
                (tmp_path / folder / str(number)).touch()
            (model / folder).symlink_to(f"../{folder}")

        back, faults = self.unpacked(model, tmp_path)

        assert (back / "one" / "2").is_file() and not (back / "two").exists()
        assert len(faults) == 1 and "linked folders may have 5 entries together" in faults[0]

    def test_of_a_container_lead_to_its_own_folders_alone(self, model: Path, tmp_path: Path) -> None:
        base, checkpoints = tmp_path / "ml", tmp_path / "kept"
        checkpoints.mkdir()
        base.mkdir()
        (checkpoints / "best").write_text("best")
        (base / "input").write_text("input")
        targets = {"best": "/opt/ml/checkpoints/best", "input": "/opt/ml/input", "host's": "/etc/passwd"}
        for name, target in targets.items():
            (model / name).symlink_to(target)

        back, faults = self.unpacked(
            [Origin(folder=model, base=base, checkpoints=checkpoints, contained=True)], tmp_path
        )

        assert (back / "best").read_text() == "best"
        assert (back / "input").read_text() == "input"
        assert faults == (
            f"{model}/host's: is a link to /etc/passwd, where nothing is; model.tar.gz does not contain it",
        )


def test_a_thousand_levels_are_packed_as_far_as_paths_reach(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "z").write_text("z")
    make_levels(tmp_path / "model", ("d",) * 1100 + ("e" * 200,) * 20)
    try:
        packed = pack(tmp_path / "model", tmp_path / "model.tar.gz")
    finally:
        folders.remove(tmp_path / "model" / "d")

    assert len(packed.faults) == 1 and "File name too long" in packed.faults[0]
    assert len(names(tmp_path / "model.tar.gz")) > 1100
    assert names(tmp_path / "model.tar.gz")[-1] == "z"


def test_many_faults_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    for number in range(pack_module.MOST_FAULTS + 7):
        os.mkfifo(tmp_path / "model" / f"{number:03}")

    packed = pack(tmp_path / "model", tmp_path / "model.tar.gz", Log())

    assert (len(packed.faults), packed.more_faults) == (pack_module.MOST_FAULTS, 7)
    assert capfd.readouterr().err.splitlines()[-1] == (
        "[toolkit] warning: model.tar.gz: the same of 7 more files or folders"
    )


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
        "import resource, sys; from pathlib import Path; from toolkit.train.artifacts.pack import write, pack;"
        "file = open('/dev/null', 'wb'); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "write(Path(sys.argv[1]), file, 'model.tar.gz', threads=4);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )

    completed = subprocess.run([sys.executable, "-c", program, tmp_path / "model"], capture_output=True, check=True)

    assert int(completed.stdout) < 24 << 10  # KiB
