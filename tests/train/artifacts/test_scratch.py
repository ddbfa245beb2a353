"""The folder for temporary files, whose name anybody can know."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.started import ROOT
from toolkit.errors import PlatformError, UserError
from toolkit.log import Log
from toolkit.train.artifacts import scratch
from toolkit.train.artifacts.scratch import RunFolder

STRANGER = 12345


@pytest.fixture
def scratch_folder(tmp_path: Path) -> Path:
    return tmp_path / "toolkit-0-abc"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_an_absent_folder_is_made_for_this_user_alone_and_taken_again(scratch_folder: Path) -> None:
    lines: list[bytes] = []
    log = Log()
    log.say_through(lines.append)

    assert scratch.private(scratch_folder, log) == scratch.private(scratch_folder, log) == scratch_folder
    assert mode(scratch_folder) == 0o700
    assert lines == []


def linked(path: Path) -> None:
    (path.parent / "theirs").mkdir()
    path.symlink_to(path.parent / "theirs")


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def theirs(path: Path) -> None:
    path.mkdir()
    os.chown(path, STRANGER, STRANGER)


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def piped(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("lay", "reason"),
    [
        (linked, "a link to"),
        (dangling, "a link to"),
        pytest.param(theirs, f"a folder of user {STRANGER}", marks=pytest.mark.root),
        (open_to_all, "a folder that others may write to (mode 777)"),
        (piped, "no folder"),
        (Path.touch, "no folder"),
    ],
)
def test_what_others_may_have_laid_there_is_left_alone(
    scratch_folder: Path, lay: Callable[[Path], None], reason: str
) -> None:
    if lay is theirs and os.geteuid():
        pytest.skip("needs root")
    lay(scratch_folder)
    stat_before = scratch_folder.lstat()
    lines: list[bytes] = []
    log = Log()
    log.say_through(lines.append)

    run = RunFolder(scratch_folder, "7-abc", log)

    assert run.scratch.parent == scratch_folder.parent
    assert run.scratch.name.startswith("toolkit-0-abc-")
    assert (mode(run.scratch), mode(run.path)) == (0o700, 0o700)
    assert f"{scratch_folder}: expected a folder of this user alone, found {reason}" in b"".join(lines).decode()
    run.close()
    assert scratch_folder.lstat() == stat_before
    assert not (scratch_folder.parent / "nowhere").exists()
    assert not run.scratch.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from toolkit.log import Log
from toolkit.train.artifacts.scratch import RunFolder
run = RunFolder(Path(sys.argv[1]), sys.argv[2], Log())
(run.path / "environment.json").write_text("{}")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folders_of_runs_that_were_killed_are_removed_and_those_of_living_ones_stay(scratch_folder: Path) -> None:
    living = RunFolder(scratch_folder, "1-a", Log())
    killed = subprocess.run([sys.executable, "-c", KILLED, scratch_folder, "1-b"], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    assert (scratch_folder / "run-1-b/environment.json").exists()

    own_run = RunFolder(scratch_folder, "1-c", Log())

    assert sorted(path.name for path in scratch_folder.iterdir()) == ["run-1-a", "run-1-c"]
    own_run.close()
    living.close()
    assert not scratch_folder.exists()


def test_what_is_known_to_be_installed_outlives_the_run(scratch_folder: Path) -> None:
    run = RunFolder(scratch_folder, "1-a", Log())
    (run.scratch / "installed").mkdir()

    run.close()

    assert [path.name for path in scratch_folder.iterdir()] == ["installed"]


def test_a_link_among_the_runs_is_not_followed(scratch_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    scratch_folder.mkdir(mode=0o700)
    (scratch_folder / "run-9-x").symlink_to(tmp_path / "kept")

    RunFolder(scratch_folder, "1-a", Log()).close()

    assert (tmp_path / "kept/file").exists()


def test_a_folder_that_cannot_be_made_is_the_users_to_repair(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(UserError) as caught:
        RunFolder(tmp_path / "file/toolkit", "1-a", Log())

    assert "set TMPDIR to a folder it can write to" in str(caught.value)


def test_a_folder_that_cannot_be_made_on_a_full_disk_is_worth_another_try(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=1", "toolkit-test", tmp_path]).returncode:
        pytest.skip("needs to be allowed to mount a tmpfs")
    try:
        with pytest.raises(PlatformError, match="No space left on device"):
            RunFolder(tmp_path / "toolkit", "1-a", Log())
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(("bits", "is_theirs", "warned"), [(0o777, True, 1), (0o1777, True, 0), (0o777, False, 0)])
def test_a_place_where_others_may_replace_our_files_is_told_of(
    scratch_folder: Path, bits: int, is_theirs: bool, warned: int
) -> None:
    scratch_folder.parent.chmod(bits)
    (scratch_folder.parent / "file").touch()
    if is_theirs:
        os.chown(scratch_folder.parent / "file", STRANGER, STRANGER)
    lines: list[bytes] = []
    log = Log()
    log.say_through(lines.append)

    scratch.private(scratch_folder, log)

    assert b"".join(lines).decode().count("may replace ours (no sticky bit). Run chmod +t") == warned


@pytest.mark.parametrize("name", ["a b", "it's", 'a "b"', "größe", "模型", "$HOME", "a;b", "a:b", "a,b", "x" * 200])
def test_a_folder_that_launchers_would_not_take_has_another_name_for_them(tmp_path: Path, name: str) -> None:
    run = RunFolder(tmp_path / name / "toolkit", "1-a", Log())
    (run.plain / "here").touch()

    assert scratch.PLAIN.fullmatch(str(run.plain))
    assert run.plain.name == run.path.name
    assert (run.path / "here").exists()
    assert mode(run.plain.parent) == 0o700

    run.close()
    assert not run.plain.parent.exists()
    assert not run.path.exists()


def test_a_plain_folder_keeps_its_name() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        run = RunFolder(Path(short) / "toolkit", "1-a", Log())

        assert run.plain == run.path
        run.close()
