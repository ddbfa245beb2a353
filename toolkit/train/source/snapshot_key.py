"""The key of a package snapshot: a hash of the requirements and of all options that decide what is installed for them.

The interpreter, the platform and the image's packages are added where the snapshot is read
(storage/package_snapshot.py). User names, passwords and queries of addresses are left out: they change, and are
secrets.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from toolkit.job.job import Job
from toolkit.masking.excerpt import beginning
from toolkit.patterns import lazy
from toolkit.train.source import codeartifact, pip_options
from toolkit.train.source.tree_digest import TooMuchError, TreeDigest

_EDITABLE = lazy(r"(?:-e|--editable)\b")
_REPOSITORY = lazy(r".*\b(?:git|hg|svn|bzr)\+(?!\S*@[0-9a-f]{40}\b).*")
_REMOTE_LIST = lazy(r"(?:-r|--requirement|-c|--constraint)[\s=]*\w+://.*")
_VARIABLE = lazy(r"\$\{(?P<name>[A-Z0-9_]+)\}")
_CREDENTIALS = lazy(r"(?<=://)[^/\s@]+@|(?<=\S)\?[^\s#]*")
# They say where packages go: not into the interpreter's own folders, which are compared.
_PLACES = ("target", "prefix", "user", "root")
# How packages come, and not which.
_OF_TRANSPORT = {
    "cache-dir",
    "cert",
    "client-cert",
    "default-timeout",
    "no-cache-dir",
    "progress-bar",
    "proxy",
    "quiet",
    "retries",
    "timeout",
    "trusted-host",
    "verbose",
}
_UV_OF_TRANSPORT = lazy(r"UV_.*(CACHE|TIMEOUT|RETRIES|PASSWORD|USERNAME|TOKEN|SECRET|CONCURRENT|PROGRESS|INSECURE).*")
_OF_BUILDS = (
    "CC",
    "CXX",
    "CFLAGS",
    "CPPFLAGS",
    "CXXFLAGS",
    "LDFLAGS",
    "CMAKE_ARGS",
    "CUDA_HOME",
    "TORCH_CUDA_ARCH_LIST",
)


class UnfitError(Exception):
    """The packages of these requirements are not kept; the text says why."""


def make(job: Job, installer: str, python: str, lines: Iterable[tuple[Path, str]]) -> str:
    """Return the key of what *installer* installs for *python* by *lines*, those of the requirements, with their files.

    Raises:
        UnfitError: they name what may change under the same name, or install it elsewhere.
        UserError: pip's configuration cannot be read.
    """
    assert job.script is not None
    folder = job.script.folder
    if job.script.kind == "package":
        raise UnfitError("the code is itself a package")
    options = pip_options.read(job.environ, python)
    elsewhere = next((name for name in _PLACES if name in options), "")
    if elsewhere:
        raise UnfitError(f"pip's option {elsewhere} puts packages elsewhere")
    digest = TreeDigest()
    try:
        for word in (installer, job.environ.get(codeartifact.VARIABLE, "")):
            digest.add(word.encode())
        for file, line in lines:
            _add_line(digest, line, job.environ, folder, file)
        _add_options(digest, options, job.environ, folder)
        if installer == "uv":
            for file in _configurations_of_uv(job.environ, folder):
                digest.add_tree(file)
    except TooMuchError:
        raise UnfitError("the local files that they name are too many to compare") from None
    return digest.hexdigest()


def _add_options(digest: TreeDigest, options: Mapping[str, str], environ: Mapping[str, str], folder: Path) -> None:
    for name, value in sorted(options.items()):
        if name in ("constraint", "requirement", "build-constraint") and "://" in value:
            raise UnfitError(f"pip's option {name} names a file on another machine")
        if name not in _OF_TRANSPORT:
            digest.add(_shown(name, value))
            for word in value.split():
                digest.add_tree(folder / word)
    for name, value in sorted(environ.items()):
        if name in _OF_BUILDS or (name.startswith("UV_") and not _UV_OF_TRANSPORT.fullmatch(name)):
            digest.add(_shown(name, value))


def _shown(name: str, value: str) -> bytes:
    return os.fsencode(f"{name}={without_credentials(value)}")


def without_credentials(text: str) -> str:
    """Return *text* without the user names, passwords and queries of its addresses."""
    return _CREDENTIALS.sub("", text)


def _add_line(digest: TreeDigest, line: str, environ: Mapping[str, str], folder: Path, file: Path) -> None:
    if _EDITABLE.match(line):
        raise UnfitError(f"{file.name} has {beginning(without_credentials(line), 60)!r}, which stays a link")
    if _REPOSITORY.fullmatch(line):
        short = beginning(without_credentials(line), 60)
        raise UnfitError(f"{file.name} has {short!r}, which names no commit of 40 digits")
    if _REMOTE_LIST.fullmatch(line):
        raise UnfitError(f"{file.name} has {beginning(without_credentials(line), 60)!r}, which is on another machine")
    # As pip and uv: a variable that is not set stays as it is.
    line = _VARIABLE.sub(lambda match: environ.get(match["name"]) or match[0], line)
    digest.add(without_credentials(line).encode("utf-8", "surrogatepass"))
    digest.add_named(line, folder)


def _configurations_of_uv(environ: Mapping[str, str], folder: Path) -> Iterator[Path]:
    home = environ.get("HOME")
    settings = environ.get("XDG_CONFIG_HOME") or (Path(home, ".config") if home else None)
    places = [settings] if settings else []
    for place in (*places, *environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep), "/etc"):
        yield Path(place, "uv/uv.toml")
    if chosen := environ.get("UV_CONFIG_FILE"):
        yield Path(chosen)
    for above in (folder, *folder.parents):
        yield above / "uv.toml"
        yield above / "pyproject.toml"
