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
from toolkit.train.source.tree_digest import TooMuchError, TreeDigest

REQUIREMENTS = "requirements.txt"
INCLUDE = lazy(r"(?:-r|--requirement|-c|--constraint)[\s=]*(?P<file>\S+)")
# UTF-32 comes first: its little-endian mark begins with UTF-16's.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)
GRACE_S = 5.0


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
    lines = tuple(list_requirement_lines(script.folder)) if requirements else ()
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
    except TooMuchError:
        return None


def _fingerprint(interpreter: str, folder: Path, pip_arguments: tuple[str, ...]) -> str:
    """Return a hash of the present meaning of *pip_arguments*: the files' content, the interpreter, this container's
    root.

    The inode of "/" differs between containers, so a scratch folder on a volume that outlives a container does no harm.
    The interpreter's inode changes if a virtual environment is created again at the same path.
    """
    digest = TreeDigest()
    for place in (Path("/"), Path(interpreter)):
        status = folders.status(place, follow_links=False)
        if status is not None:
            digest.add(b"%d:%d" % (status.st_dev, status.st_ino))
    for word in (interpreter, str(folder), *pip_arguments):
        digest.add(os.fsencode(word))
    if "." in pip_arguments:
        digest.add_tree(folder)
    if REQUIREMENTS in pip_arguments:
        _add_requirements(digest, folder / REQUIREMENTS, folder, set())
    return digest.hexdigest()[:32]


def _add_requirements(digest: TreeDigest, file: Path, folder: Path, visited: set[Path]) -> None:
    """Add *file*, the files it includes, and the local files and folders that it names (relative to *folder*)."""
    ahead = [file]
    while ahead:
        file = ahead.pop()
        if file in visited or not is_file(file):
            continue
        visited.add(file)
        digest.add(file.read_bytes())
        for line in _lines(file):
            if include := INCLUDE.match(line):
                ahead.append(file.parent / include["file"])
            else:
                digest.add_named(line, folder)


def list_requirement_lines(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the lines of the requirements in *folder* and of the files that they include, each with its file."""
    ahead, visited = [folder / REQUIREMENTS], set[Path]()
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
