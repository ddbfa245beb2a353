import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolkit.job.job import Folders
from toolkit.log import Log
from toolkit.train.artifacts.folders import prepare

Said = Callable[[], list[str]]


@pytest.fixture
def read_log(capfd: pytest.CaptureFixture[str]) -> Said:
    return lambda: capfd.readouterr().err.splitlines()


@pytest.fixture
def mount(folders: Folders) -> Iterator[Callable[..., None]]:
    """Mount a small file system at the base, undone at the end; skips where that is not allowed."""
    mounted = []

    def mount(*options: str) -> None:
        folders.base.mkdir(exist_ok=True)
        if subprocess.run(["mount", *options, folders.base], capture_output=True).returncode:
            pytest.skip("needs to be allowed to mount a tmpfs")
        mounted.append(folders.base)

    yield mount
    for target in set(mounted):
        subprocess.run(["umount", target], check=True)


TMPFS = ("-t", "tmpfs", "-o", "size=64k", "toolkit-test")


def test_all_folders_are_made_but_the_one_whose_absence_means_something(folders: Folders, read_log: Said) -> None:
    prepare(folders, Log())

    for folder in (
        folders.code,
        folders.data,
        folders.model,
        folders.output_data,
        folders.checkpoints,
    ):
        assert folder.is_dir()
    assert not folders.intermediate.exists()
    assert read_log() == []


def test_folders_that_exist_keep_what_they_hold(folders: Folders, read_log: Said) -> None:
    prepare(folders, Log())
    (folders.model / "weights").write_text("kept")

    prepare(folders, Log())

    assert (folders.model / "weights").read_text() == "kept"
    assert read_log() == []


def test_a_link_to_a_folder_is_a_folder(folders: Folders, tmp_path: Path, read_log: Said) -> None:
    (tmp_path / "shared").mkdir()
    folders.base.mkdir()
    folders.checkpoints.symlink_to(tmp_path / "shared")

    prepare(folders, Log())

    assert folders.checkpoints.is_symlink()
    assert read_log() == []


def test_a_file_in_a_folders_place_is_said_and_the_rest_made(folders: Folders, read_log: Said) -> None:
    folders.base.mkdir()
    folders.model.touch()

    prepare(folders, Log())

    assert read_log() == [
        f"[toolkit] warning: {folders.model}: expected a folder, found a file; the job continues without",
    ]
    assert folders.output_data.is_dir()


def test_a_read_only_base_is_said_once_and_not_fatal(
    folders: Folders, read_log: Said, mount: Callable[..., None]
) -> None:
    mount(*TMPFS)
    folders.output.mkdir()
    mount("-o", "remount,ro")

    prepare(folders, Log())

    names = (folders.code, folders.data, folders.model, folders.output_data, folders.checkpoints)
    assert read_log() == [
        f"[toolkit] warning: {', '.join(map(str, names))}: cannot be created (Read-only file system); "
        "the job continues without",
        f"[toolkit] warning: {folders.output}: cannot be written; the job continues without",
    ]


def test_a_full_disk_is_said_once_and_not_fatal(folders: Folders, read_log: Said, mount: Callable[..., None]) -> None:
    mount(*TMPFS)
    prepare(folders, Log())
    with (folders.base / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while filler.write(bytes(4096)):
            pass

    prepare(folders, Log())

    assert read_log() == [
        f"[toolkit] warning: {folders.model}, {folders.output}: the disk is full; the job continues without",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder; a read-only mount is tested instead")
def test_a_forbidden_base_is_said(folders: Folders, read_log: Said) -> None:
    folders.base.mkdir(0o555)

    prepare(folders, Log())

    assert "Permission denied" in read_log()[0]
