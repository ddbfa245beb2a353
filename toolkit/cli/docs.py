"""`toolkit docs [PAGE]`: show the documentation. The wheel contains it, so users can read each page that a message
names."""

import argparse
import pydoc
import sys
from collections.abc import Iterator
from pathlib import Path

import toolkit
from toolkit.errors import UserError, did_you_mean
from toolkit.folders import exists, is_dir
from toolkit.log import Log

# A clone has these files beside the folder of the pages, the wheel in it.
BESIDE = ("README.md", "CHANGELOG.md")


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument(
        "page", nargs="?", metavar="PAGE", help="failures, docs/failures.md, orchestrators/slurm, ...; without: a list"
    )


def run(arguments: argparse.Namespace, log: Log) -> int:  # noqa: ARG001 - every command is called alike
    """Print the page, or the list of pages; return 0.

    Raises:
        UserError: there is no such page.
    """
    folder = pages_folder()
    beside = (folder.parent / name for name in BESIDE)
    pages = {path.relative_to(folder).with_suffix("").as_posix().lower(): path for path in sorted(folder.rglob("*.md"))}
    pages = {**{path.stem.lower(): path for path in beside if exists(path)}, **pages}
    if arguments.page is None:
        print("\n".join(_list_pages(pages)))
        return 0
    name = arguments.page.partition("#")[0].removeprefix("docs/").removesuffix(".md").lower()
    if name not in pages:
        below = [page for page in pages if page.rpartition("/")[2] == name]  # slurm is orchestrators/slurm.
        if not below:
            hint = f"{did_you_mean(name, pages)} All pages: toolkit docs".strip()
            raise UserError(f"expected a page of the documentation, found {arguments.page!r}", hint=hint)
        (name,) = below
    text = pages[name].read_text("utf-8")
    if sys.stdout.isatty():
        pydoc.pager(text)
    else:
        print(text, end="")
    return 0


def pages_folder() -> Path:
    """Return the folder of the pages: in the package as installed, beside it in a clone."""
    package = Path(toolkit.__file__).parent
    return package / "docs" if is_dir(package / "docs") else package.parent / "docs"


def _list_pages(pages: dict[str, Path]) -> Iterator[str]:
    width = max(map(len, pages), default=0)
    for name, path in pages.items():
        title = path.read_text("utf-8").partition("\n")[0].lstrip("# ")
        yield f"{name:<{width}}  {title}"
