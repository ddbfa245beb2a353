import io
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.commands.simulate.nobody import nobodys_folder
from tests.job.file.made import job_file
from toolkit.commands.jobs.folders import RUN_MARK, is_locked
from toolkit.commands.simulate import check, source, stage
from toolkit.commands.simulate.earlier import EarlierResults
from toolkit.errors import ContractError, ToolkitError, UserError
from toolkit.job.channel import Channel
from toolkit.job.file.job_file import JobFile
from toolkit.log import Log
from toolkit.train.source.unpack import unpack


def asked_in(tmp_path: Path, hosts: int = 2, **more: Any) -> JobFile:
    source = tmp_path / "src"
    source.mkdir(exist_ok=True)
    (source / "train.py").write_text("print('hello')\n")
    names = tuple(f"algo-{number}" for number in range(1, hosts + 1))
    return job_file(**{"source": source, "hosts": names, "job_dir": tmp_path / "job", **more})


def staged(job_file: JobFile, **variables: str) -> tuple[stage.StagedHost, ...]:
    lock = stage.claim(job_file.run.job_dir)
    earlier_results = EarlierResults(job_file.run.job_dir)
    earlier_results.put_aside(Log())
    earlier_results.remove()
    os.close(lock)
    return stage.stage(job_file, {"PATH": os.environ["PATH"], **variables}, Log())


def members(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return sorted(tar.getnames())


def data_of(tmp_path: Path, *names: str) -> Path:
    folder = tmp_path / "data"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"content of {name}")
    return folder


def test_each_host_finds_its_own_documents(tmp_path: Path) -> None:
    first, second = staged(asked_in(tmp_path))

    config = tmp_path / "job/hosts/algo-2/opt/ml/input/config"
    assert second.setup.base == tmp_path / "job/hosts/algo-2/opt/ml"
    assert second.environ["SAGEMAKER_BASE_DIR"] == str(second.setup.base)
    assert sorted(path.name for path in config.iterdir()) == [
        "hyperparameters.json",
        "inputdataconfig.json",
        "metric-definition-regex.json",
        "resourceconfig.json",
    ]
    assert json.loads((config / "resourceconfig.json").read_text())["current_host"] == "algo-2"
    assert first.environ["MASTER_PORT"] == second.environ["MASTER_PORT"]


def test_the_source_is_submitted_as_it_is_now_without_what_is_no_code(tmp_path: Path) -> None:
    job_file = asked_in(tmp_path, checkpoints=tmp_path / "src/kept")
    for name in (
        "lib/model.py",
        ".git/HEAD",
        "__pycache__/train.pyc",
        "env/pyvenv.cfg",
        "env/bin/python",
        "kept/step.pt",
        "jobs/old/x",
        f"jobs/old/{RUN_MARK}",
    ):
        (job_file.source / name).parent.mkdir(parents=True, exist_ok=True)
        (job_file.source / name).write_text("")

    host, _ = staged(job_file)

    assert members(host.setup.submitted) == ["lib/model.py", "train.py"]


def test_a_backslash_in_a_name_of_the_source_stays_a_letter(tmp_path: Path) -> None:
    job_file = asked_in(tmp_path)
    (job_file.source / "a\\b.py").write_text("b")
    (job_file.source / "link").symlink_to("a\\b.py")

    host, _ = staged(job_file)
    unpack(host.setup.submitted, tmp_path / "code")

    assert (tmp_path / "code" / "a\\b.py").read_text() == (tmp_path / "code" / "link").read_text() == "b"


def test_links_of_the_source_are_submitted_as_what_they_lead_to_and_what_is_no_file_is_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job_file = asked_in(tmp_path)
    folder = job_file.source
    (tmp_path / "shared.py").write_text("shared")
    (tmp_path / "utils/deep").mkdir(parents=True)
    (tmp_path / "utils/deep/a.py").write_text("utils")
    (folder / "runs/empty").mkdir(parents=True)
    for name in ("lib/model.py", ".venv/site.py"):
        (folder / name).parent.mkdir()
        (folder / name).write_text(name)
    targets: dict[str, str | Path] = {
        "lib/main.py": "../train.py",
        "absolute.py": folder / "train.py",
        "library": "lib",
        "shared.py": "../shared.py",
        "site.py": ".venv/site.py",
        "lock": "nobody@nowhere:1",
        "itself": "itself",
        "utils": tmp_path / "utils",
        "above": tmp_path,
    }
    for name, target in targets.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")

    host, _ = staged(job_file)
    (tmp_path / "there").mkdir()
    unpack(host.setup.submitted, tmp_path / "there/code")

    code = tmp_path / "there/code"
    assert {
        path.relative_to(code).as_posix(): str(path.readlink()) for path in code.rglob("*") if path.is_symlink()
    } == {
        "lib/main.py": "../train.py",
        "absolute.py": "train.py",
        "library": "lib",
    }
    assert [(code / name).read_text() for name in ("shared.py", "utils/deep/a.py", "site.py", "library/model.py")] == [
        "shared",
        "utils",
        ".venv/site.py",
        "lib/model.py",
    ]
    assert members(host.setup.submitted) == sorted(
        (
            "lib/main.py",
            "absolute.py",
            "library",
            "shared.py",
            "site.py",
            "lib/model.py",
            "train.py",
            "runs/empty",
            "utils/deep/a.py",
        )
    )
    message = capfd.readouterr().err
    for words in (
        "lock is a link to nothing (nobody@nowhere:1); ",
        "pipe is a FIFO",
        "above is a link to the folder /",
    ):
        assert words in message
    assert "--channel NAME=" in message


def test_what_the_ignore_file_names_is_not_submitted_but_the_script_is(tmp_path: Path) -> None:
    job_file = asked_in(tmp_path)
    for name in ("data/a.bin", "deep/data/b.bin", "model.pt", "best.pt", "node_modules/x.js", "lib/a.py"):
        (job_file.source / name).parent.mkdir(parents=True, exist_ok=True)
        (job_file.source / name).write_text("")
    (job_file.source / ".toolkitignore").write_text("# large\n/data/\n*.pt\n!best.pt\n*.py\n")

    host, _ = staged(job_file)

    assert members(host.setup.submitted) == [".toolkitignore", "best.pt", "deep/data/b.bin", "train.py"]


def test_a_source_that_takes_long_is_described_with_its_largest_entries_and_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "SLOW_S", 0.0)
    job_file = asked_in(tmp_path)
    (job_file.source / "data").mkdir()
    (job_file.source / "data/weights.bin").write_bytes(bytes(3_000_000))

    staged(job_file)

    message = capfd.readouterr().err
    assert message.count("packing the source") == 1
    for words in ("data/ 3 MB", ".toolkitignore", "--channel NAME=PATH", "--source"):
        assert words in message


def test_what_cannot_be_read_is_named_and_the_rest_is_submitted(capfd: pytest.CaptureFixture[str]) -> None:
    with nobodys_folder() as folder:
        job_file = asked_in(
            folder, channels=(Channel(name="train", folder=data_of(folder, "a.txt", "b.txt", "shut/c.txt")),)
        )
        for name in ("lost+found", "deep/shut"):
            (job_file.source / name).mkdir(parents=True)
            (job_file.source / name).chmod(0)
        (job_file.source / "secret.txt").touch(mode=0)
        for name in ("b.txt", "shut"):
            (folder / "data" / name).chmod(0)

        host, _ = staged(job_file)

        assert members(host.setup.submitted) == ["train.py"]
        assert [path.name for path in (host.setup.base / "input/data/train").iterdir()] == ["a.txt"]
        stage.remove(folder / "src")  # The folders that nobody may read are removed, too.
        assert not (folder / "src").exists()
        (folder / "data/shut").chmod(0o700)
    source_line, channel_line = capfd.readouterr().err.splitlines()
    for name in ("deep/shut is a folder that", "lost+found is a folder that", "secret.txt is a file that"):
        assert f"{name} cannot be read" in source_line
    assert "shut is a folder that cannot be read (Permission denied)" in channel_line
    assert "b.txt is a file that cannot be read" in channel_line


def test_a_loop_of_links_in_a_channel_is_named_and_every_folder_is_there_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = data_of(tmp_path, "a.txt", "deep/b.txt")
    (folder / "up").symlink_to(".")
    (folder / "deep/up").symlink_to("..")
    (folder / "deep/top").symlink_to(folder)
    (folder / "again").symlink_to("deep")  # No loop: an upload to S3 has its files at both places.

    host, _ = staged(asked_in(tmp_path, channels=(Channel(name="train", folder=folder),)))

    channel = host.setup.base / "input/data/train"
    files = sorted(path.relative_to(channel).as_posix() for path in channel.rglob("*") if path.is_file())
    assert files == ["a.txt", "again/b.txt", "deep/b.txt"]
    message = capfd.readouterr().err
    for name in ("up", "deep/up", "deep/top", "again/up"):
        assert f"{name} is a link to a folder above it" in message


def test_a_large_source_is_announced_and_a_large_folder_behind_a_link_is_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "LARGE_BYTES", 1000)
    monkeypatch.setattr(source, "LINKED_BYTES", 1000)
    job_file = asked_in(tmp_path)
    (job_file.source / "weights.bin").write_bytes(bytes(1100))
    (job_file.source / "data").symlink_to(data_of(tmp_path, "a", *map("b/{}".format, range(80))))

    staged(job_file)

    message = capfd.readouterr().err
    assert "packing the source" in message and "2 files, 0 MB" in message
    assert f"data is a link to the folder {tmp_path}/data, which is large: give it as a channel" in message


def test_what_vanishes_while_it_is_submitted_is_named_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "LARGE_BYTES", 1000)
    data = data_of(tmp_path, "a.txt", "b.txt")
    job_file = asked_in(tmp_path, hosts=1, channels=(Channel(name="train", folder=data),))
    for name in ("gone", "stays"):
        (job_file.source / name).write_bytes(bytes(1100))
    lines: list[str] = []

    def hear(line: bytes) -> None:
        lines.append(line.decode())
        if "packing the source" in lines[-1]:  # All has been looked at, and nothing is packed.
            (job_file.source / "gone").unlink()

    log = Log()
    log.say_through(hear)
    job_file.run.job_dir.mkdir()
    content = stage.submit(job_file, log)
    (data / "a.txt").unlink()
    (host,) = stage.stage_hosts(job_file, {"PATH": os.environ["PATH"]}, content, log)

    assert members(tmp_path / "job/source/sourcedir.tar.gz") == ["stays", "train.py"]
    assert [path.name for path in (host.setup.base / "input/data/train").iterdir()] == ["b.txt"]
    text = "".join(lines)
    assert f"left out of the source {job_file.source}: gone is a file that is gone by now" in text
    assert f"left out of channel train of algo-1 {data}: a.txt is a file that is gone by now" in text


def test_a_file_that_becomes_shorter_while_it_is_packed_is_filled_up(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"1" * 1100)

    class Shrinks(io.BytesIO):
        def write(self, content: Any) -> int:
            os.truncate(log, 10)
            return super().write(content)

    packed = Shrinks()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        reason = source._add(tar, "log", log)

    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        content = tar.extractfile("log")
        assert content is not None
        assert content.read() == b"1" * 10 + bytes(1090)
    assert reason == "a file that became shorter while it was packed: its rest is zeros"


@pytest.mark.parametrize("backend", ["process", "docker"])
def test_nobody_else_reaches_what_was_submitted(tmp_path: Path, backend: Any) -> None:
    staged(asked_in(tmp_path, backend=backend, image="mine:1"))

    closed = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.stat().st_mode & 0o077 == 0]
    holding = {path.relative_to(tmp_path).parts[:2] for path in tmp_path.rglob("sourcedir.tar.gz")}
    assert {tuple(Path(path).parts) for path in closed} >= holding


def test_patterns_that_are_no_file_are_refused(tmp_path: Path) -> None:
    job_file = asked_in(tmp_path)
    os.mkfifo(job_file.source / ".toolkitignore")

    with pytest.raises(UserError, match=r"\.toolkitignore: expected a file of patterns, found a FIFO"):
        staged(job_file)


def test_what_is_no_file_is_left_out_of_a_channel(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = data_of(tmp_path, "a.txt")
    os.mkfifo(folder / "pipe")
    (folder / "gone").symlink_to("nowhere")

    host, _ = staged(asked_in(tmp_path, channels=(Channel(name="train", folder=folder),)))

    assert [path.name for path in (host.setup.base / "input/data/train").iterdir()] == ["a.txt"]
    assert capfd.readouterr().err == (
        f"[toolkit] warning: left out of channel train {folder}: gone is a link to nothing (nowhere); pipe is a FIFO\n"
    )


def test_a_requirements_file_is_submitted_under_its_usual_name(tmp_path: Path) -> None:
    job_file = asked_in(tmp_path, requirements=tmp_path / "mine.txt")
    (tmp_path / "mine.txt").write_text("msgspec\n")
    (job_file.source / "requirements.txt").write_text("another\n")

    host, _ = staged(job_file)

    with tarfile.open(host.setup.submitted) as tar:
        content = tar.extractfile("requirements.txt")
        assert content is not None and content.read() == b"msgspec\n"
    assert members(host.setup.submitted).count("requirements.txt") == 1


@pytest.mark.parametrize(("path", "name"), [("src/deep/r.json", "deep/r.json"), ("elsewhere/r.json", "r.json")])
def test_rules_are_submitted_and_named(tmp_path: Path, path: str, name: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text('[{"name": "a", "pattern": "b"}]')
    job_file = asked_in(tmp_path, rules=tmp_path / path)

    check.check(job_file)
    host, _ = staged(job_file)

    assert host.environ["TOOLKIT_RULES"] == name
    assert members(host.setup.submitted) == sorted([name, "train.py"])


def test_rules_that_cannot_be_used_are_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('[{"name": "a", "pattern": "("}]')
    (tmp_path / "train.py").write_text('[{"name": "a", "pattern": "b"}]')

    for path, words in (
        ("r.json", "r.json: rule 'a': pattern: expected a regular expression"),
        ("none.json", "none.json: expected a document of log rules, found nothing"),
        ("train.py", "expected TOML"),
    ):
        with pytest.raises(ToolkitError, match=re.escape(words)):
            check.check(asked_in(tmp_path, rules=tmp_path / path))
    (tmp_path / "src/r.json").touch()
    (tmp_path / "r.json").write_text('[{"name": "a", "pattern": "b"}]')
    with pytest.raises(UserError, match="found another r"):
        check.check(asked_in(tmp_path, rules=tmp_path / "r.json"))


def test_a_file_channel_is_a_copy_that_a_job_may_spoil(tmp_path: Path) -> None:
    folder = data_of(tmp_path, "a.txt", "deep/b.txt")

    host, _ = staged(asked_in(tmp_path, channels=(Channel(name="train", folder=folder),)))
    channel = host.setup.base / "input/data/train"
    (channel / "deep/b.txt").write_text("spoilt")

    assert (channel / "a.txt").read_text() == "content of a.txt"
    assert (folder / "deep/b.txt").read_text() == "content of deep/b.txt"


def test_a_fast_file_channel_copies_nothing_and_refuses_new_files(tmp_path: Path) -> None:
    folder = data_of(tmp_path, "a.txt", "deep/b.txt")

    host, _ = staged(asked_in(tmp_path, channels=(Channel(name="train", folder=folder, mode="FastFile"),)))
    channel = host.setup.base / "input/data/train"

    assert (channel / "deep/b.txt").read_text() == "content of deep/b.txt"
    assert (channel / "a.txt").is_symlink()
    assert [path.stat().st_mode & 0o777 for path in (channel, channel / "deep")] == [0o555, 0o555]
    stage.make_writable(host)
    assert channel.stat().st_mode & 0o777 == 0o755


def test_one_file_is_a_channel_with_one_file(tmp_path: Path) -> None:
    folder = data_of(tmp_path, "a.txt")

    host, _ = staged(asked_in(tmp_path, channels=(Channel(name="train", folder=folder / "a.txt"),)))

    assert [path.name for path in (host.setup.base / "input/data/train").iterdir()] == ["a.txt"]


def test_a_channel_that_holds_the_jobs_own_folder_is_not_copied_into_itself(tmp_path: Path) -> None:
    job_file = asked_in(tmp_path, channels=(Channel(name="train", folder=tmp_path),))
    (tmp_path / "a.txt").write_text("1")
    (job_file.run.job_dir / "source").mkdir(parents=True)
    (job_file.run.job_dir / "source" / "sourcedir.tar.gz").write_text("2")
    left_out: dict[str, str] = {}

    files = stage.channel_files(job_file.channels[0], left_out, job_file.run.job_dir)

    job_dir = job_file.run.job_dir.relative_to(tmp_path).as_posix()
    assert [name for name, _ in files if name.startswith(job_dir)] == []
    assert "a.txt" in dict(files)
    assert left_out == {job_dir: "this job's own folder"}


@pytest.mark.parametrize("linked", [False, True])
def test_a_channel_leaves_out_the_folders_of_other_jobs_and_says_so_unless_it_is_the_folder_of_jobs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], linked: bool
) -> None:
    data = data_of(tmp_path, "a", "b")
    real = tmp_path / "real" if linked else data
    for name in ("jobs/one", "jobs/two", "deep/elsewhere"):
        (real / name / "logs").mkdir(parents=True)
        (real / name / ".toolkit-job").touch()
        (real / name / "logs/log").touch()
    for name in ("jobs", "deep") if linked else ():
        (data / name).symlink_to(real / name)
    job_dir = real / "jobs/new"
    job_dir.mkdir()

    left_out: dict[str, str] = {}
    files = stage.channel_files(Channel(name="train", folder=data), left_out, job_dir)

    assert [name for name, _ in files] == ["a", "b"]
    others = dict.fromkeys(("jobs/one", "jobs/two", "deep/elsewhere"), "the folder of another job")
    assert left_out == {**others, "jobs/new": "this job's own folder"}
    of_jobs, of_one = (Channel(name="x", folder=real / name) for name in ("jobs", "jobs/one"))
    assert [name for name, _ in stage.channel_files(of_jobs, {}, job_dir) if "logs" in name] == [
        "one/logs/log",
        "two/logs/log",
    ]
    assert ("logs/log", real / "jobs/one/logs/log") in stage.channel_files(of_one, {}, job_dir)


@pytest.mark.parametrize("mode", ["File", "FastFile", "Pipe"])
def test_a_sharded_channel_gives_each_file_to_one_host(tmp_path: Path, mode: Any) -> None:
    folder = data_of(tmp_path, *"abcde")
    job_file = asked_in(tmp_path, channels=(Channel(name="train", folder=folder, mode=mode, sharded=True),))

    hosts = staged(job_file)

    files = stage.channel_files(job_file.channels[0], {})
    shares = [
        [name for name, _ in stage.host_share(job_file, job_file.channels[0], host.setup.host, files)] for host in hosts
    ]
    assert shares == [["a", "c", "e"], ["b", "d"]]
    if mode == "Pipe":
        assert [[path.name for path in host.feeds[0].files] for host in hosts] == shares
    else:
        file_names = [sorted(path.name for path in (host.setup.base / "input/data/train").iterdir()) for host in hosts]
        assert file_names == shares


def test_checkpoints_are_one_folder_for_all_hosts(tmp_path: Path) -> None:
    first, second = staged(asked_in(tmp_path, checkpoints=tmp_path / "kept"))
    (first.setup.base / "checkpoints/step.pt").write_text("7")

    assert (second.setup.base / "checkpoints/step.pt").read_text() == "7"
    assert (tmp_path / "kept/step.pt").read_text() == "7"


def test_a_job_may_follow_another_in_the_same_folder(tmp_path: Path) -> None:
    folder = data_of(tmp_path, "a.txt")
    job_file = asked_in(tmp_path, channels=(Channel(name="train", folder=folder, mode="FastFile"),))
    staged(job_file)
    for name in ("model.tar.gz", "job.json", "note of mine"):
        (job_file.run.job_dir / name).write_text("")

    staged(job_file)

    assert (folder / "a.txt").exists()
    assert not (job_file.run.job_dir / "model.tar.gz").exists()
    assert (job_file.run.job_dir / "note of mine").exists()


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/thesis.tex").write_text("")

    with pytest.raises(ContractError, match="found other files"):
        stage.claim(tmp_path / "job")

    assert (tmp_path / "job/thesis.tex").exists()


def test_a_file_in_the_jobs_place_is_no_running_job(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("")

    assert not is_locked(tmp_path / "job")


def test_two_jobs_never_share_a_folder(tmp_path: Path) -> None:
    lock = stage.claim(tmp_path / "job")

    with pytest.raises(ContractError, match="a job is running there"):
        stage.claim(tmp_path / "job")

    os.close(lock)
    os.close(stage.claim(tmp_path / "job"))


def test_a_job_folder_that_cannot_be_looked_at_is_not_called_one_where_a_job_runs(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("round")

    with pytest.raises(OSError, match=f"Too many levels of symbolic links: '{tmp_path}/round'"):
        check.check(asked_in(tmp_path, job_dir=tmp_path / "round"))


@pytest.mark.parametrize("place", ["job", "job/hosts", "job/logs/mine", "link"])
def test_checkpoints_among_the_jobs_own_results_are_refused_before_anything_starts(tmp_path: Path, place: str) -> None:
    """The next run with --replace would remove them."""
    (tmp_path / "link").symlink_to("job/hosts")

    with pytest.raises(
        UserError, match=f"{tmp_path / place}: expected a folder for checkpoints, found one of the job's"
    ):
        check.check(asked_in(tmp_path, checkpoints=tmp_path / place))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"requirements": Path("/nowhere/r.txt")}, ["/nowhere/r.txt", "requirements file"]),
        ({"channels": (Channel(name="train", folder=Path("/nowhere/d")),)}, ["/nowhere/d", "channel train"]),
        (
            {"channels": (Channel(name="train", folder=Path("/:Fiel")),)},
            ["'Fiel' is none of File, ", "Did you mean File?"],
        ),
        ({"channels": (Channel(name="train", folder=Path("/:fastfile")),)}, ["Did you mean FastFile?"]),
        ({"channels": (Channel(name="train", folder=Path("/:Shard:File")),)}, ["/:Shard:File: ", "'File' is none of"]),
        ({"requirements": Path("/dev")}, ["/dev: expected a requirements file, found a folder"]),
        ({"rules": Path("/dev")}, ["/dev: expected a document of log rules, found a folder"]),
        ({"script": Path("/dev/stdin")}, ["/dev/stdin: expected the path of a script in its folder, found a device"]),
        ({"hosts": 100_000}, ["expected at most ", "100,000 hosts need 781 GiB"]),
        ({"image": "mine:1"}, ["--image has no effect", "--backend docker"]),
        ({"memory_bytes": 1 << 30}, ["--memory", "--backend docker"]),
        ({"backend": "docker"}, ["--image", "docs/images.md"]),
        ({"processes_per_host": 2}, ["--processes-per-host 2 has no effect", "--distribution torchrun"]),
        (
            {"processes_per_host": 2, "distribution": "parameter_server"},
            ["--processes-per-host 2 has no effect"],
        ),
    ],
)
def test_what_is_not_there_is_said_before_anything_starts(tmp_path: Path, more: Any, words: list[str]) -> None:
    with pytest.raises((UserError, ContractError)) as raised:
        check.check(asked_in(tmp_path, **more))

    assert raised.value.exit_code == 78
    assert [word for word in words if word not in str(raised.value)] == []


@pytest.mark.parametrize(
    "more",
    [
        {"image": "mine:1", "backend": "process"},
        {"processes_per_host": 1},
        *({"processes_per_host": 2, "distribution": name} for name in ("mpi", "smddp", "pytorchxla")),
        {"processes_per_host": 2, "distribution": {"torch_distributed": {"enabled": True}, "instance_groups": ["a"]}},
    ],
)
def test_what_has_an_effect_or_was_said_on_purpose_passes(tmp_path: Path, more: Any) -> None:
    check.check(asked_in(tmp_path, **more))


def test_a_notebook_is_no_script(tmp_path: Path) -> None:
    job_file = asked_in(tmp_path, script=tmp_path / "src/train.ipynb")
    job_file.script.touch()

    with pytest.raises(UserError, match=r"found a notebook\. Make one of it: jupyter nbconvert --to script train"):
        check.check(job_file)


def test_a_script_whose_name_train_refuses_is_refused_before_the_start(tmp_path: Path) -> None:
    job_file = asked_in(tmp_path, script=tmp_path / "src/my script.py")
    job_file.script.touch()

    with pytest.raises(UserError, match=r"my script\.py: expected a path within the code folder, of letters, digits"):
        check.check(job_file)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    job_file = asked_in(tmp_path)
    job_file.script.unlink()

    (job_file.source / "trian.py").touch()
    with pytest.raises(UserError, match=r"train\.py: expected a script, found nothing\. Did you mean trian\.py\?"):
        check.check(job_file)


def test_a_missing_folder_of_the_source_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"

    with pytest.raises(UserError, match=f"^{gone}: expected the folder of the script, found nothing$"):
        check.check(asked_in(tmp_path, source=gone, script=gone / "train.py"))


def test_a_host_that_may_install_has_a_python_of_its_own_that_sees_ours(tmp_path: Path) -> None:
    job_file = asked_in(tmp_path, hosts=1)
    (job_file.source / "requirements.txt").write_text("")

    (host,) = staged(job_file)
    program = "import sys, msgspec, pip, toolkit; print(sys.prefix)"
    prefix = subprocess.run(
        [host.argv[0], "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path
    ).stdout

    assert prefix.strip() == str(tmp_path / "job/hosts/algo-1/python")
    assert host.environ["PATH"].startswith(str(tmp_path / "job/hosts/algo-1/python/bin") + ":")


def test_a_host_that_installs_nothing_uses_our_python(tmp_path: Path) -> None:
    (host,) = staged(asked_in(tmp_path, hosts=1))

    assert host.argv == (sys.executable, "-m", "toolkit.cli.main", "train")


def test_as_many_ports_as_are_asked_for_are_free_from_the_one_below_on() -> None:
    """TensorFlow's servers use the ports above the rendezvous port."""
    port = stage.free_port(8)

    with ExitStack() as taken:
        for number in range(port - 1, port + 8):
            taken.enter_context(socket.socket()).bind(("127.0.0.1", number))
