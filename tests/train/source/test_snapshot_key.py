"""The key of a package snapshot changes with what is installed, and with no secret."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from toolkit.job.job import Folders, Job, Script
from toolkit.train.source import snapshot_key, tree_digest
from toolkit.train.source.install import list_requirement_lines
from toolkit.train.source.snapshot_key import UnfitError

MakeJob = Callable[..., Job]


class Case:
    """A job whose requirements.txt has *text*."""

    def __init__(self, make_job: MakeJob, folder: Path) -> None:
        self._make_job, self.folder = make_job, folder
        self.installer = "pip"
        self.kind: Literal["program", "package"] = "program"
        folder.mkdir(parents=True)

    def key(self, text: str = "numpy\n", **more: str) -> str:
        (self.folder / "requirements.txt").write_text(text)
        script = Script(entry="train.py", kind=self.kind, folder=self.folder)
        job = msgspec.structs.replace(self._make_job(script=script), environ={"PIP_CONFIG_FILE": os.devnull, **more})
        return snapshot_key.make(job, self.installer, "/opt/python/bin/python", list_requirement_lines(self.folder))


@pytest.fixture
def case(make_job: MakeJob, folders: Folders) -> Case:
    return Case(make_job, folders.code)


def test_equal_requirements_have_one_key(case: Case) -> None:
    assert case.key() == case.key("\n# a comment\nnumpy\n")


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("numpy==1.0\n", {}),
        ("numpy\nscipy\n", {}),
        ("-i https://index/simple\nnumpy\n", {}),
        ("numpy\n", {"PIP_INDEX_URL": "https://index/simple"}),
        ("numpy\n", {"PIP_ONLY_BINARY": ":all:"}),
        ("numpy\n", {"UV_DEFAULT_INDEX": "https://index/simple"}),
        ("numpy\n", {"UV_EXCLUDE_NEWER": "2026-01-01"}),
        ("numpy\n", {"CFLAGS": "-march=native"}),
        ("numpy\n", {"CA_REPOSITORY_ARN": "arn:aws:codeartifact:eu-west-1:1:repository/a/b"}),
    ],
)
def test_whatever_decides_what_is_installed_changes_the_key(case: Case, text: str, more: dict[str, str]) -> None:
    assert case.key(text, **more) != case.key()


def test_another_installer_has_another_key(case: Case) -> None:
    of_pip = case.key()
    case.installer = "uv"

    assert case.key() != of_pip


@pytest.mark.parametrize(
    "text",
    [
        "-i https://user:SECRET@index/simple\nnumpy\n",
        "-i https://SECRET@index/simple\nnumpy\n",
        "numpy @ https://host/numpy.whl?X-Amz-Signature=SECRET#sha256=00\n",
    ],
)
def test_a_secret_of_an_address_does_not_change_the_key(case: Case, text: str) -> None:
    assert case.key(text) == case.key(text.replace("SECRET", "other"))
    assert case.key(PIP_INDEX_URL="https://a:b@index/x") == case.key(PIP_INDEX_URL="https://a:c@index/x")
    assert "SECRET" not in snapshot_key.without_credentials(text)


@pytest.mark.parametrize("name", ["PIP_RETRIES", "PIP_TIMEOUT", "PIP_CACHE_DIR", "UV_CACHE_DIR", "UV_INDEX_A_PASSWORD"])
def test_how_packages_come_does_not_change_the_key(case: Case, name: str) -> None:
    assert case.key(**{name: "7"}) == case.key()


def test_files_that_requirements_name_change_the_key_with_their_content(case: Case) -> None:
    text = "-r more.txt\n-c limits.txt\n./local.whl\n-f wheels\n"
    keys = []
    for content in ("1", "2"):
        for name in ("more.txt", "limits.txt", "local.whl", "wheels/a.whl"):
            path = case.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
            keys.append(case.key(text))

    assert len(set(keys)) == 8


def test_variables_in_requirements_count_with_their_values(case: Case) -> None:
    assert case.key("numpy==${VERSION}\n", VERSION="1") != case.key("numpy==${VERSION}\n", VERSION="2")


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_uvs_configuration_counts_where_uv_installs(case: Case, installer: str) -> None:
    case.installer = installer
    before = case.key()
    (case.folder / "uv.toml").write_text('[pip]\nresolution = "lowest"\n')

    assert (case.key() == before) == (installer == "pip")


@pytest.mark.parametrize(
    ("text", "more", "reason"),
    [
        ("-e ./local\n", {}, "requirements.txt has '-e ./local', which stays a link"),
        ("x @ git+https://host/x@main\n", {}, "which names no commit of 40 digits"),
        ("git+https://user:secret@host/x\n", {}, r"'git\+https://host/x', which names no commit"),
        ("-r https://host/more.txt\n", {}, "which is on another machine"),
        ("numpy\n", {"PIP_CONSTRAINT": "https://host/limits.txt"}, "option constraint names a file on another machine"),
        ("numpy\n", {"PIP_TARGET": "/x"}, "pip's option target puts packages elsewhere"),
        ("numpy\n", {"PIP_USER": "1"}, "pip's option user puts packages elsewhere"),
    ],
)
def test_what_may_change_under_its_name_is_not_kept(case: Case, text: str, more: dict[str, str], reason: str) -> None:
    with pytest.raises(UnfitError, match=reason):
        case.key(text, **more)


def test_a_commit_is_kept(case: Case) -> None:
    text = "git+https://host/x@{}\n"

    assert case.key(text.format("0" * 40)) != case.key(text.format("1" * 40))


def test_a_package_is_not_kept(case: Case) -> None:
    case.kind = "package"

    with pytest.raises(UnfitError, match="the code is itself a package"):
        case.key()


def test_too_many_files_are_not_compared(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_digest, "MOST_FILES", 3)
    for number in range(5):
        (case.folder / f"{number}.whl").write_text("")

    with pytest.raises(UnfitError, match="too many to compare"):
        case.key("-f .\n")
