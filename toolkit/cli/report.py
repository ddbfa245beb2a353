"""`toolkit report JOB_DIR`: how a job ended and where its time went, as a page, text, Markdown or JSON."""

import argparse
import contextlib
import errno
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.parser import one_of
from toolkit.errors import PlatformError, UserError
from toolkit.folders import is_dir
from toolkit.log import Log

if TYPE_CHECKING:
    from toolkit.commands.report.model import Page

WIDTH = 100  # Of text that goes to no terminal.
ENDINGS = {".html": "html", ".htm": "html", ".txt": "text", ".md": "markdown", ".json": "json"}
PAGE = "report.html"


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.description = (
        "Show how a job ended, why, and where its time went, from the files that it left. Exit code: 0, or 78 if the "
        "folder holds no job."
    )
    parser.add_argument(
        "job_dir",
        metavar="JOB_DIR",
        help="a job of toolkit run (its name or folder), a container's /opt/ml or /opt/ml/output, or a folder with"
        " several of these",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"write to this file, - for standard output (default: JOB_DIR/{PAGE} for html, else standard output)",
    )
    parser.add_argument(
        "--format",
        type=one_of(WRITERS),
        metavar="NAME",
        help=f"{', '.join(WRITERS)} (default: by the ending of FILE; text for -, else html)",
    )
    parser.add_argument(
        "--price",
        type=price,
        metavar="PER_HOUR",
        help="what one host costs in an hour; the ledger is then in money, too",
    )


def run(arguments: argparse.Namespace, log: Log) -> int:  # noqa: ARG001 - every command is called alike
    """Write the report; return 0.

    Raises:
        UserError: the folder holds no job, or the file cannot be written.
    """
    from toolkit.commands import jobs
    from toolkit.commands.report.sections.page import build_page
    from toolkit.commands.simulate.catalogue import folder_of

    now_s = time.time()
    job_dir = folder_of(arguments.job_dir, os.environ, Path.cwd())
    form, target = asked(arguments, job_dir / PAGE)
    write(build_page(jobs.read(job_dir, now_s=now_s), now_s=now_s, price=arguments.price), form, target)
    return 0


def asked(arguments: argparse.Namespace, page: Path) -> tuple[str, Path | None]:
    """Return the format, and the file to write, None for standard output. *page*: where HTML goes by default.

    Raises:
        UserError: the file's ending is of no format, or it is a folder.
    """
    output: str | None = arguments.output
    if output is None:
        form = arguments.format or "html"
        return form, page if form == "html" else None
    if output == "-":
        return arguments.format or "text", None
    target = Path(output)
    if is_dir(target):
        raise UserError(f"-o: expected a file, found a folder, {output}", hint="Name a file in it.")
    form = arguments.format or ENDINGS.get(target.suffix.lower(), "" if target.suffix else "html")
    if not form:
        expected = f"expected a file that ends with one of {', '.join(ENDINGS)}, found {output!r}"
        raise UserError(f"-o: {expected}", hint=f"For another ending, add --format ({', '.join(WRITERS)}).")
    return form, target


def write(page: "Page", form: str, target: Path | None) -> None:
    """Write *page* to *target* and print its first lines; with None, print all of it.

    Raises:
        UserError, PlatformError: the file, or standard output, cannot be written.
    """
    text = WRITERS[form](page, target is None)
    if target is not None:
        _replace(target, text)
        text = f"{page.title}: {page.status.upper()}\n{page.summary}\n{target}\n"
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # `toolkit report ... | head` is no error.
    except OSError as error:
        sys.stdout = None  # Python would try again at its exit.
        raise PlatformError(f"standard output cannot be written ({error.strerror})") from None


def _replace(target: Path, text: str) -> None:
    """Write *text* to *target* so that a reader never sees half of it."""
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")  # Paths of any bytes.
        part.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        kind = PlatformError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else UserError
        hint = "Name another file with -o, or - for standard output."
        raise kind(f"it cannot be written ({error.strerror})", where=str(target), hint=hint) from None


def _html(page: "Page", _to_console: bool) -> str:
    from toolkit.commands.report.html.page import render

    return render(page)


def _text(page: "Page", to_console: bool) -> str:
    from toolkit.commands.report.text import BARS, SHADES, TextWriter

    if not to_console:
        return TextWriter(width=WIDTH).page(page)
    width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    encoding = sys.stdout.encoding or "ascii"
    try:
        (BARS + SHADES).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return TextWriter(width=width, plain=True).page(page).encode(encoding, "replace").decode(encoding)
    return TextWriter(width=width).page(page)


def _markdown(page: "Page", _to_console: bool) -> str:
    from toolkit.commands.report.markdown import write_markdown

    return write_markdown(page)


def _json(page: "Page", _to_console: bool) -> str:
    from toolkit.commands.report.document import encode_page

    return encode_page(page)


WRITERS: dict[str, Callable[["Page", bool], str]] = {"html": _html, "text": _text, "markdown": _markdown, "json": _json}


def price(word: str) -> float:
    """The type of an argument that is a price."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"expected a price, a number of 0 or more, found {word!r}")
    return value
