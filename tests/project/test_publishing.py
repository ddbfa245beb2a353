"""Published files can be built again to the byte, and the workflows that publish them run every test."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project.test_repository import PYPROJECT, ROOT, tracked

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))


def workflow(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text()))


def built(folder: Path, umask: int, time_s: int, *targets: str) -> dict[str, bytes]:
    """Build *targets* from a copy of the repository in *folder*, whose files have the time *time_s*."""
    old_umask = os.umask(umask)
    try:
        for path in tracked():
            target = folder / path.relative_to(ROOT)
            if target.relative_to(folder).parts[0] in ("tests", "entrypoints", "scripts", "docker"):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            os.utime(target, (time_s, time_s))
        words = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder / "dist")]
        chosen = [word for target in targets for word in ("--target", target)]
        for project, more in ((folder, chosen), (folder / "distributions/sagemaker_training", ["--target", "wheel"])):
            done = subprocess.run([*words, *more], cwd=project, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    finally:
        os.umask(old_umask)
    return {path.name: path.read_bytes() for path in (folder / "dist").iterdir()}


def test_two_builds_of_what_is_published_are_equal(tmp_path: Path) -> None:
    first = built(tmp_path / "one", 0o022, 1_600_000_000, "wheel", "sdist")
    other = built(tmp_path / "another folder", 0o077, 1_700_000_000, "wheel", "sdist")

    assert sorted(name.rpartition(".")[2] for name in first) == ["gz", "whl", "whl"]
    assert first.keys() == other.keys()
    assert [name for name in first if first[name] != other[name]] == []


def test_the_workflows_run_every_test_once() -> None:
    rows = workflow("ci")["jobs"]["tests"]["strategy"]["matrix"]["include"]
    chosen = [path for row in rows for name in row["tests"].split() for path in ROOT.glob(name)]
    files = [file for path in chosen for file in ([path] if path.is_file() else path.glob("**/test_*.py"))]

    assert sorted(files) == sorted(ROOT.glob("tests/**/test_*.py"))


def test_the_workflows_make_every_bed() -> None:
    rows = workflow("ci")["jobs"]["tests"]["strategy"]["matrix"]["include"]

    assert {bed for row in rows for bed in row.get("beds", "").split()} == {
        path.name for path in ROOT.glob("scripts/beds/*")
    }


def test_the_workflows_test_every_python_that_the_project_names() -> None:
    versions = {line.rpartition(" ")[2] for line in PYPROJECT["project"]["classifiers"] if ":: 3." in line}

    assert versions <= set(workflow("ci")["jobs"]["pythons"]["strategy"]["matrix"]["python"])


def test_the_workflows_commands_are_files_of_the_repository() -> None:
    scripts = {word for path in WORKFLOWS for word in re.findall(r"\bscripts/[\w-]+(?![\w/$-])", path.read_text())}

    assert {"scripts/check", "scripts/site", "scripts/test", "scripts/release"} <= scripts
    assert [name for name in sorted(scripts) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_no_right_but_those_that_a_job_names_and_pins_what_it_uses(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    uses = re.findall(r"uses: (\S+)", path.read_text())

    assert document["permissions"] == {}
    assert all("permissions" in job for job in document["jobs"].values())
    assert [use for use in uses if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}|\./\.github/.*", use)] == []
