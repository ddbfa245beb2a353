"""output/manifest.json: what `train` leaves of what ran, seen from outside."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.train.base import Base
from toolkit.train.provenance.variables import digest_variables, holds_secret


def manifest_of(base: Base) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((base.output / "manifest.json").read_bytes())
    return document


def run_with(folder: Path, *, data: bytes = b"1,2\n", program: str = "pass", **variables: str) -> dict[str, Any]:
    """Return the manifest of a job with one channel in a new *folder*."""
    base = Base(folder)
    base.inputs("training")
    (base.root / "input/data/training/a.csv").write_bytes(data)
    base.program(program)
    done = base.train(variables)
    assert done.status == 0, done
    return manifest_of(base)


def test_equal_jobs_leave_equal_digests(tmp_path: Path) -> None:
    first, second = run_with(tmp_path / "first"), run_with(tmp_path / "second")

    for key in ("source", "channels", "packages", "hardware", "interpreter", "hyperparameters", "seeds", "documents"):
        assert first[key] == second[key], key


def test_one_byte_of_a_channel_changes_the_channel_alone(tmp_path: Path) -> None:
    first, second = run_with(tmp_path / "first"), run_with(tmp_path / "second", data=b"1,3\n")

    trees = [job["channels"]["training"]["tree"] for job in (first, second)]
    assert trees[0]["digest"] != trees[1]["digest"]
    assert trees[0]["digests"].keys() == trees[1]["digests"].keys() == {"a.csv"}
    assert first["source"] == second["source"]


def test_a_variable_leaves_a_digest_of_its_value_and_a_secret_none(tmp_path: Path) -> None:
    texts = [
        run_with(tmp_path / number, COLOUR=colour, HF_TOKEN="hf_" + number * 17, NOTE="ghp_" + "aB3" * 12)
        for number, colour in (("01", "red"), ("02", "blue"))
    ]

    first, second = (text["environment"] for text in texts)
    assert first["COLOUR"] != second["COLOUR"]
    assert {first[name] for name in ("HF_TOKEN", "NOTE")} == {"secret"}
    assert "red" not in json.dumps(first)
    assert "hf_" not in json.dumps(texts)


@pytest.mark.parametrize("password", ["hunter2", "7"])
def test_a_document_with_a_secret_leaves_no_digest_to_guess_it_by(tmp_path: Path, password: str) -> None:
    base = Base(tmp_path)
    base.hyperparameters({"db_password": password, "epochs": "2"})
    base.program("pass")

    base.train()

    manifest = manifest_of(base)
    assert manifest["hyperparameters"]["db_password"] == "secret"
    assert manifest["documents"]["hyperparameters.json"] == "secret"
    assert manifest["documents"]["resourceconfig.json"] != "secret"


def test_seeds_are_those_of_hyperparameters_and_variables(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.hyperparameters({"random_seed": "7", "seedling": "3", "epochs": "2"})
    base.program("pass")

    base.train(PYTHONHASHSEED="0", TOOLKIT_IMAGE="registry/image@sha256:0", TOOLKIT_SOURCE_COMMIT="abc")

    manifest = manifest_of(base)
    assert manifest["seeds"] == {"random_seed": "7", "PYTHONHASHSEED": "0"}
    assert (manifest["image"], manifest["source_commit"]) == ("registry/image@sha256:0", "abc")


def test_a_script_that_ends_at_once_or_badly_has_one_too(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.executable("fast", "#!/bin/sh\nexit 3\n")
    base.program("#!/bin/sh\nexit 3\n", "fast.sh").chmod(0o755)
    base.hyperparameters(program="fast.sh")

    done = base.train()

    assert done.status == 3, done
    assert manifest_of(base)["script"] == "fast.sh"


def test_a_job_that_ends_before_its_script_leaves_none_and_not_that_of_an_earlier_run(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.output.mkdir(parents=True)
    (base.output / "manifest.json").write_text("{}")

    done = base.train()

    assert done.status == 78, done
    assert not (base.output / "manifest.json").exists()


def test_a_channel_that_does_not_answer_costs_the_digests_of_files_alone(tmp_path: Path) -> None:
    """A FUSE mount cannot be had everywhere: `os.open` of one file waits for ever instead."""
    base = Base(tmp_path)
    base.inputs("training")
    (base.root / "input/data/training/never.csv").write_text("1")
    base.program("print('trained')")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, threading\n"
        "opened = os.open\n"
        "def never(path, *words, **more):\n"
        "    if str(path).endswith('never.csv'):\n"
        "        threading.Event().wait()\n"
        "    return opened(path, *words, **more)\n"
        "os.open = never\n"
    )

    done = base.train(PYTHONPATH=str(tmp_path))

    assert done.status == 0, done
    assert done.succeeded
    assert "manifest.json lacks the digests of source and channels, whose files did not answer within 2 s" in done.log
    manifest = manifest_of(base)
    assert "msgspec" in manifest["packages"]
    assert (manifest["source"], manifest["channels"]["training"]["tree"]) == (None, None)
    assert manifest["left_out"]


def test_a_full_folder_of_output_costs_the_manifest_alone(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.program("pass")
    (base.output / "manifest.json").mkdir(parents=True)

    done = base.train()

    assert done.status == 0, done
    assert "manifest.json is not written: IsADirectoryError" in done.log


@pytest.mark.parametrize("change", ["none", "edited", "new file"])
def test_the_commit_of_the_source_stands_with_what_is_not_committed(tmp_path: Path, change: str) -> None:
    base = Base(tmp_path)
    base.program("pass")
    git = ("git", "-c", "user.name=n", "-c", "user.email=e@e", "-c", "init.defaultBranch=main")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run((*git, *words), cwd=base.code, check=True)
    commit = subprocess.check_output(("git", "rev-parse", "HEAD"), cwd=base.code, text=True).strip()
    if change != "none":
        base.program("pass # edited", "train.py" if change == "edited" else "new.py")

    base.train(PATH=os.environ["PATH"])

    recorded, plus, digest = manifest_of(base)["source_commit"].partition("+")
    assert recorded == commit
    assert (len(digest), plus) == ((0, "") if change == "none" else (16, "+"))


def test_packages_have_their_version_and_the_digest_of_their_record(tmp_path: Path) -> None:
    from hashlib import sha256
    from importlib.metadata import distribution

    package = distribution("msgspec")
    file = Path(str(package.locate_file(f"msgspec-{package.version}.dist-info/RECORD")))
    record = sha256(file.read_bytes()).hexdigest()[:16]

    manifest = run_with(tmp_path)

    assert manifest["packages"]["msgspec"] == f"{package.version} {record}"
    assert manifest["interpreter"]["version"] == ".".join(map(str, sys.version_info[:3]))


def test_a_manifest_has_at_most_30_kb_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.hyperparameters({f"layer_{number}": f'"{number:0100}"' for number in range(100)})
    base.program("pass")

    done = base.train({f"VARIABLE_{number}": "x" for number in range(600)})

    assert done.status == 0, done
    manifest = manifest_of(base)
    assert (base.output / "manifest.json").stat().st_size <= 30_000
    assert len(manifest["environment"]) == 1
    assert any("variables" in text for text in manifest["left_out"])


def test_a_script_that_ends_before_git_does_leaves_the_commit_and_outlives_nobody(tmp_path: Path) -> None:
    base = Base(tmp_path)
    (base.code / ".git").mkdir(parents=True)
    begun = tmp_path / "begun"
    base.executable("git", f"#!/bin/sh\n: > {begun}\nsleep 0.3\necho c0ffee\n")
    base.program(f"import os, time\nwhile not os.path.exists({str(begun)!r}): time.sleep(0.01)\n")

    done = base.train()

    assert done.status == 0, done
    assert "outlived" not in done.log
    assert manifest_of(base)["source_commit"].startswith("c0ffee+")


def test_secrets_by_name_and_the_address_of_messages_have_no_digest() -> None:
    variables = {"TOOLKIT_NOTIFY": "https://hooks.example.com/T00", "COLOUR": "red"}

    digests = digest_variables(variables, str)

    assert digests["TOOLKIT_NOTIFY"] == "secret" != digests["COLOUR"]
    assert holds_secret("TOOLKIT_NOTIFY", variables["TOOLKIT_NOTIFY"], str)
