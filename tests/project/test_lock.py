"""The files of locks/ have what the groups of pyproject.toml ask for, with hashes, and no address of an index."""

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.project.test_repository import PYPROJECT, ROOT

GROUPS = {"setup": ["test", "lint", "digits"], "docs": ["docs"], "release": ["release"]}
APART = "torch"  # The build that fits the machine, as scripts/setup chooses it.


def locked(name: str) -> dict[str, list[tuple[Requirement, list[str]]]]:
    """Return the lines of locks/NAME.txt, with the hashes of each, by package; markers may divide a package."""
    packages: dict[str, list[tuple[Requirement, list[str]]]] = {}
    for line in (ROOT / "locks" / f"{name}.txt").read_text().replace("\\\n", " ").splitlines():
        requirement = Requirement(line.partition(" --hash")[0])
        hashes = re.findall(r"--hash=(\S+)", line)
        packages.setdefault(canonicalize_name(requirement.name), []).append((requirement, hashes))
    return packages


@pytest.mark.parametrize("name", GROUPS)
def test_a_lock_has_one_version_that_each_group_accepts(name: str) -> None:
    lines = [line for group in GROUPS[name] for line in PYPROJECT["dependency-groups"][group]]
    lines += PYPROJECT["project"]["dependencies"] if name == "setup" else []
    packages = locked(name)

    for needed in map(Requirement, lines):
        if needed.name == APART:
            continue
        assert canonicalize_name(needed.name) in packages, f"{needed}: run scripts/locked --renew"
        for requirement, _ in packages[canonicalize_name(needed.name)]:
            (version,) = requirement.specifier
            assert version.operator == "=="
            assert needed.specifier.contains(version.version), f"{needed}: run scripts/locked --renew"


@pytest.mark.parametrize("name", GROUPS)
def test_a_lock_has_hashes_of_every_package_and_no_address(name: str) -> None:
    text = (ROOT / "locks" / f"{name}.txt").read_text()

    assert "://" not in text
    assert [package for package, lines in locked(name).items() for _, hashes in lines if not hashes] == []
    assert {value.partition(":")[0] for lines in locked(name).values() for _, hashes in lines for value in hashes} == {
        "sha256"
    }


def test_the_lock_of_setup_leaves_torch_to_the_machine() -> None:
    assert APART not in locked("setup")
