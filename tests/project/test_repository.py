"""The repository keeps what it promises to a stranger with a clone."""

import email.parser
import fnmatch
import importlib
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from toolkit import __version__, settings

ROOT = Path(__file__).parents[2]
# The reader of TOML is in the standard library from 3.11 on; before, pytest brings tomli.
PYPROJECT: dict[str, Any] = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(
    (ROOT / "pyproject.toml").read_text()
)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def tracked() -> list[Path]:
    """Return the files that git knows or would take up."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("needs git and a clone")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def braced(pattern: str) -> list[str]:
    """Return "a/{b,c}.py" as "a/b.py" and "a/c.py"."""
    match = re.fullmatch(r"(.*)\{(.*)\}(.*)", pattern)
    return [match[1] + word + match[3] for word in match[2].split(",")] if match else [pattern]


def test_no_file_holds_a_conflict_of_a_merge() -> None:
    markers = (b"<" * 7 + b" ", b">" * 7 + b" ")

    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1)
        if line.startswith(markers)
    ]

    assert wrong == []


def test_no_file_speaks_of_one_machine() -> None:
    # Put together here, so that this file does not hold them itself. /opt/ml is the contract's own.
    words = [
        *("/" + f"work/{name}" for name in ("main", "shared", ".")),
        "/" + "home/",
        "/root/" + ".pyenv",
        "files.python" + "hosted",
        "pypi" + ".org",
        "/opt/" + "wheels",
    ]

    wrong = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked()
        for word in words
        if word.encode() in path.read_bytes() and path.suffix not in (".png", ".npz")
    ]

    assert wrong == []


def test_every_docs_page_is_linked() -> None:
    linked = {
        (page.parent / target).resolve()
        for page in [ROOT / "README.md", ROOT / "docs/orchestrators.md"]
        for target, _ in LINK.findall(page.read_text())
    }

    assert [page.name for page in sorted(ROOT.glob("docs/**/*.md")) if page.resolve() not in linked] == []


def anchors(page: Path) -> set[str]:
    """Return what links into *page* may name: its headings in small letters, spaces as dashes, other signs left out."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {
        re.sub(r"[^\w -]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text)).lower().replace(" ", "-") for text in headings
    }


def test_every_link_between_pages_leads_to_a_file_and_a_heading() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {path}{anchor}"
        for page in pages()
        for path, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", page.read_text())
        if "://" not in path
        for target in [page.parent / path if path else page]
        if not target.exists() or (anchor and anchor[1:] not in anchors(target))
    ]

    assert broken == []


def test_every_page_has_its_place_in_the_site() -> None:
    placed = re.findall(r'= "([\w/-]+\.md)" }', (ROOT / "zensical.toml").read_text())
    beside = {"index.md", "changelog.md", "contributing.md"}  # scripts/site makes them of the pages in the root.

    assert sorted(placed) == sorted(
        {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")} | beside
    )


def test_every_page_that_a_text_names_exists() -> None:
    places = {
        (name.decode(), path.relative_to(ROOT).as_posix())
        for path in tracked()
        if path.suffix in (".py", ".toml", ".md", ".sh", "")
        for name in re.findall(rb"\bdocs/[a-z0-9_-]+\.md\b", path.read_bytes())
    }

    assert sorted((name, place) for name, place in places if not (ROOT / name).exists()) == []


def test_the_settings_page_is_the_settings_table() -> None:
    rows = ["| variable | values | default | meaning |", "|---|---|---|---|"]
    for variable, values, default, meaning in settings.table():
        rows.append(f"| `{variable}` | {values} | {f'`{default}`' if default else ''} | {meaning} |")

    assert "\n".join(rows) in (ROOT / "docs/settings.md").read_text()


def test_the_readmes_figures_stand_on_the_page_of_figures() -> None:
    table = (ROOT / "README.md").read_text().partition("## Figures\n")[2].partition("\nOn ")[0]
    figures = {
        figure for row in table.splitlines() for cell in row.split("|")[2:] for figure in re.findall(r"[\d.]+", cell)
    }
    page = set(re.findall(r"[\d.]+", (ROOT / "docs/lab/figures.md").read_text()))

    assert len(figures) > 8
    assert figures - page == set()


def test_the_changelog_has_an_entry_for_this_version() -> None:
    version = PYPROJECT["project"]["version"]

    assert re.search(rf"^## \[?{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert __version__ == version


def test_the_list_of_hands_names_files_that_are_hands() -> None:
    banned = ("os.environ", "os.getenv", "subprocess", "signal", "socket", "time.time", "sys.exit")
    ignores: dict[str, list[str]] = PYPROJECT["tool"]["ruff"]["lint"]["per-file-ignores"]
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("toolkit/**/*.py")]
    idle = []

    for pattern, rules in ignores.items():
        if pattern.startswith("toolkit/") and "TID251" in rules:
            for alternative in braced(pattern):
                texts = [(ROOT / name).read_text() for name in fnmatch.filter(files, alternative)]
                if not any(word in text for text in texts for word in banned):
                    idle.append(alternative)

    assert idle == []


def test_no_file_lifts_the_ban_on_the_outside_by_itself() -> None:
    wrong = [path.name for path in ROOT.glob("toolkit/**/*.py") if re.search("noqa:.*TID", path.read_text())]

    assert wrong == []


def test_the_scripts_are_executable_and_are_shells_or_python() -> None:
    scripts = [path for path in [*ROOT.glob("scripts/*"), ROOT / ".ci/run"] if path.is_file()]

    wrong = [
        path.name
        for path in scripts
        if not path.stat().st_mode & 0o100
        or not path.read_bytes().startswith((b"#!/usr/bin/env bash\n", b"#!/usr/bin/env python3\n"))
    ]

    assert {"setup", "test", "check", "digits", "run"} <= {path.name for path in scripts}
    assert wrong == []


def test_the_linter_sees_every_python_script() -> None:
    scripts = [path for path in tracked() if not path.suffix and path.read_bytes().startswith(b"#!/usr/bin/env python")]

    assert scripts
    assert sorted(str(path.relative_to(ROOT)) for path in scripts) == PYPROJECT["tool"]["ruff"]["extend-include"]


def test_the_wheel_is_pure_small_and_holds_the_package_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        manual_bytes = sum(
            member.compress_size for member in archive.infolist() if member.filename.startswith("toolkit/docs/")
        )
    information = f"container_training_toolkit-{__version__}.dist-info/"

    assert wheel.name == f"container_training_toolkit-{__version__}-py3-none-any.whl"
    # With monitor, rules, reports, profiler, model parallelism, storage, spot jobs and the chart library; since 1.35 MB
    # with the rules of retention, the reading of children's causes, the forms of secrets and the packing of links;
    # since 1.5 MB with AWS's sharded and tensor parallel scripts, torchrun's tables and secrets in code.
    # Since 1.6 MB with the insides of the frameworks looked up by name, each with its way out.
    # Since 1.65 MB with the ledger's parts, findings with their cost and charts of all ranks.
    # Since 1.75 MB with trackers, manifests, answers and uv.
    assert wheel.stat().st_size - manual_bytes < 1_900_000
    # Since 240 kB with the schema of outcome.json; since 250 kB with the ways in: other orchestrators, manifest.json.
    assert manual_bytes < 300_000
    assert [name for name in names if not name.startswith(("toolkit/", information))] == []
    assert [name for name in names if name.endswith((".so", ".pyc", ".pyd"))] == []
    assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob("toolkit/**/*.py")} <= set(names)
    pages = [path for path in ROOT.glob("docs/**/*.md") if path.parent.name != "lab"]
    assert {f"toolkit/{path.relative_to(ROOT).as_posix()}" for path in pages} <= set(names)
    assert [name for name in names if "/lab/" in name] == []
    assert [name for name in names if name.endswith((".png", "site.css"))] == [], "a terminal shows no pictures"
    assert "toolkit/py.typed" in names
    assert f"{information}licenses/LICENSE" in names


def test_the_source_distribution_holds_what_the_wheel_is_built_from(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}

    backend_files = {".gitignore", "PKG-INFO", "pyproject.toml"}  # The build backend's.
    assert tops - backend_files == {"toolkit", "docs", "README.md", "LICENSE", "CHANGELOG.md"}


def test_the_wheel_brings_both_commands_and_asks_for_msgspec_alone(wheel: Path) -> None:
    information = f"container_training_toolkit-{__version__}.dist-info/"
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read(information + "entry_points.txt").decode()
        metadata = email.parser.Parser().parsestr(archive.read(information + "METADATA").decode())
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]

    assert "train = toolkit.cli.start:train" in entry_points
    assert "toolkit = toolkit.cli.start:toolkit" in entry_points
    assert [re.match(r"[\w-]+", line)[0] for line in needed] == ["msgspec"]  # type: ignore[index]
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra", [])) == set(PYPROJECT["project"]["optional-dependencies"])
    assert metadata.get_all("Project-URL") is None, "the project has no address yet"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
