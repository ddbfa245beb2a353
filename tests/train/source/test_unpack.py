import bz2
import gzip
import io
import lzma
import os
import shutil
import socket
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkit.errors import InternalError, PlatformError, UserError
from toolkit.train.source.unpack import is_tar, unpack


def file(name: str, content: bytes = b"x", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), mode, 1_600_000_000
    return member, content


def other(name: str, kind: bytes, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, 0o755
    return member, b""


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return other(name, tarfile.DIRTYPE)


def symlink(name: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return other(name, tarfile.SYMTYPE, to)


def hardlink(name: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return other(name, tarfile.LNKTYPE, to)


def tar_of(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "in" / "sourcedir.tar.gz"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "in" / "code"


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path) -> None:
    """The targets of an escaping member: a neighbour of the target, and one two floors up."""
    (tmp_path / "in").mkdir()
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "in" / "victim").write_text("untouched")


def below(place: Path) -> set[str]:
    return {path.relative_to(place).as_posix() for path in place.rglob("*")}


ORDINARY = (
    folder("./"),
    file("./train.py", b"print(1)\n"),
    folder("pkg"),
    file("pkg/__init__.py", b""),
    file("pkg/deep/er/module.py", b"x = 1\n" * 100_000),
    symlink("latest.py", "train.py"),
    symlink("pkg/up.py", "../train.py"),
    hardlink("same.py", "train.py"),
)


@pytest.mark.parametrize("pressed", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["tar", "gz", "bz2", "xz"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_ordinary_archive_is_extracted_whatever_its_compression(
    archive: Path, into: Path, pressed: Callable[[bytes], bytes], form: int
) -> None:
    archive.write_bytes(pressed(tar_of(*ORDINARY, form=form)))

    names = unpack(archive, into)

    assert names == (
        "train.py",
        "pkg/__init__.py",
        "pkg/deep/er/module.py",
        "latest.py",
        "pkg/up.py",
        "same.py",
    )
    assert (into / "train.py").read_bytes() == b"print(1)\n"
    assert (into / "pkg/deep/er/module.py").read_bytes() == b"x = 1\n" * 100_000
    assert (into / "latest.py").readlink() == Path("train.py")
    assert (into / "pkg/up.py").read_bytes() == b"print(1)\n"
    assert (into / "same.py").read_bytes() == b"print(1)\n"
    assert not (into / "same.py").is_symlink()


def test_what_tar_itself_packs_from_a_folder_comes_back(archive: Path, into: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a/b").mkdir(parents=True)
    (source / "a/b/run.sh").write_text("#!/bin/sh\n")
    (source / "a/b/run.sh").chmod(0o755)
    (source / ("ä" * 120 + ".py")).write_text("long name")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source, arcname=".")

    unpack(archive, into)

    assert below(into) == below(source)
    assert os.access(into / "a/b/run.sh", os.X_OK)


HOSTILE = {
    "an absolute file": [file("/tmp/evil-of-the-toolkit-tests")],
    "an absolute folder": [folder("/tmp/evil-of-the-toolkit-tests")],
    "dots in front": [file("../victim")],
    "dots within": [file("a/../../victim")],
    "dots that would stay inside": [file("a/../b")],
    "a folder outside": [folder("../evil")],
    "a file below a folder outside": [file("../evil/file")],
    "an absolute symlink": [symlink("link", "/etc/passwd")],
    "a symlink to the parent": [symlink("link", "..")],
    "a symlink to a neighbour": [symlink("a/link", "../../victim")],
    "a symlink that leaves and comes back": [symlink("link", "../code/train.py"), file("train.py")],
    "a file through a symlink out": [symlink("out", ".."), file("out/victim")],
    "a file through a symlink within": [folder("real"), symlink("way", "real"), file("way/file")],
    "a folder through a symlink within": [folder("real"), symlink("way", "real"), folder("way/sub")],
    "a symlink through a symlink": [folder("real"), symlink("way", "real"), symlink("way/link", "x")],
    "a hard link through a symlink": [file("f"), folder("real"), symlink("way", "real"), hardlink("way/f", "f")],
    # dir/.. is the root of the tree as long as dir is a folder, and outside once dir is a link to the root.
    "two symlinks that only together lead out": [symlink("dir", "."), symlink("link", "dir/../victim")],
    "the same, the other way round": [symlink("link", "dir/../victim"), symlink("dir", ".")],
    "a chain of symlinks": [symlink("a/b/c", ".."), symlink("a/d", "b/c/../.."), file("a/b/file")],
    "a symlink over itself": [symlink("a", "b"), symlink("b", "a")],
    "a symlink to nothing": [symlink("a", "")],
    "a hard link to an absolute name": [hardlink("passwd", "/etc/passwd")],
    "a hard link to a neighbour": [hardlink("mine", "../victim")],
    "a hard link to nothing": [hardlink("mine", "absent")],
    "a hard link through a symlink out": [symlink("out", ".."), hardlink("mine", "out/victim")],
    "a hard link that moves a symlink": [symlink("a/link", "../x"), hardlink("link", "a/link")],
    "a FIFO": [other("pipe", tarfile.FIFOTYPE)],
    "a character device": [other("null", tarfile.CHRTYPE)],
    "a block device": [other("disk", tarfile.BLKTYPE)],
    "an unknown kind": [other("what", b"Z")],
    "a file over a folder": [folder("a"), file("a")],
    "a file over a folder with files": [file("a/b"), file("a")],
    "a symlink over a folder": [file("a/b"), symlink("a", "c")],
    "a file below a file": [file("a"), file("a/b")],
    "a file without a name": [file("./")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_archive_is_refused_by_member_and_changes_nothing_outside(
    archive: Path, into: Path, tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    archive.write_bytes(gzip.compress(tar_of(file("train.py"), *members)))

    with pytest.raises(UserError) as caught:
        unpack(archive, into)

    assert caught.value.where == str(archive)
    assert any(repr(member.name) in str(caught.value) for member, _ in members)
    assert {name for name in below(tmp_path) if not name.startswith("in/code")} == {
        "in",
        "victim",
        "in/victim",
        "in/sourcedir.tar.gz",
    }
    assert (tmp_path / "victim").read_text() == "untouched"
    assert (tmp_path / "in/victim").read_text() == "untouched"
    assert not Path("/tmp/evil-of-the-toolkit-tests").exists()
    assert not any(path.is_symlink() for path in into.rglob("*"))


@pytest.mark.parametrize(
    ("stored_mode", "expected"), [(0o7777, 0o755), (0o4755, 0o755), (0o2664, 0o644), (0o1600, 0o600), (0, 0o600)]
)
def test_setuid_setgid_and_sticky_bits_and_others_writing_are_stripped(
    archive: Path, into: Path, stored_mode: int, expected: int
) -> None:
    member = folder("dir")
    member[0].mode = 0o7777
    archive.write_bytes(tar_of(file("tool", mode=stored_mode), member))

    unpack(archive, into)

    assert stat.S_IMODE((into / "tool").stat().st_mode) == expected
    assert stat.S_IMODE((into / "dir").stat().st_mode) & 0o7022 == 0


def test_files_belong_to_the_process_and_keep_their_time(archive: Path, into: Path) -> None:
    member = file("train.py")
    member[0].uid = member[0].gid = 12345
    archive.write_bytes(tar_of(member))

    unpack(archive, into)

    assert (into / "train.py").stat().st_uid == os.geteuid()
    assert (into / "train.py").stat().st_mtime == 1_600_000_000


def test_a_later_member_of_the_same_name_wins_and_never_writes_through_the_earlier(archive: Path, into: Path) -> None:
    archive.write_bytes(
        tar_of(
            file("train.py", b"old"),
            file("train.py", b"new"),
            file("kept", b"kept"),
            symlink("link", "kept"),
            file("link", b"a file now"),
            symlink("way", "kept"),
            folder("way"),
            file("way/in", b"a folder now"),
        )
    )

    unpack(archive, into)

    assert (into / "train.py").read_bytes() == b"new"
    assert (into / "kept").read_bytes() == b"kept"
    assert (into / "link").read_bytes() == b"a file now"
    assert (into / "way/in").read_bytes() == b"a folder now"


def test_a_hard_link_is_a_file_of_its_own(archive: Path, into: Path) -> None:
    archive.write_bytes(tar_of(file("a", b"content", mode=0o755), hardlink("b", "a"), hardlink("a", "a")))

    unpack(archive, into)

    assert (into / "b").read_bytes() == (into / "a").read_bytes() == b"content"
    assert (into / "b").stat().st_ino != (into / "a").stat().st_ino
    assert os.access(into / "b", os.X_OK)


def test_a_link_to_nothing_within_the_tree_is_kept(archive: Path, into: Path) -> None:
    archive.write_bytes(tar_of(symlink("a/later", "../data/not-yet")))

    unpack(archive, into)

    assert (into / "a/later").readlink() == Path("../data/not-yet")


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("train.py", "")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "an empty file"),
        (b"import torch\n" * 100, "a file that begins b'import torch\\nimp'"),
        (zipped(), "a zip file"),
        (gzip.compress(b"import torch\n" * 100, mtime=0), "gzip data"),
        (b"\x1f\x8bgarbage", "gzip data"),
    ],
)
def test_what_is_no_tar_is_named_as_what_it_is(archive: Path, into: Path, content: bytes, reason: str) -> None:
    archive.write_bytes(content)

    with pytest.raises(UserError, match=r"expected a tar archive \(plain, gzip, bzip2 or xz\), found") as caught:
        unpack(archive, into)

    assert reason in caught.value.message
    assert not is_tar(archive)


NOISE = b"".join(str(number * number).encode() for number in range(3000))
WHOLE = tar_of(file("a", NOISE), file("b", NOISE), file("c", NOISE))
STRIDE = 512 + -(-len(NOISE) // 512) * 512


@pytest.mark.parametrize("pressed", [gzip.compress, bz2.compress, lzma.compress], ids=["gz", "bz2", "xz"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 1.0])
def test_a_truncated_archive_is_said_to_be_cut_short(
    archive: Path, into: Path, pressed: Callable[[bytes], bytes], part: float
) -> None:
    packed = pressed(WHOLE)
    archive.write_bytes(packed[: int(len(packed) * part) - 4])

    with pytest.raises(UserError, match=r"damaged or cut short|found (gzip|bzip2|xz) data"):
        unpack(archive, into)


# In a header, in content, in padding, of the first, second and third member.
@pytest.mark.parametrize(
    "length", [100, 600, STRIDE - 1, STRIDE + 100, STRIDE + 600, 3 * STRIDE - 3000, 3 * STRIDE - 1]
)
def test_a_truncated_plain_tar_is_refused_where_tarfile_would_take_it_for_whole(
    archive: Path, into: Path, length: int
) -> None:
    archive.write_bytes(WHOLE[:length])

    with pytest.raises(UserError):
        unpack(archive, into)


def test_a_broken_header_between_members_is_no_end_of_the_archive(archive: Path, into: Path) -> None:
    broken = bytearray(WHOLE)
    second = WHOLE.index(b"b\0\0\0", 512)
    broken[second : second + 8] = b"\xff" * 8
    archive.write_bytes(gzip.compress(bytes(broken)))

    with pytest.raises(UserError, match=r"broken header before byte \d+"):
        unpack(archive, into)


def test_a_flipped_byte_that_only_the_checksum_shows_is_found(archive: Path, into: Path) -> None:
    stored = bytearray(gzip.compress(WHOLE, compresslevel=0))
    stored[stored.index(NOISE[1000:1100])] ^= 1
    archive.write_bytes(stored)

    with pytest.raises(UserError, match="CRC check failed"):
        unpack(archive, into)


def test_an_archive_without_the_end_mark_is_whole(archive: Path, into: Path) -> None:
    archive.write_bytes(gzip.compress(WHOLE[: 3 * STRIDE]))

    names = unpack(archive, into)

    assert names == ("a", "b", "c")


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 8192, 4 * 8192, (1 << 20) + 1])
def test_reading_never_goes_back_which_would_decompress_anew(archive: Path, into: Path, size: int) -> None:
    archive.write_bytes(gzip.compress(tar_of(*(file(f"f{number}", bytes(size)) for number in range(5)))))

    names = unpack(archive, into)  # _Bytes.seek raises on a way back.

    assert len(names) == 5
    assert {(into / name).stat().st_size for name in names} == {size}


@pytest.mark.skipif(not shutil.which("tar"), reason="needs GNU tar")
@pytest.mark.parametrize("form", ["--format=gnu", "--sparse-version=0.1", "--sparse-version=1.0"])
def test_sparse_files_come_back_whole(archive: Path, into: Path, tmp_path: Path, form: str) -> None:
    holes = tmp_path / "holes"
    with holes.open("wb") as content:
        content.seek(3_000_000)
        content.write(b"middle")
        content.truncate(5_000_000)
    pax = ["--format=posix"] if "sparse" in form else []
    subprocess.run(["tar", "-S", *pax, form, "-czf", archive, "-C", tmp_path, "holes"], check=True)

    unpack(archive, into)

    assert (into / "holes").read_bytes() == holes.read_bytes()


@pytest.mark.skipif(not shutil.which("tar"), reason="needs GNU tar")
@pytest.mark.parametrize("form", ["--format=gnu", "--sparse-version=0.1", "--sparse-version=1.0"])
def test_the_holes_of_sparse_files_stay_holes(archive: Path, into: Path, tmp_path: Path, form: str) -> None:
    with (tmp_path / "holes").open("wb") as content:
        content.seek(900_000_000)
        content.write(b"middle")
        content.truncate(1 << 30)
    pax = ["--format=posix"] if "sparse" in form else []
    subprocess.run(["tar", "-S", *pax, form, "-czf", archive, "-C", tmp_path, "holes"], check=True)

    unpack(archive, into)

    status = (into / "holes").stat()
    assert (status.st_size, status.st_blocks * 512 < 1 << 20) == (1 << 30, True)


@pytest.mark.parametrize("kind", ["sparse", "plain"])
def test_a_file_larger_than_the_disks_room_is_refused_before_it_is_written(
    archive: Path, into: Path, kind: str
) -> None:
    size = 1 << 50
    member = tarfile.TarInfo("bomb")
    if kind == "sparse":
        member.pax_headers = {
            "GNU.sparse.map": f"{size - 1},1",
            "GNU.sparse.size": str(size),
            "GNU.sparse.numblocks": "1",
        }
        member.size = 1
        archive.write_bytes(gzip.compress(tar_of((member, b"x"))))
    else:
        member.size = size
        archive.write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(4096)))

    refused = UserError if kind == "sparse" else PlatformError
    with pytest.raises(
        refused, match=r"'bomb' (is sparse and )?has 1,125,899,906,842,624 bytes, the disk of .* has .* free"
    ):
        unpack(archive, into)

    assert below(into) == set()


def test_extended_headers_without_measure_are_damage(archive: Path, into: Path) -> None:
    """tarfile reads an extended header into memory at once, and one after the other by recursion."""
    huge = tarfile.TarInfo("long")
    huge.type, huge.size = tarfile.XHDTYPE, 1 << 40
    archive.write_bytes(huge.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    with pytest.raises(UserError, match=r"an extended header of 1,099,511,\d{3},\d{3} bytes"):
        unpack(archive, into)

    content = b"11 path=abc"[:10] + b"\n"
    chained = tarfile.TarInfo("x")
    chained.type, chained.size = tarfile.XHDTYPE, len(content)
    block = chained.tobuf(tarfile.GNU_FORMAT) + content.ljust(512, b"\0")
    archive.write_bytes(block * 2_000)
    with pytest.raises(UserError, match=r"damaged|too many extended headers"):
        unpack(archive, into)


def test_backslashes_of_windows_separate_folders(archive: Path, into: Path) -> None:
    members = (
        other("pkg\\", tarfile.DIRTYPE),
        file("empty\\", b""),
        file("train.py"),
        file("pkg\\__init__.py"),
        file("pkg\\sub\\module.py"),
        hardlink("same.py", "pkg\\__init__.py"),
        symlink("pkg\\up.py", "..\\train.py"),
    )
    archive.write_bytes(gzip.compress(tar_of(*members)))

    names = unpack(archive, into)

    assert set(names) == {"train.py", "pkg/__init__.py", "pkg/sub/module.py", "same.py", "pkg/up.py"}
    assert (into / "empty").is_dir()
    assert (into / "pkg" / "up.py").read_bytes() == (into / "same.py").read_bytes() == b"x"


def test_a_backslash_beside_a_slash_is_a_letter(archive: Path, into: Path) -> None:
    archive.write_bytes(tar_of(file("./a\\b.py"), file("pkg/c\\d.py"), symlink("./link", "./a\\b.py")))

    unpack(archive, into)

    assert below(into) == {"a\\b.py", "pkg", "pkg/c\\d.py", "link"}
    assert (into / "link").read_bytes() == b"x"


@pytest.mark.parametrize(
    "member",
    [
        file("..\\victim"),
        file("pkg\\..\\..\\victim"),
        file("C:\\victim"),
        file("c:\\..\\victim"),
        file("\\victim"),
        file("\\\\server\\share"),
        symlink("link", "..\\victim"),
        symlink("link", "C:\\victim"),
        symlink("link", "\\victim"),
        hardlink("link", "..\\victim"),
    ],
)
def test_backslashes_lead_nowhere_else(
    archive: Path, into: Path, tmp_path: Path, member: tuple[tarfile.TarInfo, bytes]
) -> None:
    archive.write_bytes(tar_of(file("train.py"), member))

    with pytest.raises(UserError, match="leads outside"):
        unpack(archive, into)

    assert (tmp_path / "victim").read_text() == (tmp_path / "in" / "victim").read_text() == "untouched"


@pytest.mark.parametrize(("kind", "reason"), [("fifo", "a FIFO"), ("/dev/zero", "a device"), ("socket", None)])
def test_what_is_no_file_is_refused_without_waiting(archive: Path, into: Path, kind: str, reason: str | None) -> None:
    if kind == "fifo":
        os.mkfifo(archive)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(archive))
    else:
        archive.symlink_to(kind)

    with pytest.raises(UserError if reason else PlatformError, match=reason or "No such device"):
        unpack(archive, into)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "header",
    [
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
        {"GNU.sparse.map": "1,x"},
        {"size": "-5"},
        {"size": "9" * 400},
        {"GNU.sparse.realsize": "600"},
    ],
)
def test_an_extended_header_with_broken_numbers_is_damage(
    archive: Path, into: Path, header: dict[str, str], first: bool
) -> None:
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name in ("broken", "whole") if first else ("whole", "broken"):
            member = tarfile.TarInfo(name)
            member.size = 10
            member.pax_headers = header if name == "broken" else {}
            tar.addfile(member, io.BytesIO(b"print('x')"))

    assert is_tar(archive)
    with pytest.raises(UserError, match="damaged or cut short"):
        unpack(archive, into)


def test_a_name_that_the_file_system_does_not_take_is_the_archives_fault(archive: Path, into: Path) -> None:
    archive.write_bytes(tar_of(file("a/" + "x" * 5000, b"")))

    with pytest.raises(UserError, match=r"of 5002 characters, has a name that this file system does not take"):
        unpack(archive, into)


def test_a_target_that_holds_something_is_not_unpacked_into(archive: Path, into: Path) -> None:
    archive.write_bytes(WHOLE)
    into.mkdir()
    (into / "mine").touch()

    with pytest.raises(InternalError):
        unpack(archive, into)

    assert below(into) == {"mine"}


def test_a_target_that_cannot_be_written_is_the_platforms_fault(archive: Path, tmp_path: Path) -> None:
    archive.write_bytes(WHOLE)

    with pytest.raises(PlatformError, match="Not a directory"):
        unpack(archive, tmp_path / "victim" / "code")


@pytest.mark.parametrize("pressed", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["tar", "gz", "bz2", "xz"])
def test_a_tar_is_recognised_by_content(archive: Path, pressed: Callable[[bytes], bytes]) -> None:
    archive.write_bytes(pressed(WHOLE))

    assert is_tar(archive)


STEPS = st.lists(st.sampled_from(["a", "b", "c", ".", ".."]), min_size=1, max_size=4).map("/".join)
MEMBERS = st.one_of(
    st.builds(file, STEPS),
    st.builds(folder, STEPS),
    st.builds(symlink, STEPS, STEPS),
    st.builds(hardlink, STEPS, STEPS),
)


@given(members=st.lists(MEMBERS, min_size=1, max_size=8))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_mixture_of_members_leaves_the_target(
    tmp_path_factory: pytest.TempPathFactory, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    place = tmp_path_factory.mktemp("mixture")
    archive, into = place / "x.tar", place / "deep/er/code"
    archive.write_bytes(tar_of(*members))

    try:
        unpack(archive, into)
    except UserError:
        pass

    outside = {name for name in below(place) if not name.startswith("deep/er/code")}
    assert outside <= {"x.tar", "deep", "deep/er"}
    for path in into.rglob("*"):
        if path.is_symlink():
            assert path.resolve().is_relative_to(into.resolve())
