"""The command that starts a host's container: arguments of `docker run`, from a job file."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.job.file.made import job_file
from toolkit.commands.simulate import containers, stage
from toolkit.commands.simulate.check import check
from toolkit.commands.simulate.documents import HostSetup
from toolkit.errors import UserError
from toolkit.job.channel import Channel
from toolkit.job.file.job_file import JobFile
from toolkit.log import Log

SETUP = HostSetup(
    host="algo-2",
    base=Path("/j/hosts/algo-2/opt/ml"),
    submitted=Path("/opt/ml/input/sourcedir.tar.gz"),
    port=1,
    cpus=1,
    contained=True,
)


def contained(tmp_path: Path = Path("/"), **more: Any) -> JobFile:
    options = {"backend": "docker", "image": "mine:1", "job_dir": tmp_path / "job", **more}
    return job_file(source=tmp_path / "src", **options)


def after(argv: tuple[str, ...], word: str) -> list[str]:
    """Return the argument after each *word*."""
    return [argv[index + 1] for index, token in enumerate(argv) if token == word]


def test_a_container_has_its_hosts_name_in_the_jobs_network_and_opt_ml() -> None:
    argv = containers.argv(contained(), SETUP, {"A": "b c", "E": ""}, ["/data:/data:ro"], gpus="", user="")

    assert argv[:2] == ("docker", "run")
    assert argv[-2:] == ("mine:1", "train")
    assert after(argv, "--name") == ["job-algo-2"]
    assert after(argv, "--network-alias") == after(argv, "--hostname") == ["algo-2"]
    assert after(argv, "--network") == ["toolkit-job"]
    assert after(argv, "--volume") == ["/j/hosts/algo-2/opt/ml:/opt/ml", "/data:/data:ro"]
    assert after(argv, "--env") == ["A=b c", "E="]
    assert after(argv, "--shm-size") == [str(1 << 30)]
    assert "--memory" not in argv
    assert "--gpus" not in argv


def test_limits_and_gpus_are_passed_on() -> None:
    argv = containers.argv(contained(memory_bytes=1 << 20, shm_bytes=1 << 21), SETUP, {}, [], gpus="all", user="")

    assert after(argv, "--memory") == after(argv, "--memory-swap") == [str(1 << 20)]
    assert after(argv, "--shm-size") == [str(1 << 21)]
    assert after(argv, "--gpus") == ["all"]


@pytest.mark.parametrize(("user", "words"), [("", []), ("1000:100", ["1000:100"])])
def test_files_are_the_persons(user: str, words: list[str]) -> None:
    argv = containers.argv(contained(), SETUP, {}, [], gpus="", user=user)

    assert after(argv, "--user") == words
    assert ("HOME=/tmp" in after(argv, "--env")) == bool(user)


@pytest.mark.parametrize(
    ("host", "hosts", "count", "words"),
    [
        (0, 1, 0, ""),
        (0, 1, 8, "all"),
        (0, 2, 8, '"device=0,1,2,3"'),
        (1, 2, 8, '"device=4,5,6,7"'),
        (1, 3, 4, '"device=1"'),
        (1, 2, 1, "all"),
    ],
)
def test_gpus_are_dealt_out_over_the_hosts(host: int, hosts: int, count: int, words: str) -> None:
    assert containers.gpus_for(host, hosts, count) == words


def test_links_lead_to_folders_that_the_container_sees_at_the_same_paths(tmp_path: Path) -> None:
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/b").touch()
    (tmp_path / "data/deep/a").touch()
    (tmp_path / "data/b").symlink_to(tmp_path / "elsewhere/b")
    channel = Channel(name="train", folder=tmp_path / "data", mode="FastFile")

    folders = stage.linked_folders(channel, stage.channel_files(channel, {}))

    assert folders == [tmp_path / "data", tmp_path / "elsewhere"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"image": None}, "--image"),
        ({"backend": "process", "memory_bytes": 1}, "--backend docker"),
        ({"backend": "process", "shm_bytes": 1}, "--backend docker"),
    ],
)
def test_a_backend_that_cannot_serve_a_word_says_so(tmp_path: Path, words: dict[str, Any], message: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()

    with pytest.raises(UserError) as caught:
        check(contained(tmp_path, **words))

    assert message in str(caught.value)


def test_a_contained_host_is_told_of_opt_ml_and_nothing_of_the_persons(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()
    job = contained(tmp_path, checkpoints=tmp_path / "kept")
    os.close(stage.claim(job.run.job_dir))

    first, _ = stage.stage(job, {"PATH": "/usr/bin", "HF_TOKEN": "secret"}, Log())

    variables = after(first.argv, "--env")
    assert not [
        pair for pair in variables if pair.startswith(("PATH=", "HF_TOKEN=", "SAGEMAKER_BASE_DIR=", "MASTER_PORT="))
    ]
    assert f"{tmp_path}/kept:/opt/ml/checkpoints" in after(first.argv, "--volume")
    assert (first.setup.base / "input/sourcedir.tar.gz").is_file()
    assert '"/opt/ml/checkpoints"' in (first.setup.base / "input/config/checkpointconfig.json").read_text()
    assert '"network_interface_name": "eth0"' in (first.setup.base / "input/config/resourceconfig.json").read_text()
