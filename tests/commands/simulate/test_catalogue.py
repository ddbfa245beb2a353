import json
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.folders import unlookable
from toolkit.commands.simulate import catalogue, runner
from toolkit.commands.simulate.catalogue import CatalogueEntry
from toolkit.commands.simulate.facts import JobFacts, clock, read_facts, text
from toolkit.commands.simulate.follow import GrowingFile
from toolkit.errors import UserError
from toolkit.metrics.sample import Sample


def job(folder: Path, status: str = "Completed") -> Path:
    """Make a job folder as `toolkit run` leaves it."""
    folder.mkdir(parents=True)
    fd = os.open(folder / ".toolkit-job", os.O_RDWR | os.O_CREAT)
    runner.write(fd, folder, detached=False)
    os.close(fd)
    report = {"name": folder.name, "status": status, "start_time": "2026-11-23T01:00:00.000Z", "exit_code": 0}
    (folder / "job.json").write_text(json.dumps({**report, "training_seconds": 61.5}))
    return folder


def test_names_lead_to_folders_and_removed_folders_are_skipped(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for index, name in enumerate(("one", "two", "one")):
        folder = job(tmp_path / f"jobs{index}" / name)
        catalogue.record(environ, CatalogueEntry(name=name, folder=folder, recorded_s=index))
    (tmp_path / "jobs1/two/job.json").unlink()
    (tmp_path / "jobs1/two/.toolkit-job").unlink()

    assert [entry.recorded_s for entry in catalogue.entries(environ)] == [2, 0]
    assert catalogue.find("jobs0/one", environ, tmp_path) == tmp_path / "jobs0/one"
    with pytest.raises(UserError, match=r"found 'ones'\. Did you mean one"):
        catalogue.find("ones", environ, tmp_path / "jobs0")


def test_a_fifo_in_place_of_a_document_holds_up_nothing(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    folder = job(tmp_path / "jobs/one")
    catalogue.record(environ, CatalogueEntry(name="one", folder=folder, recorded_s=1))
    (tmp_path / "jobs/one/job.json").unlink()
    for path in (tmp_path / "state/toolkit/jobs/fifo.json", folder / "job.json"):
        os.mkfifo(path)

    assert [entry.name for entry in catalogue.entries(environ)] == ["one"]
    assert read_facts(folder, 1.0).name == "one"


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\xff",
        b"null",
        b'{"name": 1, "folder": [], "at": "x"}',
        b"[" * 100_000,
        b'{"name": "x", "folder": "\xff"}',
    ],
    ids=["empty", "bytes", "null", "types", "deep", "a name of bytes"],
)
def test_an_entry_that_is_none_costs_no_other_job(tmp_path: Path, document: bytes) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    catalogue.record(environ, CatalogueEntry(name="one", folder=job(tmp_path / "jobs/one"), recorded_s=1))
    (tmp_path / "state/toolkit/jobs/other.json").write_bytes(document)

    assert [entry.name for entry in catalogue.entries(environ)] == ["one"]


def test_a_folder_that_cannot_be_looked_at_costs_no_other_job_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for index, name in enumerate(("one", "two")):
        catalogue.record(environ, CatalogueEntry(name=name, folder=job(tmp_path / "jobs" / name), recorded_s=index))
    unlookable(monkeypatch, tmp_path / "jobs/one")

    assert [entry.name for entry in catalogue.entries(environ)] == ["two"]
    with pytest.raises(OSError, match="Input/output error"):
        catalogue.find("jobs/one", environ, tmp_path)


def test_a_report_that_cannot_be_read_is_not_called_gone(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "job.json").symlink_to("job.json")

    assert read_facts(folder, 1.0).failure_reason == (
        f"InternalServerError: {folder}/job.json cannot be read (Too many levels of symbolic links)"
    )


def test_of_two_jobs_of_one_name_that_run_neither_is_guessed(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for index in range(2):  # This process is the runner of both, and lives.
        catalogue.record(environ, CatalogueEntry(name="it", folder=job(tmp_path / str(index) / "it"), recorded_s=index))

    with pytest.raises(UserError, match=r"2 jobs of this name run: .*/1/it, .*/0/it"):
        catalogue.find("it", environ, tmp_path)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"XDG_STATE_HOME": "/state", "HOME": "/mine"}, "/state/toolkit/jobs"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/mine"}, "/mine/.local/state/toolkit/jobs"),
        ({"HOME": "/mine"}, "/mine/.local/state/toolkit/jobs"),
        ({}, None),
    ],
)
def test_the_catalogue_is_where_the_xdg_specification_has_state(environ: dict[str, str], place: str | None) -> None:
    assert catalogue.home(environ) == (None if place is None else Path(place))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_root_writes_no_catalogue_into_another_users_home(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 1234, 1234)

    catalogue.record({"HOME": str(theirs)}, CatalogueEntry(name="it", folder=tmp_path, recorded_s=0))

    assert list(theirs.iterdir()) == []


def test_what_cannot_be_entered_is_an_oserror_and_leaves_no_file(tmp_path: Path) -> None:
    place = tmp_path / "toolkit/jobs"
    environ = {"XDG_STATE_HOME": str(tmp_path)}

    catalogue.record(environ, CatalogueEntry(name="it", folder=tmp_path, recorded_s=0))
    (entry,) = place.iterdir()
    entry.unlink()
    entry.mkdir()  # In the way, as a full disk is.
    with pytest.raises(OSError, match="directory"):
        catalogue.record(environ, CatalogueEntry(name="it", folder=tmp_path, recorded_s=0))

    assert list(place.iterdir()) == [entry]


def test_a_folder_of_any_bytes_is_found_by_its_jobs_name(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    folder = tmp_path / os.fsdecode(b"jobs-\xff") / "it"
    folder.mkdir(parents=True)
    (folder / "job.json").touch()

    catalogue.record(environ, CatalogueEntry(name="it", folder=folder, recorded_s=0))

    assert catalogue.find("it", environ, tmp_path) == folder


def test_only_the_newest_entries_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MOST", 3)
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    for index in range(5):
        catalogue.record(
            environ, CatalogueEntry(name=str(index), folder=job(tmp_path / f"job{index}"), recorded_s=index)
        )
        for path in (tmp_path / "toolkit/jobs").glob("*.json"):
            os.utime(path, (at_of(path), at_of(path)))

    assert [entry.name for entry in catalogue.entries(environ)] == ["4", "3", "2"]


def at_of(path: Path) -> float:
    return float(json.loads(path.read_text())["at"])


def test_a_process_that_got_a_runners_pid_later_is_neither_the_runner_nor_signalled(tmp_path: Path) -> None:
    folder = job(tmp_path / "it", status="InProgress")
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        was = runner.of(folder)
        assert was is not None
        assert runner.state(folder) == "here"
        stale = msgspec.structs.replace(was, pid=stranger.pid)
        (folder / ".toolkit-job").write_bytes(msgspec.json.encode(stale))

        assert runner.state(folder) == "gone"
        assert runner.send(stale, signal.SIGKILL) is False
        assert stranger.poll() is None
        assert read_facts(folder, 2e9).secondary_status == "Interrupted"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_runner_of_another_container_is_known_by_its_lock_alone(tmp_path: Path) -> None:
    folder = job(tmp_path / "it", status="InProgress")
    was = runner.of(folder)
    assert was is not None
    (folder / ".toolkit-job").write_bytes(msgspec.json.encode(msgspec.structs.replace(was, pid_namespace="pid:[1]")))
    assert runner.state(folder) == "gone"

    with subprocess.Popen(["flock", str(folder / ".toolkit-job"), "cat"], stdin=subprocess.PIPE) as holder:
        while runner.state(folder) != "elsewhere":
            assert holder.poll() is None
        assert read_facts(folder, 2e9).status == "InProgress"
        holder.communicate(b"")

    assert runner.state(folder) == "gone"


@pytest.mark.parametrize(
    ("content", "tail", "read"),
    [
        (b"a\nb\nc\n", None, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 0, b""),
        (b"a\nb\nun", 2, b"b\nun"),
        (b"", 3, b""),
        (b"x" * 600_000 + b"\nlast\n", 1, b"last\n"),
    ],
)
def test_the_tail_is_whole_lines_from_the_end(tmp_path: Path, content: bytes, tail: int | None, read: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)

    assert b"".join(GrowingFile(path, tail).new(has_ended=True)) == read


def test_an_unfinished_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    output = GrowingFile(path, None)

    assert list(output.new(has_ended=False)) == [b"one\n"]
    assert list(output.new(has_ended=False)) == []
    with path.open("ab") as file:
        file.write(b"o\n")
    assert list(output.new(has_ended=False)) == [b"two\n"]


def test_durations_read_as_a_clock() -> None:
    assert [clock(seconds) for seconds in (0.04, 59.9, 61, 3727)] == ["0.0 s", "59.9 s", "1:01", "1:02:07"]


def test_a_value_stands_apart_from_a_long_name(tmp_path: Path) -> None:
    long = Sample(name="validation:mean_squared_error", value=2.5, time_s=1.0, host="algo-1")
    facts = JobFacts(name="a", folder=tmp_path, status="Completed", secondary_status="Completed", metrics=(long,))

    assert "  validation:mean_squared_error 2.5" in text(facts).splitlines()
