"""Finds the script of a job without copying its source into the code folder.

`train` puts the source into the code folder and makes a command executable. `toolkit check` reads a submitted folder
in place; it reads copies only of an archive, of a single file, and of a command, which `train` would change.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from toolkit.commands.check import syntax
from toolkit.commands.check.options import Declared, read
from toolkit.errors import ToolkitError, UserError, name_place
from toolkit.folders import is_dir
from toolkit.job.job import Job, Script
from toolkit.job.plan import Phase
from toolkit.job.scripts import only_script
from toolkit.log import Log
from toolkit.records import Record
from toolkit.train.source import classify, fetch, install, unpack
from toolkit.train.source.files import is_file

MOST_ERRORS = 100


class Code(Record, frozen=True, kw_only=True):
    """The job with its script's future place in the code folder."""

    job: Job
    installing: Phase | None
    """The phase that would install packages."""
    source: Path
    """The folder, archive or file that holds the source now."""
    program: str = ""
    """The program in the first line of a command; "" without one."""
    requirements: str = ""
    """The text of requirements.txt."""
    rules: bytes | None = None
    """The document that TOOLKIT_RULES names, if the code contains it."""
    syntax_errors: tuple[syntax.Error, ...] = ()
    """Errors of the code's Python files: the first hundred at most."""
    options: Declared | None = None
    """The options that a Python script declares, if it declares any."""

    @property
    def kind(self) -> str:
        return "" if self.job.script is None else self.job.script.kind


def find(job: Job, log: Log) -> Code:
    """Return the code of *job*.

    Raises:
        UserError: the source or the entry point is missing or invalid, with `train`'s message.
    """
    source = fetch.submitted(job, log)
    with _seen(job, source) as folder:
        if not job.spec.entry and not job.spec.plugin:
            spec = msgspec.structs.replace(job.spec, entry=only_script(folder))
            job = msgspec.structs.replace(job, spec=spec)
        try:
            with name_place(job.spec.entry_from):
                script = _script(job, folder)
            installing = install.phase(msgspec.structs.replace(job, script=script))
        except ToolkitError as error:
            raise _as_placed(error, folder, job.folders.code) from None
        if installing is not None:
            main = msgspec.structs.replace(installing.main, cwd=job.folders.code)
            installing = msgspec.structs.replace(installing, main=main)
        return Code(
            job=msgspec.structs.replace(job, script=msgspec.structs.replace(script, folder=job.folders.code)),
            installing=installing,
            source=source or job.folders.code,
            program=_first_program(folder / script.entry) if script.kind == "command" and not script.through else "",
            requirements=_text(folder / install.REQUIREMENTS),
            rules=_content(folder, job.settings.rules),
            syntax_errors=tuple(islice(syntax.errors(folder), MOST_ERRORS)),
            options=read(folder / script.entry) if script.kind == "program" else None,
        )


@contextmanager
def _seen(job: Job, source: Path | None) -> Iterator[Path]:
    """Yield a folder with the content that the code folder will have."""
    if source is None or is_dir(source):
        yield source or job.folders.code
        return
    with TemporaryDirectory(prefix="toolkit-check-") as name:
        folder = Path(name)
        try:
            if source.name.endswith(fetch.TAR_ENDINGS) or unpack.is_tar(source):
                unpack.unpack(source, folder)
            else:
                shutil.copy2(source, folder / source.name)
        except OSError as error:
            raise UserError(f"cannot read {source}: {error.strerror}", where=job.spec.source_from) from None
        yield folder


def _script(job: Job, folder: Path) -> Script:
    style, entry = job.argument_style, job.spec.entry
    if job.spec.plugin or not entry or entry.endswith(".py") or not is_file(folder / entry):
        return classify.classify(folder, entry, job.spec.plugin, style)
    classify.validate_entry_point(entry)
    with TemporaryDirectory(prefix="toolkit-check-") as name:
        copy = Path(name, entry)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / entry, copy)
        return msgspec.structs.replace(classify.classify(Path(name), entry, None, style), folder=folder)


def _as_placed(error: ToolkitError, folder: Path, code: Path) -> ToolkitError:
    message, hint, place = (text.replace(str(folder), str(code)) for text in (error.message, error.hint, error.where))
    return type(error)(message, hint=hint, where=place, prefix=error.prefix)


def _first_program(file: Path) -> str:
    with file.open("rb") as content:
        line = content.read(512).partition(b"\n")[0]
    words = line[2:].split() if line.startswith(b"#!") else []
    return words[0].decode("utf-8", "replace") if words else ""


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig", "replace")
    except OSError:
        return ""


def _content(folder: Path, name: Path | None) -> bytes | None:
    """Return the content of the file *name*, relative to *folder*; None if it does not exist."""
    try:
        return None if name is None else (folder / name).read_bytes()
    except OSError:
        return None
