"""The phase that installs the script's packages: its command, and when it may be skipped."""

import codecs
import os
from collections.abc import Iterator
from pathlib import Path

from toolkit import folders
from toolkit.errors import InternalError, UserError
from toolkit.folders import make
from toolkit.job.job import Job
from toolkit.job.plan import Phase, ProcessSpec, StopPolicy
from toolkit.patterns import lazy
from toolkit.train.source import codeartifact, installer
from toolkit.train.source.files import is_file, kind_of

REQUIREMENTS = "requirements.txt"
INCLUDE = lazy(r"(?:-r|--requirement|-c|--constraint)[\s=]*(?P<file>\S+)")
# The path or name in a line, without options and "name @" before it, "file://", and the text after it.
ASKED = lazy(r"(?:(?:-e|--editable|-f|--find-links)[\s=]+|[^@/]+@\s*)?(?:file:(?://)?)?(?P<path>[^\s;#\[<>=!~]+)")
# pip, Python and git create these: their content does not change the package.
BYPRODUCTS = {"__pycache__", ".git", "build", "dist"}
# UTF-32 comes first: its little-endian mark begins with UTF-16's.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)
GRACE_S = 5.0
# A stamp covers no more than this, which takes some seconds to read.
MOST_BYTES = 8 << 30
MOST_FILES = 10_000


def phase(job: Job) -> Phase | None:
    """Return the phase that installs the script's package and requirements.txt, None if there is nothing to install.

    requirements.txt is installed if it is at the top of the code folder, for commands too (sagemaker-training does not
    install it for those); a plug-in installs its own. `skip_if` is a stamp for everything that the phase would install
    and its place: the caller that runs the phase calls `remember` on it after success.

    Raises:
        UserError: the job names a repository of AWS CodeArtifact wrongly, or the requirements name another index, too;
            or nothing can install them.
    """
    script = job.script
    if script is None:
        raise InternalError("asked what to install before the code was in place")
    requirements = job.spec.requirements and _is_needed(script.folder / REQUIREMENTS)
    if script.kind == "plugin" or not (requirements or script.kind == "package"):
        return None
    lines = tuple(_requirement_lines(script.folder / REQUIREMENTS)) if requirements else ()
    if job.environ.get(codeartifact.VARIABLE):
        codeartifact.check(job.environ[codeartifact.VARIABLE], iter(lines))
    pip_arguments = (".",) * (script.kind == "package") + ("-r", REQUIREMENTS) * requirements
    chosen = installer.choose(job, lines)
    python = job.interpreter if job.packages is None else str(job.packages / "bin/python")
    return Phase(
        name="install",
        main=ProcessSpec(
            name=chosen.name,
            argv=(*chosen.argv, *pip_arguments),
            environ=chosen.environ,
            cwd=script.folder,
            stop=StopPolicy(grace_s=min(GRACE_S, job.grace_s)),
            masked=True,  # pip names addresses, and an address may hold a token.
        ),
        failure="InstallModuleError" if script.kind == "package" else "InstallRequirementsError",
        skip_if=_stamp(job.folders.scratch / "installed", python, script.folder, pip_arguments),
        choice=chosen.choice,
    )


def remember(stamp: Path) -> None:
    """Record that the packages of *stamp* are installed. If *stamp* cannot be written, the next run only takes
    longer."""
    try:
        make(stamp.parent)
        stamp.touch()
    except OSError:
        pass


def _is_needed(requirements: Path) -> bool:
    if is_file(requirements):
        return any(True for _ in _lines(requirements))
    if folders.exists(requirements, follow_links=False):
        raise UserError(
            f"expected a file, found {kind_of(requirements)}",
            where=str(requirements),
            hint="Give it the requirements that pip shall install, or remove it.",
        )
    return False


def _stamp(folder: Path, interpreter: str, source: Path, pip_arguments: tuple[str, ...]) -> Path | None:
    """Return the file in *folder* that records the present meaning of *pip_arguments*; None if that is too much to read
    (a line that names "/"), so that pip runs every time."""
    try:
        return folder / _fingerprint(interpreter, source, pip_arguments)
    except _TooMuchError:
        return None


def _fingerprint(interpreter: str, folder: Path, pip_arguments: tuple[str, ...]) -> str:
    """Return a hash of the present meaning of *pip_arguments*: the files' content, the interpreter, this container's
    root.

    The inode of "/" differs between containers, so a scratch folder on a volume that outlives a container does no harm.
    The interpreter's inode changes if a virtual environment is created again at the same path.
    """
    digest = _Digest()
    for place in (Path("/"), Path(interpreter)):
        status = folders.status(place, follow_links=False)
        if status is not None:
            _add(digest, b"%d:%d" % (status.st_dev, status.st_ino))
    for word in (interpreter, str(folder), *pip_arguments):
        _add(digest, os.fsencode(word))
    if "." in pip_arguments:
        _add_tree(digest, folder)
    if REQUIREMENTS in pip_arguments:
        _add_requirements(digest, folder / REQUIREMENTS, folder, set())
    return digest.hexdigest()[:32]


class _TooMuchError(Exception):
    """There are more files or bytes than a stamp covers."""


class _Digest:
    """SHA-256 of at most MOST_BYTES and MOST_FILES; raises _TooMuchError beyond these."""

    def __init__(self) -> None:
        import hashlib

        self._hash = hashlib.sha256()
        self._bytes = self._files = 0

    def update(self, content: bytes) -> None:
        self._bytes += len(content)
        self._hash.update(content)
        self._check()

    def begin_file(self, size_bytes: int) -> None:
        """Note that *size_bytes* of another file follow."""
        self._files += 1
        self._check(size_bytes)
        self.update(b"%d:" % size_bytes)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _check(self, ahead_bytes: int = 0) -> None:
        if self._bytes + ahead_bytes > MOST_BYTES or self._files > MOST_FILES:
            raise _TooMuchError


def _add(digest: _Digest, content: bytes) -> None:
    """Add *content* after its length, so that different parts never give the same bytes."""
    digest.update(b"%d:" % len(content))
    digest.update(content)


def _add_requirements(digest: _Digest, file: Path, folder: Path, visited: set[Path]) -> None:
    """Add *file*, the files it includes, and the local files and folders that it names (relative to *folder*)."""
    ahead = [file]
    while ahead:
        file = ahead.pop()
        if file in visited or not is_file(file):
            continue
        visited.add(file)
        _add(digest, file.read_bytes())
        for line in _lines(file):
            if include := INCLUDE.match(line):
                ahead.append(file.parent / include["file"])
            elif match := ASKED.match(line):
                _add_tree(digest, folder / match["path"])  # Adds nothing for a package's name, as "numpy".


def _requirement_lines(file: Path) -> Iterator[tuple[Path, str]]:
    """Yield the lines of *file* and of the files that it includes, each with its file."""
    ahead, visited = [file], set[Path]()
    while ahead:
        file = ahead.pop()
        if file in visited or not is_file(file):
            continue
        visited.add(file)
        for line in _lines(file):
            yield file, line
            if include := INCLUDE.match(line):
                ahead.append(file.parent / include["file"])


def _lines(file: Path) -> Iterator[str]:
    """Yield the lines of a requirements file, without empty lines and comments."""
    for line in _decoded(file.read_bytes()).splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            yield line


def _decoded(content: bytes) -> str:
    """Return a requirements file's text, decoded as pip does: by its byte order mark (UTF-8, -16, -32) if any."""
    for mark, encoding in MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, "replace")
    return content.decode("utf-8", "replace")


def _add_tree(digest: _Digest, path: Path) -> None:
    """Add the name and content of *path* or, if it is a folder, of every file below it."""
    if "\0" in str(path):
        return
    if folders.is_file(path, folders.as_absent):
        _add_file(digest, path, path.name)
        return

    def unreadable(error: OSError) -> None:
        _add(digest, f"cannot be listed: {error.errno}".encode())  # pip reports its own errors.

    for entry in folders.walk(path, unreadable, enter=lambda entry: _is_content(entry.name)):
        file = Path(entry.path)
        if folders.is_file(file, folders.as_absent):
            _add_file(digest, file, str(file.relative_to(path)))


def _is_content(folder: str) -> bool:
    return folder not in BYPRODUCTS and not folder.endswith(".egg-info")


def _add_file(digest: _Digest, file: Path, name: str) -> None:
    """Add the name of *file*, and at most as many bytes as its size. The kernel's files, which may be endless or block,
    have size 0."""
    _add(digest, os.fsencode(name))
    try:
        with file.open("rb") as content:
            left = os.fstat(content.fileno()).st_size
            digest.begin_file(left)
            while left > 0 and (chunk := content.read(min(left, 1 << 20))):
                digest.update(chunk)
                left -= len(chunk)
    except OSError as error:
        _add(digest, f"cannot be read: {error.errno}".encode())  # pip reports its own errors.
