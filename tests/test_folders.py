import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.folders import as_ordinary_user, make_levels, unlookable
from toolkit import folders


def walked(folder: Path, **how: object) -> tuple[list[str], list[OSError]]:
    errors: list[OSError] = []
    paths = [os.path.relpath(entry.path, folder) for entry in folders.walk(folder, errors.append, **how)]  # type: ignore[arg-type]
    return paths, errors


def test_a_walk_yields_a_folder_before_its_content_in_order(tmp_path: Path) -> None:
    for name in ("b/2", "b/1", "a", "c/d/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    assert walked(tmp_path) == (["a", "b", "b/1", "b/2", "c", "c/d", "c/d/e"], [])


def test_a_folder_that_is_not_entered_is_still_yielded(tmp_path: Path) -> None:
    (tmp_path / "skipped").mkdir()
    (tmp_path / "skipped" / "file").touch()

    assert walked(tmp_path, enter=lambda entry: entry.name != "skipped") == (["skipped"], [])


def test_only_a_missing_folder_has_no_entries(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert folders.names(tmp_path / "missing") == []
    assert walked(tmp_path / "missing") == ([], [])
    assert walked(tmp_path / "missing", follow_links=True) == ([], [])
    with pytest.raises(NotADirectoryError):
        folders.names(tmp_path / "file")


def test_a_folder_that_cannot_be_listed_is_reported_and_the_others_are_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/1", "b/1", "c/1"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    scandir = os.scandir

    def failing(path: str) -> object:
        if path == str(tmp_path / "b"):
            raise OSError(errno.EIO, "Input/output error", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    paths, errors = walked(tmp_path)

    assert paths == ["a", "a/1", "b", "c", "c/1"]
    assert [(error.errno, error.filename) for error in errors] == [(errno.EIO, str(tmp_path / "b"))]


def test_a_listing_that_fails_in_the_middle_gives_its_first_entries_and_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    scandir = os.scandir

    class Breaking:
        def __init__(self, path: str) -> None:
            self._real = scandir(path)

        def __enter__(self) -> "Breaking":
            return self

        def __exit__(self, *_: object) -> None:
            self._real.close()

        def __iter__(self) -> object:
            yield next(self._real)
            raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "scandir", Breaking)
    paths, errors = walked(tmp_path)

    assert len(paths) == 1
    assert [(error.errno, error.filename) for error in errors] == [(errno.ESTALE, str(tmp_path))]
    with pytest.raises(OSError, match="Stale file handle"):
        folders.names(tmp_path)


def test_followed_links_that_lead_back_are_named_and_others_are_walked(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "a" / "up too").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to("a")

    paths, errors = walked(tmp_path, follow_links=True)

    assert paths == [
        "a",
        "a/file",
        "a/up",
        "a/up too",
        "again",
        "again/file",
        "again/up",
        "again/up too",
    ]
    assert {type(error) for error in errors} == {folders.LoopError}
    assert [os.path.relpath(error.filename, tmp_path) for error in errors] == [
        "a/up",
        "a/up too",
        "again/up",
        "again/up too",
    ]


def test_links_that_are_not_followed_are_entries(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path)

    assert walked(tmp_path) == (["a"], [])


def test_a_dead_link_is_an_entry(tmp_path: Path) -> None:
    (tmp_path / "dead").symlink_to("nowhere")

    assert walked(tmp_path, follow_links=True) == (["dead"], [])


def test_a_folder_that_the_system_does_not_create_is_an_error_and_no_endless_try() -> None:
    with pytest.raises(FileNotFoundError):
        folders.make("/proc/self/below/it")


def test_a_walk_of_a_deep_folder_ends(tmp_path: Path) -> None:
    deep = str(tmp_path)
    for _ in range(1_200):
        deep += "/d"
        os.mkdir(deep)  # noqa: PTH102 # Path is recursive before Python 3.12.

    paths, errors = walked(tmp_path)

    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)  # shutil.rmtree is recursive before Python 3.13.
    assert (len(paths), errors) == (1_200, [])


def test_what_matches_is_sorted_and_what_cannot_be_listed_is_reported(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "a.txt", os.fsdecode(b"\xff.json")):
        (tmp_path / name).touch()
    errors: list[OSError] = []

    matching = folders.matching(tmp_path, "*.json", errors.append)

    assert [path.name for path in matching] == ["a.json", "b.json", os.fsdecode(b"\xff.json")]
    assert folders.matching(tmp_path / "missing", "*", errors.append) == [] == errors
    assert folders.matching(tmp_path / "a.txt", "*", errors.append) == []
    assert [error.filename for error in errors] == [str(tmp_path / "a.txt")]
    with pytest.raises(NotADirectoryError):
        folders.matching(tmp_path / "a.txt", "*", folders.fail)


def test_status_is_none_only_where_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()

    assert folders.status(tmp_path / "missing") is None
    assert folders.status(tmp_path / "file" / "below") is None
    assert folders.status(tmp_path / "file") is not None

    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(OSError, match="Input/output"):
        folders.status(tmp_path / "file")


LOOKS = (folders.exists, folders.is_file, folders.is_dir, folders.is_link, folders.is_mount)


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_is_where_nothing_can_be(tmp_path: Path, look: Callable[[Path], bool]) -> None:
    (tmp_path / "file").touch()

    assert not look(tmp_path / "missing")
    assert not look(tmp_path / "file" / "below")
    assert not look(tmp_path / "of a NUL \0")
    assert not look(tmp_path / "of half a pair \ud800")


@pytest.mark.parametrize("look", LOOKS)
def test_what_cannot_be_looked_at_is_an_error_and_no_no(
    tmp_path: Path, look: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    long, broken = tmp_path / ("n" * 300), tmp_path / "broken"
    errors: list[OSError] = []

    with pytest.raises(OSError, match="File name too long"):
        look(long)
    unlookable(monkeypatch, broken, errno.ESTALE)
    with pytest.raises(OSError, match=f"Stale file handle: '{broken}'"):
        look(broken)
    if look is not folders.is_mount:
        assert not look(long, errors.append)
        assert [(error.errno, error.filename) for error in errors] == [(errno.ENAMETOOLONG, str(long))]
        assert not look(broken, folders.as_absent)
    assert folders.may_exist(long)
    assert folders.may_exist(broken)


def test_links_are_followed_unless_it_is_asked_what_is_there_itself(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "to folder").symlink_to("folder")
    (tmp_path / "dead").symlink_to("nothing")
    (tmp_path / "round").symlink_to("round")

    assert folders.is_dir(tmp_path / "to folder")
    assert not folders.is_dir(tmp_path / "to folder", follow_links=False)
    assert folders.is_link(tmp_path / "to folder")
    assert not folders.exists(tmp_path / "dead")
    assert folders.exists(tmp_path / "dead", follow_links=False)
    assert (folders.may_exist(tmp_path / "dead"), folders.may_exist(tmp_path / "missing")) == (False, False)
    assert folders.exists(tmp_path / "round", follow_links=False)
    with pytest.raises(OSError, match="Too many levels"):
        folders.exists(tmp_path / "round")


def test_a_folder_that_this_user_may_not_enter_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "closed" / "inner").mkdir(parents=True)
    (tmp_path / "closed").chmod(0)

    completed = as_ordinary_user(
        "from toolkit import folders\n"
        "print(folders.may_exist(sys.argv[1]), folders.is_dir(sys.argv[1], folders.as_absent))\n"
        "folders.is_dir(sys.argv[1])",
        tmp_path / "closed" / "inner",
    )

    assert completed.stdout == "True False\n"
    assert "PermissionError: [Errno 13]" in completed.stderr


def test_mounts_are_seen_as_the_standard_library_sees_them(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    for path in ("/", "/proc", "/proc/self", "/dev/null", tmp_path, tmp_path / "link"):
        assert folders.is_mount(path) == os.path.ismount(path)


def test_the_nearest_folder_that_exists_is_found_from_any_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert folders.nearest(tmp_path / "a/b/c") == tmp_path
    assert folders.nearest(Path("a/b")) == tmp_path
    assert folders.nearest(tmp_path) == tmp_path


def test_a_folder_is_removed_with_all_that_is_in_it_whatever_its_permissions_and_depth(tmp_path: Path) -> None:
    inner, top = tmp_path / "kept", tmp_path / "top"
    inner.mkdir()
    (inner / "file").touch()
    make_levels(tmp_path, ("top", *("d",) * 1_100, *("e" * 200,) * 30))
    (top / "link").symlink_to(inner)
    (top / "file").touch(0o400)
    (top / "closed" / "inner").mkdir(parents=True)
    (top / "closed" / "inner" / "file").touch(0)
    for folder in (top / "closed" / "inner", top / "closed", top):
        folder.chmod(0)

    completed = as_ordinary_user(
        "from toolkit import folders; folders.remove(sys.argv[1]); folders.remove(sys.argv[1])", top
    )

    assert (completed.returncode, completed.stderr) == (0, "")
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


def test_what_cannot_be_removed_is_said_and_costs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "top" / name).mkdir(parents=True)
        (tmp_path / "top" / name / "file").touch()
    unlink = os.unlink

    def failing(path: str) -> None:
        if "/b/" in path:
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", failing)
    with pytest.raises(OSError, match=f"Device or resource busy: '{tmp_path}/top/b/file'"):
        folders.remove(tmp_path / "top")

    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["top", "top/b", "top/b/file"]


def test_links_that_double_the_paths_in_each_folder_end_the_walk_soon(tmp_path: Path) -> None:
    """Each of 40 folders has two links to the next: 2^40 paths, and no loop."""
    for number in range(40):
        (tmp_path / f"d{number}").mkdir()
        for name in "ab":
            (tmp_path / f"d{number}" / name).symlink_to(tmp_path / f"d{number + 1}", target_is_directory=True)
    (tmp_path / "d40").mkdir()
    (tmp_path / "d40/file").touch()
    refused: list[OSError] = []

    names = [entry.name for entry in folders.walk(tmp_path / "d0", refused.append, follow_links=True)]

    assert "file" in names
    assert len(names) < 40 * 2 * folders.MOST_TIMES + 2
    assert {str(error.strerror) for error in refused} == {"a link to a folder that 100 others lead to"}
