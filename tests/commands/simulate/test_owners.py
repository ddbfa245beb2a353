"""After root runs a job in another user's folder, its files belong to that user."""

import os
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun
from toolkit.commands.simulate import owners

NOBODY = 65534
pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    return folder


def test_the_heir_is_the_owner_of_the_nearest_folder_unless_it_is_root_or_everybody(theirs: Path) -> None:
    assert owners.heir(theirs / "jobs/one") == (NOBODY, NOBODY)
    assert owners.heir(theirs.parent / "jobs") is None
    theirs.chmod(0o1777)
    assert owners.heir(theirs / "jobs/one") is None


def test_only_what_is_roots_is_handed_over_and_no_link_is_followed(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").touch()
    (theirs / "deep").mkdir()
    (theirs / "deep/file").touch()
    (theirs / "link").symlink_to(tmp_path / "outside")
    (theirs / "hard").hardlink_to(tmp_path / "outside")
    (theirs / "twin").hardlink_to(theirs / "deep/file")
    (theirs / "other").touch()
    os.chown(theirs / "other", 12345, 12345)

    owners.hand_over(theirs, (NOBODY, NOBODY))

    result = {path.name: path.lstat().st_uid for path in theirs.rglob("*")}
    assert result == {"deep": NOBODY, "file": NOBODY, "link": NOBODY, "hard": 0, "twin": NOBODY, "other": 12345}
    assert (tmp_path / "outside").stat().st_uid == 0


def test_a_job_that_root_plays_in_a_users_folder_leaves_nothing_of_roots(theirs: Path) -> None:
    script = "import os\nopen(os.environ['SM_CHECKPOINT_DIR'] + '/last', 'w').write('1')\n"
    (theirs / "train.py").write_text(script)
    os.chown(theirs / "train.py", NOBODY, NOBODY)

    with ToolkitRun(theirs, str(theirs / "train.py"), "--checkpoints", str(theirs / "kept")) as run:
        assert run.end() == 0, run.console

    assert (theirs / "kept/last").read_text() == "1"
    assert [path for path in theirs.rglob("*") if path.lstat().st_uid == 0] == []
