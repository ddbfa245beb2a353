import errno
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.folders import unlookable
from toolkit.errors import PlatformError, ToolkitError, UserError
from toolkit.job.job import Folders, Job
from toolkit.log import Log
from toolkit.train.source.fetch import ASIDE, MARKER, place

MakeJob = Callable[..., Job]


Said = Callable[[], list[str]]


@pytest.fixture
def read_log(capfd: pytest.CaptureFixture[str]) -> Said:
    """Return the lines of the log since the last call."""
    return lambda: capfd.readouterr().err.splitlines()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "submitted"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("submitted")
    (folder / "pkg" / "model.py").write_text("submitted")
    return folder


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    """Mount a small file system of its own, undone at the end; skips where that is not allowed."""
    mounted: list[Path] = []

    def mount(target: Path, *options: str) -> None:
        target.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", *options, "toolkit-test", target], capture_output=True)
        if done.returncode:
            pytest.skip("needs to be allowed to mount a tmpfs")
        mounted.append(target)

    yield mount
    for target in reversed(mounted):
        subprocess.run(["umount", target], check=True)


def packed(folder: Path, archive: Path) -> Path:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=".")
    return archive


def files(folder: Path) -> dict[str, str]:
    """The files below *folder*, less our own marker."""
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARKER
    }


def fill(folder: Path, **content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / f"{name}.py").write_text(text)


SUBMITTED = {"train.py": "submitted", "pkg/model.py": "submitted"}


def test_a_local_folder_is_copied(make_job: MakeJob, folders: Folders, source: Path, log: Log) -> None:
    place(make_job(str(source)), log)

    assert files(folders.code) == files(source) == SUBMITTED


@pytest.mark.parametrize("prefix", ["file://", "file://localhost"])
def test_a_file_uri_is_a_path(make_job: MakeJob, folders: Folders, source: Path, log: Log, prefix: str) -> None:
    spaced = source.rename(source.with_name("with space"))

    place(make_job(prefix + str(spaced).replace(" ", "%20")), log)

    assert files(folders.code) == SUBMITTED


@pytest.mark.parametrize("name", ["sourcedir.tar.gz", "without-an-ending"])
def test_a_local_archive_is_unpacked(
    make_job: MakeJob, folders: Folders, source: Path, tmp_path: Path, log: Log, name: str
) -> None:
    archive = packed(source, tmp_path / name)

    place(make_job(str(archive)), log)

    assert files(folders.code) == SUBMITTED


def test_a_single_file_is_copied_with_its_permissions(
    make_job: MakeJob, folders: Folders, tmp_path: Path, log: Log
) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)

    place(make_job(str(script)), log)

    assert files(folders.code) == {"run.sh": "#!/bin/sh\n"}
    assert os.access(folders.code / "run.sh", os.X_OK)


def test_a_file_called_an_archive_that_is_none_is_an_error(make_job: MakeJob, tmp_path: Path, log: Log) -> None:
    script = tmp_path / "sourcedir.tar.gz"
    script.write_text("no archive")

    with pytest.raises(UserError, match="expected a tar archive"):
        place(make_job(str(script)), log)


def test_network_isolation_names_the_archive_by_its_usual_path(
    make_job: MakeJob, folders: Folders, source: Path, log: Log
) -> None:
    packed(source, folders.data / "code" / "sourcedir.tar.gz")

    place(make_job("/opt/ml/input/data/code/sourcedir.tar.gz"), log)

    assert files(folders.code) == SUBMITTED


def test_the_code_channel_stands_in_for_s3(
    make_job: MakeJob, folders: Folders, source: Path, log: Log, read_log: Said
) -> None:
    archive = packed(source, folders.data / "code" / "sourcedir.tar.gz")

    place(make_job("s3://bucket/sourcedir.tar.gz"), log)

    assert files(folders.code) == SUBMITTED
    assert read_log()[0] == f"[toolkit] the source is taken from {archive}, not from s3://bucket/sourcedir.tar.gz"


def test_s3_is_left_to_the_process_that_fetches_it(make_job: MakeJob, folders: Folders, log: Log) -> None:
    fill(folders.code, train="image")

    place(make_job("s3://bucket/sourcedir.tar.gz"), log)

    assert files(folders.code) == {"train.py": "image"}


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("https://example.com/a.tar.gz", r"expected an absolute path, file://, s3://, gs:// or az://, found https://"),
        ("src/code", r"expected an absolute path, found 'src/code'"),
        ("/nowhere/sourcedir.tar.gz", r"no such file or folder: /nowhere/sourcedir\.tar\.gz"),
        ("file:///nowhere/code", r"no such file or folder: /nowhere/code"),
        ("/dev/null", r"neither a folder nor a file: /dev/null"),
    ],
)
def test_a_source_that_is_not_there_is_named_with_its_key(
    make_job: MakeJob, folders: Folders, log: Log, uri: str, words: str
) -> None:
    fill(folders.code, train="image")

    with pytest.raises(UserError, match=f"^sagemaker_submit_directory: {words}"):
        place(make_job(uri), log)

    assert files(folders.code) == {"train.py": "image"}


@pytest.mark.parametrize("uri", [None, "", " ", "{code}", "file://{code}", "{code}/../code/", "/opt/ml/code"])
def test_code_in_place_is_left_alone(
    make_job: MakeJob, folders: Folders, log: Log, read_log: Said, uri: str | None
) -> None:
    fill(folders.code, train="image")

    place(make_job(uri and uri.replace("{code}", str(folders.code))), log)

    assert files(folders.code) == {"train.py": "image"}
    assert not (folders.code / MARKER).exists()
    assert read_log() == []


def test_a_code_folder_reached_by_a_link_is_in_place(
    make_job: MakeJob, folders: Folders, tmp_path: Path, log: Log
) -> None:
    fill(folders.code, train="image")
    (tmp_path / "link").symlink_to(folders.code)

    place(make_job(str(tmp_path / "link")), log)

    assert files(folders.code) == {"train.py": "image"}


def test_the_submitted_source_wins_unmixed_and_one_line_says_over_what(
    make_job: MakeJob, folders: Folders, source: Path, log: Log, read_log: Said
) -> None:
    fill(folders.code, train="image", util="image", alpha="image")
    fill(folders.code / "pkg", model="image", extra="image")

    place(make_job(str(source)), log)

    aside = folders.scratch / "replaced-code"
    assert files(folders.code) == SUBMITTED
    assert files(aside) == {
        "alpha.py": "image",
        "train.py": "image",
        "util.py": "image",
        "pkg/model.py": "image",
        "pkg/extra.py": "image",
    }
    assert read_log() == [
        f"[toolkit] warning: {folders.code} held 5 files that were not submitted (alpha.py, pkg, train.py, ...): "
        f"moved to {aside}, {source} replaces them",
        f"[toolkit] {source} is in {folders.code}",
    ]


def test_a_second_run_in_the_same_container_starts_clean_and_quiet(
    make_job: MakeJob, folders: Folders, source: Path, log: Log, read_log: Said
) -> None:
    place(make_job(str(source)), log)
    (folders.code / "train.py").write_text("changed by the first run")
    fill(folders.code / "__pycache__", train="cache")
    fill(folders.code / "job.egg-info", pip="pip")
    (source / "pkg/model.py").unlink()
    (source / "new.py").write_text("submitted")
    read_log()

    place(make_job(str(source)), log)

    assert files(folders.code) == {"train.py": "submitted", "new.py": "submitted"}
    assert read_log() == [f"[toolkit] {source} is in {folders.code}"]
    assert not (folders.scratch / "replaced-code").exists()


def test_what_a_first_run_wrote_beside_its_code_is_moved_not_deleted(
    make_job: MakeJob, folders: Folders, source: Path, log: Log
) -> None:
    fill(folders.code, train="image")
    place(make_job(str(source)), log)
    fill(folders.code, result="of the first run")

    place(make_job(str(source)), log)

    assert files(folders.code) == SUBMITTED
    assert files(folders.scratch / "replaced-code") == {"train.py": "image"}
    assert files(folders.scratch / "replaced-code-2") == {"result.py": "of the first run"}


@pytest.mark.parametrize(
    "marker",
    [
        b'{"source": "\xff", "names": []}',
        b'{"source": "", "names": [], "x": ' + b"[" * 100_000,
        b'{"source": 1}',
        b'{"source": "", "names": ["a\\u0000"]}',
    ],
    ids=["bytes", "deep", "type", "nul"],
)
def test_a_marker_that_is_none_keeps_no_source_away(
    make_job: MakeJob, folders: Folders, source: Path, log: Log, marker: bytes
) -> None:
    fill(folders.code)
    (folders.code / MARKER).write_bytes(marker)

    place(make_job(str(source)), log)

    assert files(folders.code) == SUBMITTED


def test_a_forged_marker_removes_nothing_outside_the_code_folder(
    make_job: MakeJob, folders: Folders, source: Path, log: Log
) -> None:
    fill(folders.base, victim="mine")
    fill(folders.code)
    (folders.code / MARKER).write_text('{"source": "", "names": ["../victim.py", "..", ".", "", "/etc"]}')

    place(make_job(str(source)), log)

    assert (folders.base / "victim.py").read_text() == "mine"
    assert files(folders.code) == SUBMITTED


def test_a_bad_archive_leaves_the_code_folder_as_it_was(
    make_job: MakeJob, folders: Folders, source: Path, tmp_path: Path, log: Log
) -> None:
    fill(folders.code, train="image")
    archive = packed(source, tmp_path / "sourcedir.tar.gz")
    archive.write_bytes(archive.read_bytes()[:-20])

    with pytest.raises(UserError, match="cut short"):
        place(make_job(str(archive)), log)

    assert files(folders.code) == {"train.py": "image"}
    assert sorted(path.name for path in folders.code.iterdir()) == ["train.py"]


def test_an_empty_source_is_an_error_rather_than_an_empty_code_folder(
    make_job: MakeJob, folders: Folders, tmp_path: Path, log: Log
) -> None:
    fill(folders.code, train="image")
    (tmp_path / "empty").mkdir()

    with pytest.raises(UserError, match="holds no files"):
        place(make_job(str(tmp_path / "empty")), log)

    assert files(folders.code) == {"train.py": "image"}


def test_a_source_within_the_code_folder_survives_both_runs(
    make_job: MakeJob, folders: Folders, source: Path, log: Log
) -> None:
    fill(folders.code, train="image")
    packed(source, folders.code / "sourcedir.tar.gz")
    job = make_job(str(folders.code / "sourcedir.tar.gz"))

    place(job, log)
    place(job, log)

    (folders.code / "sourcedir.tar.gz").unlink()
    assert files(folders.code) == SUBMITTED
    assert files(folders.scratch / "replaced-code") == {"train.py": "image"}


def test_a_folder_within_the_code_folder_survives(make_job: MakeJob, folders: Folders, log: Log) -> None:
    fill(folders.code / "project", train="submitted")
    job = make_job(str(folders.code / "project"))

    place(job, log)
    place(job, log)

    assert files(folders.code) == {"project/train.py": "submitted", "train.py": "submitted"}


def test_a_source_within_the_code_folder_that_would_replace_itself_is_refused(
    make_job: MakeJob, folders: Folders, log: Log
) -> None:
    fill(folders.code / "src", train="image")
    fill(folders.code / "src" / "src", model="image")

    with pytest.raises(UserError, match="'src', which cannot replace"):
        place(make_job(str(folders.code / "src")), log)

    assert files(folders.code) == {"src/train.py": "image", "src/src/model.py": "image"}


def test_links_within_the_source_stay_links_and_others_are_followed(
    make_job: MakeJob, folders: Folders, source: Path, tmp_path: Path, log: Log, read_log: Said
) -> None:
    fill(tmp_path / "elsewhere", shared="shared")
    (source / "again.py").symlink_to("train.py")
    (source / "absolute").symlink_to(source / "pkg")
    (source / "pkg" / "up.py").symlink_to("../train.py")
    (source / "shared").symlink_to("../elsewhere")
    (source / "dead").symlink_to("nothing")
    (source / "round").symlink_to("round")
    os.mkfifo(source / "fifo")

    place(make_job(str(source)), log)

    code = folders.code
    assert (code / "again.py").readlink() == Path("train.py")
    assert (code / "absolute").readlink() == Path("pkg")
    assert (code / "pkg" / "up.py").readlink() == Path("../train.py")
    assert not (code / "shared").is_symlink()
    assert (code / "shared" / "shared.py").read_text() == "shared"
    assert [line for line in read_log() if "left out" in line] == [
        f"[toolkit] warning: {source}/dead: expected a file or folder, found a link to nothing; it is left out",
        f"[toolkit] warning: {source}/fifo: expected a file or folder, found something else; it is left out",
        f"[toolkit] warning: {source}/round: expected a file or folder, found a link to nothing; it is left out",
    ]


def test_a_link_to_a_folder_that_holds_the_source_is_refused(
    make_job: MakeJob, source: Path, tmp_path: Path, log: Log
) -> None:
    (source / "pkg" / "loop").symlink_to(tmp_path)

    with pytest.raises(UserError, match="links to a folder that holds it"):
        place(make_job(str(source)), log)


def test_a_source_that_holds_the_jobs_own_folder_is_copied_without_it(
    make_job: MakeJob, folders: Folders, tmp_path: Path, log: Log
) -> None:
    fill(tmp_path, train="submitted")
    fill(folders.model, weights="not code")

    place(make_job(str(tmp_path)), log)

    assert files(folders.code) == {"train.py": "submitted"}


def test_the_jobs_own_folder_is_no_source(make_job: MakeJob, folders: Folders, log: Log) -> None:
    fill(folders.code, train="image")

    with pytest.raises(UserError, match="the job's own folder"):
        place(make_job(str(folders.base)), log)

    assert files(folders.code) == {"train.py": "image"}


def test_a_read_only_code_folder_is_an_error_that_says_what_to_do(
    make_job: MakeJob, folders: Folders, source: Path, log: Log, mount: Callable[..., None]
) -> None:
    mount(folders.code, "-o", "ro")

    with pytest.raises(UserError, match=rf"{folders.code}.*: Read-only file system\. Mount .* writable, or submit no"):
        place(make_job(str(source)), log)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder; a read-only mount is tested instead")
def test_a_forbidden_code_folder_is_an_error_that_says_what_to_do(
    make_job: MakeJob, folders: Folders, source: Path, log: Log
) -> None:
    folders.code.mkdir(parents=True)
    folders.code.chmod(0o555)

    with pytest.raises(UserError, match="Permission denied"):
        place(make_job(str(source)), log)


def test_a_full_code_folder_may_be_worth_another_try_and_keeps_what_it_held(
    make_job: MakeJob, folders: Folders, source: Path, log: Log, mount: Callable[..., None]
) -> None:
    mount(folders.code, "-o", "size=64k")
    fill(folders.code, train="image")
    (source / "large").write_bytes(bytes(1_000_000))

    with pytest.raises(ToolkitError, match="No space left on device") as caught:
        place(make_job(str(source)), log)

    assert caught.value.exit_code == 75
    assert files(folders.code) == {"train.py": "image"}


def test_files_replaced_in_a_mount_stay_in_the_mount(
    make_job: MakeJob, folders: Folders, source: Path, log: Log, mount: Callable[..., None]
) -> None:
    mount(folders.code)
    fill(folders.code, mine="of whoever mounted it")

    place(make_job(str(source)), log)
    place(make_job(str(source)), log)

    assert files(folders.code) == {**SUBMITTED, f"{ASIDE}/mine.py": "of whoever mounted it"}


def test_a_mount_within_the_code_folder_stays(
    make_job: MakeJob, folders: Folders, source: Path, log: Log, mount: Callable[..., None]
) -> None:
    mount(folders.code / "data")
    fill(folders.code / "data", rows="data")

    place(make_job(str(source)), log)

    assert files(folders.code) == {**SUBMITTED, "data/rows.py": "data"}


def test_a_file_of_the_source_that_cannot_be_looked_at_is_not_left_out(
    make_job: MakeJob, source: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlookable(monkeypatch, source / "train.py")

    with pytest.raises(PlatformError, match=f"{source}/train.py: .*Input/output error"):
        place(make_job(str(source)), log)


def test_what_may_be_mounted_in_the_code_folder_is_not_moved_away(
    make_job: MakeJob, folders: Folders, source: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folders.code / "data", rows="mine")
    unlookable(monkeypatch, folders.code / "data", errno.ESTALE)

    with pytest.raises(PlatformError, match=f"{folders.code}/data: .*Stale file handle"):
        place(make_job(str(source)), log)
    monkeypatch.undo()

    assert (folders.code / "data" / "rows.py").read_text() == "mine"
