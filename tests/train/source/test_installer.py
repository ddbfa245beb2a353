"""The choice of the program that installs, and the options of pip that uv is given."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from toolkit.errors import UserError
from toolkit.job.job import Job
from toolkit.train.source import installer
from toolkit.train.source.installer import Installer, choose

MakeJob = Callable[..., Job]
Wanted = Literal["auto", "uv", "pip"]


class Image:
    """A home with pip's configuration, and a folder of programs with uv."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.home = folder / "home"
        (self.home / ".config/pip").mkdir(parents=True)
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.uv = self.programs / "uv"
        self.uv.write_text("")
        self.uv.chmod(0o755)
        self._job = msgspec.structs.replace(job, interpreter=str(folder / "env/bin/python"))

    def configure(self, text: str) -> None:
        (self.home / ".config/pip/pip.conf").write_text(text)

    def choose(self, *lines: str, wanted: Wanted = "auto", **variables: str) -> Installer:
        environ = {"PATH": str(self.programs), "HOME": str(self.home), "PIP_BREAK_SYSTEM_PACKAGES": "0", **variables}
        settings = msgspec.structs.replace(self._job.settings, installer=wanted)
        job = msgspec.structs.replace(self._job, environ=environ, settings=settings)
        return choose(job, [(Path("requirements.txt"), line) for line in lines])


@pytest.fixture
def image(make_job: MakeJob, tmp_path: Path) -> Image:
    return Image(make_job(), tmp_path)


def options(chosen: Installer) -> tuple[str, ...]:
    """Return the options of uv that this job has, and another may not have."""
    assert chosen.name == "uv", chosen.choice
    return chosen.argv[chosen.argv.index("--python") + 2 :]


def test_pips_files_reach_uv_under_its_own_names_and_a_variable_wins(image: Image) -> None:
    image.configure("[global]\nindex-url = https://file\nfind-links = /a\n  /b\n[install]\nno_index = true\n")

    chosen = image.choose("six", PIP_INDEX_URL="https://variable", PIP_CONSTRAINT="a.txt b.txt", PIP_TIMEOUT="9")

    environ = chosen.environ
    assert (environ["UV_DEFAULT_INDEX"], environ["UV_INDEX_URL"]) == ("https://variable", "https://variable")
    assert (environ["UV_FIND_LINKS"], environ["UV_CONSTRAINT"]) == ("/a,/b", "a.txt b.txt")
    assert environ["UV_HTTP_TIMEOUT"] == "9"
    assert options(chosen) == ("--no-index",)


def test_a_variable_of_uvs_own_is_left_alone(image: Image) -> None:
    chosen = image.choose("six", PIP_INDEX_URL="https://pip", UV_DEFAULT_INDEX="https://uv", UV_INDEX_STRATEGY="x")

    assert (chosen.environ["UV_DEFAULT_INDEX"], chosen.environ["UV_INDEX_STRATEGY"]) == ("https://uv", "x")


@pytest.mark.parametrize(
    ("lines", "variables", "given"),
    [
        (("six==1.17 --hash=sha256:00",), {}, ("--require-hashes",)),
        (("six==1.17 \\", "--hash=sha256:00"), {"PIP_REQUIRE_HASHES": "1"}, ("--require-hashes",)),
        (("six",), {"PIP_TARGET": "/there", "PIP_PRE": "true"}, ("--prerelease", "allow", "--target", "/there")),
        (("six",), {"PIP_NO_CACHE_DIR": "1", "PIP_NO_DEPS": "yes"}, ("--no-deps", "--no-cache")),
        (("six",), {"PIP_NO_INDEX": "0", "PIP_PROGRESS_BAR": "off", "PIP_QUIET": "3"}, ()),
        (("-e .", "-r more.txt", "-i there", "--only-binary :all:", "--find-links=x"), {}, ()),
    ],
)
def test_pips_options_become_uvs(
    image: Image, lines: tuple[str, ...], variables: dict[str, str], given: tuple[str, ...]
) -> None:
    assert options(image.choose(*lines, wanted="auto", **variables)) == given


@pytest.mark.parametrize(
    ("line", "variables", "reason"),
    [
        ("six", {"PIP_USER": "1"}, "uv has no counterpart of pip's option user"),
        ("--pre", {}, "uv does not take the line '--pre' of requirements.txt"),
        ("six --config-settings a=b", {}, "uv does not take --config-settings, as requirements.txt has it"),
    ],
)
def test_where_uv_would_install_something_else_pip_installs_and_the_reason_is_given(
    image: Image, line: str, variables: dict[str, str], reason: str
) -> None:
    chosen = image.choose(line, wanted="auto", **variables)

    assert (chosen.name, chosen.choice) == ("pip", f"pip installs, not uv: {reason}")
    with pytest.raises(UserError, match=r"uv installs as pip would.*") as raised:
        image.choose(line, wanted="uv", **variables)
    assert reason in str(raised.value)


def test_pip_is_taken_where_the_user_says_so(image: Image) -> None:
    chosen = image.choose("six", wanted="pip")

    assert (chosen.name, chosen.choice) == ("pip", "")


def test_uv_must_be_there_where_the_user_wants_it(image: Image) -> None:
    image.uv.unlink()

    with pytest.raises(UserError, match="expected uv on PATH, found none"):
        image.choose("six", wanted="uv")


@pytest.mark.parametrize("content", [b"no section\n", b"[global]\nindex-url = \xff\n"])
def test_a_file_of_pip_that_cannot_be_read_is_named(image: Image, content: bytes) -> None:
    (image.home / ".config/pip/pip.conf").write_bytes(content)

    with pytest.raises(UserError, match="expected pip's configuration"):
        image.choose("six")


def test_no_file_is_read_where_pip_reads_none(image: Image) -> None:
    image.configure("[global]\nindex-url = https://file\n")

    assert "UV_DEFAULT_INDEX" not in image.choose("six", PIP_CONFIG_FILE=os.devnull).environ


def test_without_a_home_uv_keeps_no_cache(image: Image) -> None:
    assert image.choose("six", HOME="/proc/1").environ["UV_NO_CACHE"] == "1"
    assert "UV_NO_CACHE" not in image.choose("six").environ


def test_packages_that_uv_would_not_see_leave_it_to_pip(
    make_job: MakeJob, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, empty = tmp_path / "elsewhere", tmp_path / "empty"
    for folder, name in ((elsewhere, "six-1.17.dist-info"), (empty, "msgspec-0.20.dist-info")):
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "absent.zip"), str(empty), str(elsewhere)])
    environ = {"PATH": str(image.programs), "HOME": str(image.home)}
    job = msgspec.structs.replace(make_job(interpreter=sys.executable), environ=environ)

    assert choose(job, []).choice.endswith(f"uv does not see the packages in {elsewhere}")
    monkeypatch.setattr(sys, "path", [str(empty)])
    assert choose(job, []).name == "uv"


def test_an_environment_that_shows_the_images_packages_is_left_to_pip(image: Image, tmp_path: Path) -> None:
    image._job = msgspec.structs.replace(image._job, packages=tmp_path)

    assert "would install the image's packages again" in image.choose("six").choice


def test_a_container_is_told_by_its_files(tmp_path: Path) -> None:
    assert not installer.in_container({}, tmp_path)
    (tmp_path / ".dockerenv").touch()
    assert installer.in_container({}, tmp_path)
