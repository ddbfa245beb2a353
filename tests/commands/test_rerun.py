"""`toolkit rerun`: what it makes of a job, what it says first, and how it ends where something is missing."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from tests.train.base import Base

TOOLKIT = (sys.executable, "-m", "toolkit")
SCRIPT = """
import argparse, os, random
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--api_key", default="")
random.seed(parser.parse_args().seed)
rows = sum(len(open(os.path.join(folder, name)).read()) for folder in [os.environ["SM_CHANNEL_TRAINING"]]
           for name in sorted(os.listdir(folder)))
for step in range(3):
    print(f"host={os.environ['SM_CURRENT_HOST']} loss={rows * random.random():.6f} colour={os.environ.get('COLOUR')}")
"""
METRIC = r"loss=loss=([-+.0-9a-z]+)"


class Person:
    """A person in a folder with a script and data, and a catalogue of jobs of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "src").mkdir()
        (folder / "src/train.py").write_text(SCRIPT)
        (folder / "data").mkdir()
        (folder / "data/a.csv").write_text("1,2,3\n")

    def __call__(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environ = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "TOOLKIT_MONITOR": "off", **variables}
        return subprocess.run(
            (*TOOLKIT, *words), cwd=self.folder, env=environ, text=True, capture_output=True, check=False
        )

    def run(self, *words: str, **variables: str) -> None:
        options = ("--name", "first", "--channel", "training=data", "--metric", METRIC)
        done = self("run", "src/train.py", *options, *words, **variables)
        assert done.returncode == 0, done

    def losses(self, name: str) -> list[tuple[str, float]]:
        lines = (self.folder / "jobs" / name / "metrics.jsonl").read_text().splitlines()
        samples = [json.loads(line) for line in lines]
        return sorted((sample["host"], sample["value"]) for sample in samples if sample["name"] == "loss")

    def manifest(self, host: str = "algo-1") -> Path:
        return self.folder / "jobs/first/hosts" / host / "opt/ml/output/manifest.json"


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def test_a_job_runs_again_with_equal_losses_from_its_own_copies(person: Person) -> None:
    person.run("--hosts", "2", "--hyperparameter", "seed=7", "--env", "COLOUR=red")
    (person.folder / "src/train.py").write_text("raise SystemExit('edited')")
    (person.folder / "data/a.csv").write_text("edited")

    done = person("rerun", "first", "--plain")

    assert done.returncode == 0, done
    assert done.stdout.startswith("Source, channels, packages, variables and machine are those of first."), done
    assert f"note: channel training is the copy that the job had: {person.folder / 'data'}" in done.stdout
    assert person.losses("first-rerun") == person.losses("first")
    assert len(person.losses("first")) == 6
    assert "colour=red" in (person.folder / "jobs/first-rerun/logs/algo-2.log").read_text()


def test_it_says_first_what_cannot_be_the_same_and_a_dry_run_starts_nothing(person: Person) -> None:
    person.run("--hyperparameter", "seed=7", SIZE="1")
    manifest = json.loads(person.manifest().read_bytes())
    manifest["packages"]["msgspec"] = "0.0.1 0"
    manifest["hardware"]["cpu"] = "Abacus"
    manifest["left_out"] = ["documents: no access"]
    person.manifest().write_text(json.dumps(manifest))
    (person.folder / "other").mkdir()
    (person.folder / "other/b.csv").write_text("1")

    done = person("rerun", "first", "--dry-run", "--hyperparameter", "seed=8", "--channel", "training=other", SIZE="2")

    assert done.returncode == 0, done
    for text in ("hyperparameter seed: 7 -> 8", "package msgspec: 0.0.1 -> ", "machine CPU: Abacus -> "):
        assert f"\n  {text}" in done.stdout, done
    assert "\n  channel training, a.csv, b.csv: 1 files, 6 bytes" in done.stdout
    assert "\n  variable SIZE: a value with digest" in done.stdout
    assert not (person.folder / "jobs/first-rerun").exists()
    assert "manifest.json of first on algo-1 lacks something: documents: no access" in done.stderr


@pytest.mark.long
def test_what_the_platform_was_told_to_do_and_checkpoints_are_left_out(person: Person) -> None:
    checkpoints = f"file://{person.folder}/kept"
    words = ("--checkpoints", "checkpoints", "--stop-after", "1h", "--env", f"TOOLKIT_CHECKPOINT_URI={checkpoints}")
    request = person.folder / "jobs/first/request.json"
    person.run(*words[:4])
    document = json.loads(request.read_bytes())
    request.write_text(json.dumps({**document, "env": {"TOOLKIT_CHECKPOINT_URI": checkpoints}}))

    done = person("rerun", "first", "--plain")

    assert done.returncode == 0, done
    assert "note: without the checkpoints" in done.stdout
    assert "note: without the stop that was simulated" in done.stdout
    assert "note: without TOOLKIT_CHECKPOINT_URI" in done.stdout
    again = json.loads((person.folder / "jobs/first-rerun/request.json").read_bytes())
    assert not {"checkpoints", "stop-after"} & again.keys()
    assert "TOOLKIT_CHECKPOINT_URI" not in again["env"]


def test_secrets_stand_in_no_file_and_have_to_be_set_again(person: Person) -> None:
    secret = "sk-" + "aB3" * 12
    person.run("--hyperparameter", f"api_key={secret}", "--env", f"HF_TOKEN={secret}")

    texts = [(person.folder / "jobs/first/request.json").read_text(), person.manifest().read_text()]
    done = person("rerun", "first", "--dry-run")
    again = person("rerun", "first", "--dry-run", "--hyperparameter", "api_key=x", "--env", "HF_TOKEN=y")

    assert not [text for text in texts if secret in text]
    assert done.returncode == 78, done
    assert "expected a value for api_key, found that it was a secret" in done.stderr
    assert again.returncode == 0, again
    assert "HF_TOKEN" not in again.stdout


def test_a_folder_of_a_container_is_enough(person: Person, tmp_path: Path) -> None:
    base = Base(tmp_path / "container")
    base.hyperparameters({"seed": "5", "note": json.dumps("x" * 300)})
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([-+.0-9a-z]+)"}])
    base.inputs("training")
    (base.root / "input/data/training/a.csv").write_text("1,2\n")
    base.program(SCRIPT.replace("parse_args()", "parse_known_args()[0]"))
    done = base.train()
    assert done.status == 0, done

    again = person("rerun", str(base.root), "--name", "again", "--plain")

    assert again.returncode == 0, again
    first = [line.partition(" colour")[0] for line in done.log.splitlines() if line.startswith("host=")]
    log = (person.folder / "jobs/again/logs/algo-1.log").read_text().splitlines()
    assert [line.partition(" colour")[0] for line in log if line.startswith("host=")] == first


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Person:
    """A person with one job that has ended, which the tests leave as it is."""
    person = Person(tmp_path_factory.mktemp("ended"))
    person.run()
    return person


def damaged(kind: str, document: dict[str, Any]) -> str | None:
    texts = {
        "another version": json.dumps({**document, "schema_version": 2}),
        "cut": json.dumps(document)[:700],
        "of another kind": "[]",
        "wrong type": json.dumps({**document, "packages": ["x"]}),
        "empty": "",
    }
    return texts.get(kind)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("another version", "manifest.json: expected schema_version 1, found 2"),
        ("cut", "manifest.json: expected JSON, found a mistake"),
        pytest.param("of another kind", "manifest.json: expected object, got array", marks=pytest.mark.long),
        pytest.param("wrong type", "manifest.json: $.packages: expected object, got array", marks=pytest.mark.long),
        pytest.param("empty", "manifest.json: expected JSON, found an empty file", marks=pytest.mark.long),
        ("missing", "manifest.json: it is not there"),
    ],
)
def test_a_manifest_that_cannot_be_read_ends_it_with_78(ended: Person, kind: str, message: str) -> None:
    whole = ended.manifest().read_bytes()
    text = damaged(kind, json.loads(whole))
    ended.manifest().unlink()
    if text is not None:
        ended.manifest().write_text(text)

    try:
        done = ended("rerun", "first")
    finally:
        ended.manifest().write_bytes(whole)

    assert done.returncode == 78, done
    assert message in done.stderr, done
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing",), "expected the name of a job or its folder, found 'nothing'"),
        (("src",), "found no job.json and no output folder"),
        pytest.param(("first", "--name", "a b"), "toolkit rerun: --name: expected letters", marks=pytest.mark.long),
        (("first", "--channel", "training=nowhere"), "Say where they are: --channel training=PATH"),
        pytest.param(("first", "--channel", "training"), "expected NAME=PATH[:MODE]", marks=pytest.mark.long),
        (("first", "--name", "first"), "expected a name that no job has had"),
        pytest.param(("first", "--dry"), "unknown option --dry", marks=pytest.mark.long),
    ],
)
def test_a_mistake_ends_it_with_78_before_anything_starts(ended: Person, words: tuple[str, ...], message: str) -> None:
    done = ended("rerun", *words)

    assert done.returncode == 78, done
    assert message in done.stderr, done
    assert not (ended.folder / "jobs/first-rerun").exists()


def test_source_and_channels_that_are_gone_are_named(person: Person) -> None:
    person.run()
    job = person.folder / "jobs/first"
    (person.folder / "data").rename(person.folder / "away")
    (job / "hosts/algo-1/opt/ml/input/data/training/a.csv").unlink()
    (job / "hosts/algo-1/opt/ml/input/data/training").rmdir()
    without_data = person("rerun", "first")
    (job / "source/sourcedir.tar.gz").unlink()
    without_source = person("rerun", "first")

    assert without_data.returncode == without_source.returncode == 78
    assert "expected the files of channel training, found nothing at" in without_data.stderr
    assert "sourcedir.tar.gz: expected the source that the job was submitted with, found none" in without_source.stderr


def wheel_of_installed(name: str, folder: Path) -> None:
    """Write the wheel of an installed package of one interpreter's own tag into *folder*."""
    package = distribution(name)
    tag = next(line for line in (package.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: "))[5:]
    with zipfile.ZipFile(folder / f"{name}-{package.version}-{tag}.whl", "w") as archive:
        for file in package.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                archive.write(Path(str(file.locate())), str(file))


def wheel(name: str, version: str, folder: Path) -> None:
    information = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n")
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")


@pytest.mark.long
def test_a_venv_has_the_versions_that_ran_and_what_it_lacks_is_named(person: Person) -> None:
    person.run()
    wheels = person.folder / "wheels"
    wheels.mkdir()
    wheel_of_installed("msgspec", wheels)
    for version in ("1.0", "2.0"):
        wheel("tiny", version, wheels)
    manifest = json.loads(person.manifest().read_bytes())
    msgspec = manifest["packages"]["msgspec"]
    manifest["packages"] = {"gone": "3.0 0", "local": "1 0", "msgspec": msgspec, "tiny": "1.0 0"}
    manifest["package_places"] = {"local": "file:///src/local"}
    person.manifest().write_text(json.dumps(manifest))
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}

    done = person("rerun", "first", "--venv", "--plain", **offline)

    assert done.returncode == 0, done
    assert "package gone==3.0 cannot be installed from this index" in done.stdout, done
    assert "package local was installed from file:///src/local, which is left out" in done.stdout
    assert "package tiny" not in done.stdout
    ran = person.folder / "jobs/first-rerun/hosts/algo-1/opt/ml/output/manifest.json"
    again = json.loads(ran.read_bytes())
    assert again["packages"]["tiny"].startswith("1.0 ")
    assert again["interpreter"]["path"] == str(person.folder / "jobs/first-rerun-venv/bin/python")
    assert person.losses("first-rerun") == person.losses("first")


def test_a_comparison_names_what_differs_above_all_figures(ended: Person) -> None:
    copy = ended.folder / "jobs/copy"
    shutil.copytree(ended.folder / "jobs/first", copy, symlinks=True)
    file = copy / "hosts/algo-1/opt/ml/output/manifest.json"
    manifest = json.loads(file.read_bytes())
    manifest["packages"]["msgspec"] = "0.0.1 0"
    manifest["channels"]["training"]["tree"] |= {"digest": "0" * 32, "digests": {"a.csv": "0" * 16}}
    manifest["environment"]["PATH"] = "0" * 16
    file.write_text(json.dumps(manifest))

    text = ended("compare", "jobs/first", "jobs/copy", "-o", "-").stdout
    file.write_text(json.dumps({**manifest, "schema_version": 2}))
    of_another_version = ended("compare", "jobs/first", "jobs/copy", "-o", "-").stdout

    heading, _, figures = text.partition("SIDE BY SIDE")
    assert "Not the same: channel training, a.csv; package msgspec; variable PATH." in " ".join(heading.split())
    assert "training time, s" in figures
    assert "training time, s" not in heading
    assert "expected schema_version 1, found 2" in " ".join(of_another_version.split())
