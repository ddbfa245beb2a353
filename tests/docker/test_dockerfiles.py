"""Every Dockerfile keeps the same rules; no engine is needed."""

import re
from pathlib import Path

import pytest

from tests.docker.engine import ROOT
from toolkit import __version__

FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
FOR_GPUS = [path for path in FILES if path.name != "xla.Dockerfile"]  # torch_xla supports no GPUs.
FRONT = re.compile(r"ARG BASE_IMAGE=[a-z0-9./-]+:[0-9][\w.-]*$", re.M)


def last_stage(text: str) -> str:
    return text.rpartition("\nFROM ")[2]


def test_there_is_one_for_each_kind_of_job() -> None:
    assert {path.name.partition(".")[0] for path in FILES} == {"pytorch", "tensorflow", "mpi", "xla"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_dockerfile_is_short_pinned_and_builds_on_any_base(path: Path) -> None:
    text = path.read_text()
    ancestors = {name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)", text, re.M)}
    lineage = [last_stage(text).split()[0].replace("${DEVICE}", "gpu")]
    while lineage[-1] in ancestors:
        lineage.append(ancestors[lineage[-1]].replace("${DEVICE}", "gpu"))

    assert len(text.splitlines()) < 105
    assert FRONT.search(text), "the base is an argument, its default has a version"
    assert lineage[-2:] == ["python", "${BASE_IMAGE}"]
    assert "# syntax=" not in text, "that needs a registry"
    assert not {"horovod", "toolkit"} & set(lineage), "what builds wheels stays behind"
    assert f"ARG VERSION={__version__}\n" in text
    assert "org.opencontainers.image.title" in text
    assert 'CMD ["toolkit", "health"]\n' in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_image_can_measure_gpus_and_reach_storage(path: Path) -> None:
    text = path.read_text()
    extras = re.findall(r"^ARG EXTRAS=([a-z,]+)$", text, re.M)[0].split(",")
    optional = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().partition("dependencies]\n")[2], re.M)

    assert {"monitor", "storage"} <= set(extras) <= set(optional)
    assert '"$(echo /toolkit/*.whl)${EXTRAS:+[$EXTRAS]}"' in text.partition("ARG EXTRAS=")[2]


@pytest.mark.parametrize("path", FOR_GPUS, ids=lambda path: path.name)
def test_an_image_is_for_gpus_unless_it_is_asked_for_cpus_alone(path: Path) -> None:
    text = path.read_text()
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n((?:(?!FROM ).*\n)*)", text, re.M))

    assert "ARG DEVICE=gpu\n" in text.partition("FROM ")[0]
    assert "\nFROM image-${DEVICE}\n" in text
    assert "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n" in stages["image-gpu"]
    assert stages["image-cpu"].strip() == ""
    assert "NVIDIA" not in last_stage(text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_image_may_run_as_a_user_of_its_own(path: Path) -> None:
    text = path.read_text()

    assert " && useradd --create-home --uid 10001 trainer\n" in text.partition("FROM python AS toolkit")[0]
    assert "ARG RUN_AS=root\nUSER ${RUN_AS}\n" in last_stage(text)


@pytest.mark.parametrize("name", ["pytorch", "mpi"])
def test_an_image_may_have_what_inductor_and_triton_call_below_the_frameworks(name: str) -> None:
    text = (ROOT / f"docker/{name}.Dockerfile").read_text()
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n((?:(?!FROM ).*\n)*)", text, re.M))

    assert "ARG COMPILER=1\n" in stages["compiler-gpu"] and "g++ libc6-dev python3-dev" in stages["compiler-gpu"]
    assert "ARG COMPILER=0\n" in stages["compiler-cpu"] and "g++ libc6-dev python3-dev" in stages["compiler-cpu"]
    assert "\nFROM compiler-${DEVICE} AS frameworks\n" in text


def test_awss_image_is_replaced_at_its_entry() -> None:
    text = (ROOT / "docker/aws/Dockerfile").read_text()

    assert text.endswith('\nENTRYPOINT []\nCMD ["train"]\n')
    assert "ENV PATH=/opt/toolkit/bin:$PATH\n" in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_kernel_starts_train_itself(path: Path) -> None:
    assert path.read_text().endswith('\nENTRYPOINT []\nCMD ["train"]\n')


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_train_that_pip_brings_later_does_not_take_the_place_of_ours(path: Path) -> None:
    text = path.read_text()

    assert "cp /opt/venv/bin/train /opt/toolkit/bin/\n" in text.rpartition("pip install")[2]
    assert "\nENV PATH=/opt/toolkit/bin:/opt/venv/bin:$PATH " in text


def test_they_begin_alike_so_that_a_machine_makes_the_first_layers_once() -> None:
    heads = {path.read_text().partition("\nFROM ")[2].partition("FROM python AS toolkit")[0] for path in FILES}

    assert len(heads) == 1


def test_the_build_takes_every_file_that_a_dockerfile_copies() -> None:
    taken = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = {name for path in FILES for name in re.findall(r"^COPY (?!--)(\S+) ", path.read_text(), re.M)} - {"."}

    assert copied <= set(taken)
    assert all((ROOT / name).exists() for name in taken)
