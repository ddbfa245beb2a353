"""Archives of any members and with any byte changed: nothing lands outside, nothing keeps a dangerous permission."""

import gzip
import io
import stat
import tarfile
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz.places import fresh
from tests.fuzz.target import target
from toolkit.errors import PlatformError, UserError
from toolkit.train.source.unpack import is_tar, unpack

NAMES = (
    "a",
    "b",
    "a/b",
    "a/b/c",
    "./a",
    "a/",
    "a//b",
    "..",
    "../x",
    "a/../b",
    "a/../../x",
    "/x",
    "//x",
    "",
    ".",
    "é",
    "\0",
    "x" * 300,
    "/".join("d" * 50),
    "train.py",
    "a\n",
    "\udcff",
)
LINKS = (*NAMES, "b/..", "../..", "/etc/passwd", "/", "a", "x" * 5000)
KINDS = (
    tarfile.REGTYPE,
    tarfile.REGTYPE,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
    tarfile.FIFOTYPE,
    tarfile.CONTTYPE,
    b"Z",
)
HEADERS = (
    "path",
    "linkpath",
    "size",
    "mtime",
    "uid",
    "hdrcharset",
    "GNU.sparse.map",
    "GNU.sparse.major",
    "GNU.sparse.minor",
    "GNU.sparse.realsize",
    "GNU.sparse.name",
    "comment",
)
HEADER_VALUES = (
    "",
    "0",
    "1",
    "-1",
    "1e5",
    "x",
    "nan",
    "1e999",
    "9" * 400,
    "../x",
    "/x",
    "1,2",
    "0,x",
    "a\0b",
    "BINARY",
)


@st.composite
def members(draw: st.DrawFn) -> tuple[tarfile.TarInfo, bytes]:
    """One member, its content, and an extended header of anything."""
    content = draw(st.binary(max_size=20))
    member = tarfile.TarInfo(draw(st.sampled_from(NAMES)))
    member.type = draw(st.sampled_from(KINDS))
    member.mode = draw(st.sampled_from((0o644, 0o755, 0o4755, 0o2777, 0o1777, 0, 0o7777)))
    member.linkname = draw(st.sampled_from(LINKS))
    member.size = len(content) if member.type == tarfile.REGTYPE else 0
    member.pax_headers = draw(st.dictionaries(st.sampled_from(HEADERS), st.sampled_from(HEADER_VALUES), max_size=2))
    return member, content


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """An archive; now and then cut, or with some bytes changed, before or after compression."""
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=draw(st.sampled_from((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)))
    ) as tar:
        for member, content in draw(st.lists(members(), min_size=1, max_size=4)):
            try:
                tar.addfile(member, io.BytesIO(content))
            except (ValueError, UnicodeError):
                pass  # What tarfile itself cannot write.
    archive = _changed(draw, buffer.getvalue())
    return _changed(draw, gzip.compress(archive, 1)) if draw(st.booleans()) else archive


def _changed(draw: st.DrawFn, content: bytes) -> bytes:
    changed = bytearray(content)
    changes = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=2)
    for position, byte in draw(st.one_of(*[st.just([])] * 2, changes)):
        if position < len(changed):
            changed[position] = byte
    cut = draw(st.one_of(*[st.none()] * 4, st.integers(0, 4000)))
    return bytes(changed[:cut])


@target(archives())
def nothing_of_an_archive_lands_outside(content: bytes) -> None:
    base = fresh("archives")
    archive, into = base / "source.tar.gz", base / "outer" / "inner" / "code"
    archive.write_bytes(content)
    into.parent.mkdir(parents=True)
    try:
        is_tar(archive)
        names = unpack(archive, into)
    except (UserError, PlatformError) as error:
        assert str(error).isprintable() or "\n" not in str(error)
        names = None

    assert sorted(path.name for path in base.iterdir()) == ["outer", "source.tar.gz"]
    assert [path.name for path in (base / "outer").iterdir()] == ["inner"]
    assert [path.name for path in into.parent.iterdir()] in ([], ["code"])
    for path in into.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode)
        assert stat.S_ISLNK(mode) or not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX | stat.S_IWOTH)
        # A link is made only once all are known to stay inside.
        assert not stat.S_ISLNK(mode) or _inside(path, into)
    if names is not None:
        assert all((into / name).is_symlink() or (into / name).exists() for name in names)


def _inside(link: Path, root: Path) -> bool:
    try:
        return link.resolve().is_relative_to(root.resolve())
    except RuntimeError:  # A loop.
        return True
