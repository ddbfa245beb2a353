import os
from pathlib import Path

import pytest

from toolkit.train.provenance import trees
from toolkit.train.provenance.trees import FILE_BYTES, MOST_FILES, digest_tree


def write(folder: Path, **files: bytes) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def digest(folder: Path) -> str:
    tree = digest_tree(folder)
    assert tree is not None
    return tree.digest


def test_a_digest_is_of_names_and_contents_and_not_of_places_and_times(tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, a=b"1", b=b"22") for name in ("first", "second"))
    os.utime(second / "a", (1, 1))

    assert digest(first) == digest(second)


@pytest.mark.parametrize(
    "other",
    [{"a": b"1", "b": b"23"}, {"a": b"1", "c": b"22"}, {"a": b"1"}, {"a": b"1", "b": b"22", "c": b""}],
    ids=["a byte", "a name", "one less", "one more"],
)
def test_every_change_changes_it(tmp_path: Path, other: dict[str, bytes]) -> None:
    assert digest(write(tmp_path / "first", a=b"1", b=b"22")) != digest(write(tmp_path / "second", **other))


def test_what_python_and_git_leave_does_not_count(tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, a=b"1") for name in ("first", "second"))
    for name in ("__pycache__", ".git"):
        write(second / name, x=b"1")
    (second / "a.pyc").write_bytes(b"1")

    assert digest(first) == digest(second)


def test_a_link_counts_as_what_it_leads_to_and_a_loop_ends(tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, a=b"1") for name in ("first", "second"))
    elsewhere = write(tmp_path / "elsewhere", b=b"2")
    (first / "folder").symlink_to(elsewhere)
    write(second / "folder", b=b"2")
    assert digest(first) == digest(second)

    (first / "loop").symlink_to(first)

    tree = digest_tree(first)
    assert tree is not None
    assert not tree.is_whole


def test_a_large_file_counts_with_its_size_and_time(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", large=b"x" * (FILE_BYTES + 1), small=b"1")
    before = digest_tree(folder)
    os.utime(folder / "large", (1, 1))
    after = digest_tree(folder)

    assert before is not None
    assert after is not None
    assert (before.files, before.unread_files, before.bytes) == (2, 1, FILE_BYTES + 2)
    assert before.digest != after.digest
    assert before.digests["small"] == after.digests["small"]


def test_a_folder_of_too_many_files_is_not_whole_and_has_no_list(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", **{f"f{number:04}": b"1" for number in range(MOST_FILES + 1)})

    tree = digest_tree(folder)

    assert tree is not None
    assert (tree.files, tree.is_whole, tree.digests) == (MOST_FILES, False, {})


def test_contents_are_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "READ_BYTES", 5)
    tree = digest_tree(write(tmp_path / "folder", a=b"1234", b=b"12", c=b"1"))

    assert tree is not None
    assert (tree.files, tree.unread_files) == (3, 1)


def test_nothing_has_no_digest_and_a_single_file_one(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"1")

    assert digest_tree(tmp_path / "nothing") is None
    tree = digest_tree(file)
    assert tree is not None
    assert list(tree.digests) == ["a"]
