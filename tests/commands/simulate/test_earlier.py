"""A folder that holds an earlier job: refused, replaced with --replace, and untouched if the new job cannot start."""

import json
from pathlib import Path

import pytest

from tests.commands.simulate.nobody import nobodys_folder
from tests.commands.simulate.toolkit_run import ToolkitRun, tracker_run
from toolkit.commands.simulate import earlier
from toolkit.commands.simulate.earlier import EarlierResults
from toolkit.errors import UserError
from toolkit.log import Log

ONE = ("--hyperparameter", "steps=1", "--name", "first")


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below *folder*, but the mark that says who runs the job."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".toolkit-job")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    with ToolkitRun(tmp_path, "counts_to.py", *ONE) as job:
        assert job.end() == 0, job.console
    return tmp_path


def test_a_name_that_a_job_has_had_is_refused_and_replaced_on_request_alone(finished: Path) -> None:
    original = tree(finished / "job")

    with ToolkitRun(finished, "counts_to.py", *ONE) as again:
        assert again.end() == 78
    assert tree(finished / "job") == original
    assert "expected a name that no job has had, found the job first (Completed, ended " in again.console
    assert "model.tar.gz" in again.console
    assert "--replace" in again.console

    with ToolkitRun(finished, "counts_to.py", *ONE, "--replace", "--name", "second") as replaced:
        assert replaced.end() == 0
    assert "[toolkit] --replace removes the job first (Completed, ended " in replaced.console
    assert replaced.report["name"] == "second"
    assert not (finished / "job/.replaced").exists()


def test_a_job_that_replaces_one_of_its_name_has_a_run_of_its_own_in_trackers(finished: Path) -> None:
    first = tracker_run(finished / "job")

    with ToolkitRun(finished, "counts_to.py", *ONE, "--replace") as job:
        assert job.end() == 0, job.console

    assert tracker_run(finished / "job") != first


def test_a_dry_run_refuses_the_name_too(finished: Path) -> None:
    with ToolkitRun(finished, "counts_to.py", *ONE, "--dry-run") as dry:
        assert dry.end() == 78

    assert "expected a name that no job has had" in dry.console


def test_an_engine_that_is_not_there_is_found_before_anything_is_removed(finished: Path) -> None:
    original = tree(finished / "job")
    words = ("--replace", "--backend", "docker", "--image", "mine:1")

    with ToolkitRun(finished, "counts_to.py", *ONE, *words, PATH=str(finished)) as job:
        assert job.end() in (75, 78), job.console

    assert tree(finished / "job") == original
    assert "Traceback" not in job.console


def test_what_was_put_aside_returns_and_what_the_new_job_made_is_gone(tmp_path: Path) -> None:
    for name in ("logs", "hosts/algo-1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "model.tar.gz").write_text("old")
    (tmp_path / "mine.txt").write_text("a person's")
    original = tree(tmp_path)
    moved = EarlierResults(tmp_path)

    moved.put_aside(Log())
    assert earlier.results(tmp_path) == [".replaced"]
    for name in ("hosts/algo-1/python", "channels/train"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "job.json").write_text(json.dumps({}))
    moved.put_back()

    assert tree(tmp_path) == original
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hosts", "logs", "mine.txt", "model.tar.gz"]


def test_a_run_that_was_killed_while_it_prepared_its_job_loses_nothing_of_the_earlier_one(tmp_path: Path) -> None:
    (tmp_path / ".replaced").mkdir()
    (tmp_path / ".replaced/model.tar.gz").write_text("old")
    (tmp_path / "model.tar.gz").write_text("half")

    with pytest.raises(UserError, match="expected a name that no job has had"):
        earlier.refuse(tmp_path, replace=False)
    again = EarlierResults(tmp_path)
    again.put_aside(Log())
    again.put_back()

    assert (tmp_path / "model.tar.gz").read_text() == "old"


def test_a_folder_that_nobody_may_read_is_removed_with_its_job() -> None:
    with nobodys_folder() as folder:
        closed = folder / "hosts/algo-1/model/closed"
        closed.mkdir(parents=True)
        (closed / "inside").touch()
        closed.chmod(0)
        original = EarlierResults(folder)

        original.put_aside(Log())
        original.remove()

        assert list(folder.iterdir()) == []
