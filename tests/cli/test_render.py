"""`toolkit render` as a person types it."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.mpi.test_places import NOBODY, as_nobody
from tests.train.base import ROOT

TOOLKIT = (sys.executable, "-m", "toolkit.cli.main", "render")


def render(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TOOLKIT, *words], cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_manifest_is_printed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('script = "train.py"\nhosts = 2\n')

    done = render(tmp_path, "job", "job.toml", "--image", "localhost/train", "--cpus", "4", "--memory", "8Gi")

    assert (done.returncode, done.stderr) == (0, "")
    assert "TOOLKIT_HOSTS" in done.stdout
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize("words", [("slurm", "--claim", "train=data"), ("compose", "--notice", "60")])
def test_a_word_that_a_kind_has_no_place_for_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "job.toml").write_text('script = "train.py"\n')

    done = render(tmp_path, words[0], "job.toml", *words[1:])

    assert (done.returncode, done.stdout) == (78, "")
    assert f"{words[1]}: expected it for" in done.stderr


def test_each_manifest_for_kubernetes_has_a_name_of_its_own_unless_one_is_given(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('script = "train.py"\nname = "digits"\n')
    words = ("job", "job.toml", "--image", "x", "--node", "pool=a", "--tolerate", "spot", "--secret", "s3")

    first, second = (render(tmp_path, *words) for _ in range(2))
    with_name = render(tmp_path, *words, "--name", "Mine")

    names = [re.findall("name: (\\S+)-job$", completed.stdout, re.M)[0] for completed in (first, second, with_name)]
    assert re.fullmatch("digits-[0-9a-f]{6}", names[0]) and names[0] != names[1] and names[2] == "mine"
    assert first.stdout.replace(names[0], names[1]) == second.stdout
    assert "without --cpus and --memory" in first.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("job", "--tolerate", "spot:Never"), "--tolerate: expected KEY, KEY=VALUE"),
        (("job", "--node", "a100"), "--node: expected LABEL=VALUE, found 'a100'"),
        (("job", "--name", "!!!"), "--name: expected letters, digits and inner dashes, at most 63, found '!!!'"),
        (("jobset", "--name", "my.job"), "--name: expected letters, digits and"),  # `train` refuses it, too.
        (("job", "--secret", "A_B"), "--secret: expected a name of"),
        (("job", "--gpus", "-1"), "--gpus: expected a whole number, 0 to 1,000,000, found -1"),
        (("slurm", "--notice", "0"), "--notice: expected a whole number, 1 to"),
        (("job", "--user", "me"), "--user: expected UID or UID:GID, in numbers, found 'me'"),
        (("job", "--memory", "64GB"), "expected a size as 512Mi or 64Gi, found '64GB'"),
        (("slurm", "--secret", "s3"), "--secret: expected it for job or jobset or trainjob alone, found it for slurm"),
        (("ray",), "--image: expected it for job or jobset"),
        (("batch", "--gpu-type", "A100"), "--gpu-type: expected it for sky or dstack alone, found it for batch"),
    ],
)
def test_a_wrong_choice_is_refused_by_name(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    (tmp_path / "job.toml").write_text('script = "train.py"\n')

    done = render(tmp_path, words[0], "job.toml", "--image", "x", *words[1:])

    assert (done.returncode, done.stdout) == (78, "")
    assert reason in done.stderr


def test_a_job_file_without_a_name_has_its_scripts(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"script": "train_it.py"}')

    first, second = (render(tmp_path, "slurm", "job.json") for _ in range(2))

    assert "#SBATCH --job-name=train-it\n" in first.stdout
    assert first.stdout == second.stdout


def test_a_secret_in_the_job_file_is_pointed_out_by_name(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('script = "train.py"\n[env]\nWANDB_API_KEY = "sesame-open-9"\n')

    done = render(tmp_path, "jobset", "job.toml", "--image", "x")

    assert done.returncode == 0
    assert "WANDB_API_KEY: the manifest shows it" in done.stderr
    assert "sesame" not in done.stderr


def test_what_is_wrong_ends_with_78_and_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('script = "train.py"\n')

    for words in (["job", "none.toml"], ["job", "job.toml"], ["job", "job.toml", "--image", "x", "--claim", "model"]):
        done = render(tmp_path, *words)
        assert (done.returncode, done.stdout) == (78, ""), words
        assert done.stderr.startswith("[toolkit] error: ")


@pytest.mark.parametrize(("kind", "left_out"), [("jobset", "kill, memory"), ("compose", "kill, memory, max-run")])
def test_what_a_manifest_leaves_out_of_the_job_file_is_said_and_its_image_taken(
    tmp_path: Path, kind: str, left_out: str
) -> None:
    job_file = 'script = "train.py"\nimage = "here/train"\nmemory = "2g"\nmax-run = "1h"\nkill = "algo-1@1s"\n'
    (tmp_path / "job.toml").write_text(job_file)

    done = render(tmp_path, kind, "job.toml")

    assert (done.returncode, "image: here/train\n" in done.stdout) == (0, True)
    assert f"takes from the job file: {left_out}\n" in done.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_compose_project_of_a_user_is_run_as_that_user_in_folders_of_theirs() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others.
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "job.json").write_text('{"script": "train.py", "name": "one", "checkpoints": "kept"}')
        words = (*as_nobody(), *TOOLKIT, "compose", "job.json", "--image", "x")
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}

        done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)

        assert done.returncode == 0, done.stderr
        assert f"{NOBODY}:{NOBODY}" in done.stdout
        for path in ("jobs/one/hosts/algo-1/model", "jobs/one/hosts/algo-1/output", "kept"):
            assert (folder / path).stat().st_uid == NOBODY
