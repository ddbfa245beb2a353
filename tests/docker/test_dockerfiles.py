"""What every Dockerfile keeps to; no engine is asked."""

import re
from pathlib import Path

import pytest

from tests.docker.engine import ROOT
from toolkit import __version__

FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
FRONT = re.compile(r"ARG BASE_IMAGE=[a-z0-9./-]+:[0-9][\w.-]*$", re.M)


def test_there_is_one_for_each_kind_of_job() -> None:
    assert {path.name.partition(".")[0] for path in FILES} == {"pytorch", "tensorflow", "mpi", "xla"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_dockerfile_is_short_pinned_and_builds_on_any_base(path: Path) -> None:
    text = path.read_text()

    assert len(text.splitlines()) < 50
    assert FRONT.search(text), "the base is an argument, its default has a version"
    assert "FROM ${BASE_IMAGE} AS python\n" in text
    assert "# syntax=" not in text, "that needs a registry"
    assert re.findall(r"^FROM (\S+)", text, re.M)[-1] in ("python", "frameworks"), "compilers stay behind"
    assert f"ARG VERSION={__version__}\n" in text
    assert "org.opencontainers.image.title" in text
    assert 'CMD ["toolkit", "health"]\n' in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_kernel_starts_train_itself(path: Path) -> None:
    assert path.read_text().endswith('\nENTRYPOINT []\nCMD ["train"]\n')


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_train_that_pip_brings_later_does_not_take_the_place_of_ours(path: Path) -> None:
    text = path.read_text().rpartition("\nFROM ")[2]

    assert "cp /opt/venv/bin/train /opt/toolkit/bin/\n" in text
    assert "\nENV PATH=/opt/toolkit/bin:/opt/venv/bin:$PATH " in path.read_text()


def test_they_begin_alike_so_that_a_machine_makes_the_first_layers_once() -> None:
    heads = {path.read_text().partition("\n")[2].partition("FROM python AS toolkit")[0] for path in FILES}

    assert len(heads) == 1


def test_the_build_takes_every_file_that_a_dockerfile_copies() -> None:
    taken = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = {name for path in FILES for name in re.findall(r"^COPY (?!--)(\S+) ", path.read_text(), re.M)} - {"."}

    assert copied <= set(taken)
    assert all((ROOT / name).exists() for name in taken)
