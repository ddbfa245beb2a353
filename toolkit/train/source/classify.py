"""Decides which kind of script the entry point is, and how the program that starts it names it."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from toolkit import files, folders
from toolkit.errors import UserError, may_pass
from toolkit.job.job import Script
from toolkit.patterns import lazy
from toolkit.settings import ArgumentStyle
from toolkit.train.source.files import is_file, is_folder, kind_of

# The names that sagemaker-training 5.1.4 accepts: no absolute path, no option, no character special to a shell.
ENTRY = lazy(r"[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*")
MODULE = lazy(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
# A pyproject.toml belongs to a package only if it has [build-system]. Others configure only tools (ruff, pytest), or
# have [project] alone: `uv init` writes those for applications, and pip cannot install their flat folders. Python 3.10
# has no tomllib, but a table's header is on a line of its own, so a regex is enough.
PACKAGE_TABLE = lazy(r"^\s*\[\s*build-system\s*\]", re.M)
FILES_SHOWN = 10
FILES_SEARCHED = 2000
SHELL = ("/bin/sh",)
ELF = b"\x7fELF"
UTF8_MARK = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
SHELL_LINE = lazy(rb"#!\s*\S*/(?:env\s+(?:-\S+\s+)*)?(?:ba|da|z|k|a)?sh\b")
MOST_SHELL_BYTES = 1 << 20


def classify(folder: Path, entry: str | None, plugin: str | None, style: ArgumentStyle) -> Script:
    """Return the script that *entry*, the user's name for it, means in *folder*; a *plugin* ("module:function") wins.

    The order: a .sh file (command), a .py file or module of a package (package: setup.py, or a pyproject.toml with
    [build-system], at the top), a .py file (program), any other file (command), a module (module). A command's file is
    made executable; if its name does not end in .sh, it must show that it is a program (check_says_how).

    Raises:
        UserError: there is no entry, or it is forbidden, missing or not a program. The caller adds where it was named.
    """
    if plugin:
        return Script(entry=plugin, kind="plugin", folder=folder, argument_style=style)
    if not entry:
        raise _missing(f"no entry point is given for {folder}", folder, "Name the script, as 'train.py'.")
    validate_entry_point(entry)
    _check_readable(folder)
    if entry.lower().endswith(".ipynb"):
        hint = f"Make one of it: jupyter nbconvert --to script {entry}"
        raise UserError(f"expected a script, found a notebook, {entry}", hint=hint)
    if entry.endswith(".sh"):
        return _command(folder, entry, style)
    if _is_package(folder) and (entry.endswith(".py") or not is_file(folder / entry)):
        return Script(entry=_package_entry(folder, entry), kind="package", folder=folder, argument_style=style)
    if is_file(folder / entry):
        if entry.endswith(".py"):
            return Script(entry=entry, kind="program", folder=folder, argument_style=style)
        return _command(folder, entry, style)
    module = entry.replace("/", ".")
    if MODULE.fullmatch(module) and _module_file(folder, module):
        return Script(entry=module, kind="module", folder=folder, argument_style=style)
    raise _not_there(folder, entry)


def validate_entry_point(entry: str) -> None:
    """Check that *entry* is a permitted name.

    Raises:
        UserError: it is absolute, begins with "-", has "." or ".." as a part, or holds characters other than letters,
            digits and "._+-/".
    """
    if ENTRY.fullmatch(entry) and not {".", ".."} & set(entry.split("/")):
        return
    raise UserError(
        f"expected a path within the code folder, of letters, digits and '._+-/', found {entry!r}",
        hint="Name the script relative to the submitted folder, as 'train.py' or 'src/train.py'.",
    )


def check_says_how(file: Path) -> None:
    """Check that *file*, neither .py nor .sh, is a program: it has a "#!" line, is binary, or is executable.

    The kernel refuses text without "#!", and a shell then runs it line by line, even if it is Python code or Markdown.
    sagemaker-training did so, because it made any file executable first.

    Raises:
        UserError: it is not a program, or its name ends in .PY or .Py.
    """
    with file.open("rb") as content:
        head = content.read(512)
    if head.startswith((b"#!", ELF)) or b"\0" in head:
        return
    if file.suffix.lower() == ".py":
        hint = f"Rename it to {file.stem}.py."
        raise UserError(f"expected a script whose name ends in .py or .sh, found {file.name}", hint=hint)
    if file.stat().st_mode & 0o111:
        return
    raise UserError(
        f"expected a script that says what runs it, found {file.name}: not named .py or .sh, no first line such as"
        " #!/bin/sh, and not executable",
        hint=f"Name it {file.stem}.py or {file.stem}.sh; or give it such a line; or, where /bin/sh is to run it,"
        f" chmod +x {file.name}.",
    )


def _check_readable(folder: Path) -> None:
    if is_folder(folder) and not os.access(folder, os.R_OK | os.X_OK):
        status = folder.stat()
        raise UserError(
            f"expected a code folder that user {os.getuid()} may read, found a folder of user {status.st_uid} with mode"
            f" {stat.S_IMODE(status.st_mode):o}",
            where=str(folder),
            hint="Give the user of the container the right to read it: chmod -R a+rX, or another owner.",
        )


def _is_package(folder: Path) -> bool:
    if is_file(folder / "setup.py"):
        return True
    try:
        return bool(PACKAGE_TABLE.search(files.read(folder / "pyproject.toml").decode("utf-8", "replace")))
    except OSError as error:
        if may_pass(error):
            raise
        return False


def _package_entry(folder: Path, entry: str) -> str:
    """Return the module name of *entry*, which belongs to a package, or *entry* itself to start it as a file.

    It is started as a file if its folder is not a package (`src/train.py` without `src/__init__.py`: an installed `src`
    would hide src.train), or if its name is not a valid module name. pip may install modules from other folders (src/,
    package_dir) or with a dependency, so a dotted name is accepted unchecked. For a .py file that is not at its path,
    the package must contain a file of that name somewhere.
    """
    module = entry.removesuffix(".py").replace("/", ".")
    is_module = bool(MODULE.fullmatch(module))
    file = folder / entry
    if entry.endswith(".py") and is_file(file):
        is_importable = is_module and (file.parent == folder or is_file(file.parent / "__init__.py"))
        return module if is_importable else entry
    if is_module and (_is_somewhere(folder, module) or ("." in module and "/" not in entry)):
        return module
    raise _not_there(folder, entry)


def _is_somewhere(folder: Path, module: str) -> bool:
    path = module.replace(".", "/")
    ends = (f"/{path}.py", f"/{path}/__main__.py")
    return any(f"/{file}".endswith(ends) for file in _files(folder))


def _module_file(folder: Path, module: str) -> Path | None:
    path = folder.joinpath(*module.split("."))
    candidates = (path.with_name(path.name + ".py"), path / "__main__.py")
    return next((file for file in candidates if is_file(file)), None)


def _command(folder: Path, entry: str, style: ArgumentStyle) -> Script:
    file = folder / entry
    if not is_file(file):
        raise _not_there(folder, entry)
    _check_encoding(file, entry)
    if not entry.endswith(".sh"):
        check_says_how(file)
    through = _through(file, entry, _made_executable(file))
    flaw = _flaw_of_shell(file, entry)
    return Script(entry=entry, kind="command", folder=folder, argument_style=style, through=through, flaw=flaw)


def _check_encoding(file: Path, entry: str) -> None:
    """Check that the kernel can read the first line of *file*: an editor on Windows may put a mark before "#!".

    Raises:
        UserError: it cannot.
    """
    with file.open("rb") as content:
        head = content.read(4)
    if head.startswith(UTF8_MARK + b"#"):
        raise UserError(
            f"{entry} begins with a byte order mark, before its '#!': the kernel cannot see which program it names",
            hint=f"Save it as UTF-8 without a mark, as: sed -i '1s/^\\xEF\\xBB\\xBF//' {entry}",
        )
    if head.startswith(UTF16_MARKS):
        raise UserError(
            f"{entry} is text in UTF-16, which no shell reads",
            hint=f"Save it as UTF-8, as: iconv -f UTF-16 -t UTF-8 {entry} > new && mv new {entry}",
        )


def _flaw_of_shell(file: Path, entry: str) -> str:
    """Return what is wrong with the text of a shell script: Windows line ends, of which a shell takes the carriage
    return for a part of the command. Not refused: such a line may be harmless, in a comment or a text."""
    with file.open("rb") as content:
        text = content.read(MOST_SHELL_BYTES)
    first = text.partition(b"\n")[0]
    if not (SHELL_LINE.match(first) or (entry.endswith(".sh") and not first.startswith((b"#!", ELF)))):
        return ""
    if text.startswith(UTF8_MARK):
        return f"{entry} begins with a byte order mark: save it without, as: sed -i '1s/^\\xEF\\xBB\\xBF//' {entry}"
    offset = text.find(b"\r\n")
    line = text.count(b"\n", 0, offset) + 1
    return "" if offset < 0 else f"Line {line} of {entry} ends as on Windows: sed -i 's/\\r$//' {entry}"


def _made_executable(file: Path) -> bool:
    mode = stat.S_IMODE(file.stat().st_mode)
    executable_mode = mode | stat.S_IXUSR | (mode & 0o044) >> 2
    try:
        if executable_mode != mode:
            file.chmod(executable_mode)
    except OSError:
        return os.access(file, os.X_OK)  # A read-only mount: the mode stays.
    return True


def _through(file: Path, entry: str, executable: bool) -> tuple[str, ...]:
    """Return the program that must start *file*: /bin/sh for text without "#!", the "#!" line's program if *file* is
    not executable; () if the kernel can start it."""
    with file.open("rb") as content:
        head = content.read(512)
    line = head.partition(b"\n")[0]
    if line.startswith(b"#!") and line.endswith(b"\r"):
        raise UserError(
            f"the first line of {entry} ends as on Windows: no program {os.fsdecode(line[2:])!r} can be found",
            hint=f"Save it with Unix line ends, as: sed -i 's/\\r$//' {entry}",
        )
    if line.startswith(b"#!"):
        # As the kernel does, pass all text after the program's name as one token (execve(2)).
        return () if executable else tuple(os.fsdecode(token) for token in line[2:].strip().split(None, 1))
    return () if b"\0" in head or head.startswith(ELF) else SHELL


def _not_there(folder: Path, entry: str) -> UserError:
    import difflib

    kind = kind_of(folder / entry)
    if kind not in ("nothing", "a file") and (kind != "a folder" or entry.endswith((".py", ".sh"))):
        return _missing(f"expected a script, but {entry!r} in {folder} is {kind}", folder, "")
    files = list(_files(folder))
    same_name = [file for file in files if file.rpartition("/")[2].partition(".")[0] == Path(entry).stem]
    same_name = sorted(same_name, key=lambda file: (not file.endswith(Path(entry).suffix or ".py"), len(file), file))
    near = same_name or difflib.get_close_matches(entry, files, n=1)
    return _missing(f"no {entry!r} in {folder}", folder, f"Did you mean {near[0]!r}?" if near else "")


def _missing(message: str, folder: Path, hint: str) -> UserError:
    files = sorted(_files(folder), key=lambda file: (file.count("/"), file))
    present = ", ".join(files[:FILES_SHOWN]) + (", ..." if len(files) > FILES_SHOWN else "")
    return UserError(f"{message}, which holds {present or 'no files'}", hint=hint)


def _files(folder: Path) -> Iterator[str]:
    """Yield the files below *folder*, relative to it, at most FILES_SEARCHED; without hidden files and __pycache__.
    They are only hints for a message, so a folder that cannot be listed has none."""
    left = FILES_SEARCHED
    for entry in folders.walk(folder, lambda _: None, enter=lambda entry: _is_shown(entry.name)):
        if not _is_shown(entry.name) or folders.is_dir(entry.path, folders.as_absent):
            continue
        left -= 1
        if left < 0:
            return
        yield Path(entry.path).relative_to(folder).as_posix()


def _is_shown(name: str) -> bool:
    return not name.startswith(".") and name != "__pycache__"
