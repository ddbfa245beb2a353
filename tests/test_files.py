import os
import stat
import subprocess
from pathlib import Path

import pytest

from toolkit import files


def test_a_document_is_a_regular_file_or_a_link_to_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")

    assert files.read(tmp_path / "file") == files.read(str(tmp_path / "link")) == b"content"


def test_a_document_that_waits_or_never_ends_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 41)

    for name, words in (
        ("fifo", "a FIFO, no regular file"),
        ("endless", "a device, no regular file"),
        ("folder", "Is a directory"),
        ("sparse", "it has more than 16,777,216 bytes"),
        ("missing", "No such file"),
    ):
        with pytest.raises(OSError, match=words) as caught:
            files.read(tmp_path / name)
        assert caught.value.filename == str(tmp_path / name)


def test_a_report_replaces_a_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    report, victim = tmp_path / "report", tmp_path / "victim"
    victim.write_text("victim")
    os.link(victim, tmp_path / "hard")
    (tmp_path / "folder").mkdir()
    for make in (
        lambda: report.symlink_to(victim),
        lambda: report.symlink_to("nowhere"),
        lambda: report.symlink_to("report"),
        lambda: report.hardlink_to(victim),
        lambda: os.mkfifo(report),
        lambda: report.write_text("longer than the new one"),
        lambda: None,
    ):
        make()

        files.replace(report, b"new")

        assert (stat.S_ISREG(report.lstat().st_mode), report.read_text(), victim.read_text()) == (True, "new", "victim")
        report.unlink()
    report.symlink_to(tmp_path / "folder")
    files.replace(report, b"new")

    assert not report.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "hard", "report", "victim"]


def test_a_report_that_cannot_be_replaced_leaves_no_piece(tmp_path: Path) -> None:
    (tmp_path / "report" / "inside").mkdir(parents=True)

    with pytest.raises(OSError, match=r"Is a directory|Directory not empty|File exists"):
        files.replace(tmp_path / "report", b"new")

    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_a_mounted_file_is_overwritten_in_its_place(tmp_path: Path) -> None:
    for name in ("report", "other"):
        (tmp_path / name).write_text("before, and longer")
    if subprocess.run(["mount", "--bind", tmp_path / "other", tmp_path / "report"], capture_output=True).returncode:
        pytest.skip("needs to be allowed to mount")
    try:
        files.replace(tmp_path / "report", b"new")

        assert (tmp_path / "other").read_text() == "new"
    finally:
        subprocess.run(["umount", tmp_path / "report"], check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "report"]
