"""Chooses the program that installs the job's packages: pip, or uv where it installs what pip would.

uv downloads and unpacks in parallel, and takes a fraction of pip's time. It reads none of pip's options, so they are
given to it under its own names. Where it has no counterpart of one, or does not see packages that pip sees, pip
installs.

The imports inside functions take milliseconds, which only a job with requirements pays.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from toolkit import folders
from toolkit.errors import UserError
from toolkit.job.job import Job
from toolkit.masking.excerpt import beginning
from toolkit.patterns import lazy
from toolkit.records import Record
from toolkit.train.source import codeartifact, packages

PIP_OPTIONS = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
CONTAINER_FILES = (".dockerenv", "run/.containerenv")
CONTAINER_VARIABLES = ("KUBERNETES_SERVICE_HOST", "container", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")

# What pip's options are called in uv (0.13): the variables, the arguments with a value, and the switches.
_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),  # The second is its name before uv 0.4.23.
    "extra-index-url": ("UV_EXTRA_INDEX_URL",),
    "find-links": ("UV_FIND_LINKS",),
    "constraint": ("UV_CONSTRAINT",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "retries": ("UV_HTTP_RETRIES",),
    "cert": ("SSL_CERT_FILE",),
    "proxy": ("HTTPS_PROXY", "HTTP_PROXY"),
}
_VALUES = {"target": "--target", "prefix": "--prefix", "no-binary": "--no-binary", "only-binary": "--only-binary"}
_SWITCHES = {
    "no-index": ("--no-index",),
    "require-hashes": ("--require-hashes",),
    "no-deps": ("--no-deps",),
    "pre": ("--prerelease", "allow"),
    "upgrade": ("--upgrade",),
    "break-system-packages": ("--break-system-packages",),
    "no-cache-dir": ("--no-cache",),
}
# They change the output, or what pip keeps for later.
_WITHOUT_EFFECT = {
    "cache-dir",
    "compile",
    "debug",
    "disable-pip-version-check",
    "exists-action",
    "log",
    "no-color",
    "no-compile",
    "no-input",
    "no-python-version-warning",
    "no-warn-conflicts",
    "no-warn-script-location",
    "prefer-binary",
    "progress-bar",
    "quiet",
    "root-user-action",
    "use-pep517",
    "verbose",
}
# uv separates files, folders and addresses by a comma here, pip by white space.
_WITH_COMMAS = {"UV_FIND_LINKS"}
# The options that uv takes in a requirements file; it ignores some others with a warning, and ends for the rest.
_TAKEN = lazy(
    r"(?:-[rceif]\b|--(?:requirement|constraint|editable|index-url|extra-index-url|find-links|no-index|no-binary"
    r"|only-binary|require-hashes|hash)\b).*"
)
_IN_A_LINE = lazy(r".*\s(?P<option>--(?:config-settings?|global-option|install-option|build-option)\b).*")
# Their packages beside the interpreter's own are of no account: they are no requirement that is to be found there.
_BYSTANDERS = ("pip-", "setuptools-", "wheel-", "msgspec-", "container_training_toolkit")


class Installer(Record, frozen=True, kw_only=True):
    """The program that installs packages, and its variables."""

    name: str
    argv: tuple[str, ...]
    """The command, up to what it shall install."""
    environ: dict[str, str]
    choice: str = ""
    """The reason why it was chosen, for the log; "" for the interpreter's own pip where no other was possible."""


def choose(job: Job, lines: Iterable[tuple[Path, str]]) -> Installer:
    """Return what installs for *job*'s interpreter, as TOOLKIT_INSTALLER says. *lines*: those of the requirements, each
    with its file.

    An environment without pip (made by uv, by `python -m venv --without-pip`, Debian's Python without python3-pip) is
    served by the pip that Python brings for ensurepip, run from its file, so that the environment gets no pip that
    nobody asked for; else by uv.

    Raises:
        UserError: there is none of them, or uv must install and cannot install what pip would.
    """
    wanted = job.settings.installer
    uv = None if wanted == "pip" else _find_uv(job)
    if uv is None:
        if wanted == "uv":
            raise UserError(
                f"expected uv on PATH, found none in {job.environ.get('PATH', os.defpath)}",
                where="TOOLKIT_INSTALLER",
                hint="Install uv in the image (pip install uv), or set TOOLKIT_INSTALLER=auto.",
            )
        return _pip(job) or _uv_as_last(job)
    requirement_lines = tuple(lines)
    options = _read_pip_options(job)
    obstacle = next(_obstacles(job, options, requirement_lines), "")
    if not obstacle:
        return _uv(job, uv, options, requirement_lines, f"uv installs the packages ({uv})")
    if wanted == "uv":
        raise UserError(
            f"expected requirements that uv installs as pip would: {obstacle}",
            where="TOOLKIT_INSTALLER",
            hint="Set TOOLKIT_INSTALLER=pip, or remove that.",
        )
    pip = _pip(job)
    if pip is None:
        choice = f"{job.interpreter} has no pip: uv installs the requirements, although {obstacle}"
        return _uv(job, uv, options, requirement_lines, choice)
    return Installer(name=pip.name, argv=pip.argv, environ=pip.environ, choice=f"pip installs, not uv: {obstacle}")


def in_container(environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """True if files or variables of Docker, Podman, Kubernetes, LXC or Apptainer show that this is a container."""
    has_file = any(folders.exists(root / name, folders.as_absent) for name in CONTAINER_FILES)
    return has_file or any(environ.get(name) for name in CONTAINER_VARIABLES)


def _python(job: Job) -> str:
    return job.interpreter if job.packages is None else str(job.packages / "bin/python")


def _find_uv(job: Job) -> str | None:
    import shutil

    return shutil.which("uv", path=job.environ.get("PATH", os.defpath))


def _read_pip_options(job: Job) -> dict[str, str]:
    from toolkit.train.source import pip_options

    return pip_options.read(job.environ, _python(job))


def _environ(job: Job) -> dict[str, str]:
    # Hide pip's warning about root, which is normal in a container. pip before 22.1 lacks the option, but takes any
    # variable.
    environ = {"PIP_ROOT_USER_ACTION": "ignore", "PYTHONUNBUFFERED": "1"}
    if in_container(job.environ):
        # Debian's and Ubuntu's Python refuses packages that do not come from apt (PEP 668). In a container, Python
        # belongs to the job; on a user's machine the refusal stays. pip before 23.0.1 does not know the option either.
        environ["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
    return environ | job.environ


def _pip(job: Job) -> Installer | None:
    """Return the interpreter's pip, else the one that Python brings; None without either."""
    python = _python(job)
    if packages.is_there("pip", job):
        return Installer(name="pip", argv=(python, "-m", "pip", "install", *PIP_OPTIONS), environ=_environ(job))
    wheel = bundled_pip()
    if wheel is None:
        return None
    argv = (python, f"{wheel}/pip", "install", *PIP_OPTIONS)
    choice = f"{job.interpreter} has no pip: {wheel}/pip installs the requirements"
    return Installer(name="pip", argv=argv, environ=_environ(job), choice=choice)


def _uv_as_last(job: Job) -> Installer:
    uv = _find_uv(job)
    if uv is not None:
        choice = f"{job.interpreter} has no pip: {uv} installs the requirements"
        return _uv(job, uv, _read_pip_options(job), (), choice)
    raise UserError(
        f"expected pip in {job.interpreter}, which the job's requirements need, found neither pip nor ensurepip nor uv",
        hint="Make the environment with pip (python -m venv; uv venv --seed; apt-get install python3-pip), or install"
        " the requirements in the image.",
    )


def bundled_pip() -> Path | None:
    """Return the file of the pip that ensurepip would install, None without one."""
    import importlib.util
    import sysconfig

    spec = importlib.util.find_spec("ensurepip")
    beside = Path(spec.origin).parent / "_bundled" if spec is not None and spec.origin else None
    elsewhere = sysconfig.get_config_var("WHEEL_PKG_DIR")  # Debian's and Fedora's
    for folder in filter(None, (elsewhere, beside)):
        try:
            wheels = [name for name in folders.names(folder) if name.startswith("pip-") and name.endswith(".whl")]
        except OSError:
            continue
        if wheels:
            return Path(folder, wheels[-1])
    return None


def _uv(job: Job, uv: str, options: Mapping[str, str], lines: Iterable[tuple[Path, str]], choice: str) -> Installer:
    from toolkit.train.source import pip_options

    environ = _environ(job)
    if job.environ.get(codeartifact.VARIABLE):
        options = {name: value for name, value in options.items() if name not in codeartifact.INDEX_OPTIONS}
    elif "break-system-packages" not in options and environ.get("PIP_BREAK_SYSTEM_PACKAGES"):
        options = {**options, "break-system-packages": "1"}
    switches = [word for name, words in _SWITCHES.items() if pip_options.is_on(options.get(name, "")) for word in words]
    values = [word for name, option in _VALUES.items() if name in options for word in (option, options[name])]
    # pip wants a hash for each package once one line has a hash.
    if "--require-hashes" not in switches and any("--hash" in line for _, line in lines):
        switches.append("--require-hashes")
    named = {
        variable: ",".join(value.split()) if variable in _WITH_COMMAS else value
        for name, value in options.items()
        for variable in _VARIABLES.get(name, ())
    }
    # pip takes the best version of all indexes, uv that of the first index which has any.
    own = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PYTHON_DOWNLOADS": "never"}
    if not _may_cache(environ):
        own["UV_NO_CACHE"] = "1"
    argv = (uv, "pip", "install", "--no-progress", "--python", _python(job), *switches, *values)
    return Installer(name="uv", argv=argv, environ={**own, **named, **environ}, choice=choice)


def _may_cache(environ: Mapping[str, str]) -> bool:
    """True if uv can write to its cache; without one it fails, where pip only warns."""
    home = environ.get("HOME")
    cache = environ.get("UV_CACHE_DIR") or environ.get("XDG_CACHE_HOME") or (Path(home, ".cache") if home else None)
    return cache is not None and os.access(folders.nearest(Path(cache)), os.W_OK | os.X_OK)


def _obstacles(job: Job, options: Mapping[str, str], lines: Iterable[tuple[Path, str]]) -> Iterator[str]:
    """Yield the reasons for which uv would not install what pip would."""
    if job.packages is not None:
        yield f"uv would install the image's packages again, which {job.packages} only shows"
    elif job.interpreter == sys.executable:
        yield from (f"uv does not see the packages in {place}" for place in _places_that_uv_misses())
    known = _VARIABLES.keys() | _VALUES.keys() | _SWITCHES.keys() | _WITHOUT_EFFECT
    for name in options:
        if name not in known:
            yield f"uv has no counterpart of pip's option {name}"
    for file, line in lines:
        if line.startswith("-") and not _TAKEN.fullmatch(line):
            yield f"uv does not take the line {beginning(line, 60)!r} of {file.name}"
        elif match := _IN_A_LINE.fullmatch(line):
            yield f"uv does not take {match['option']}, as {file.name} has it"


def _places_that_uv_misses() -> Iterator[str]:
    """Yield the places on this interpreter's path, other than its own folders of packages, in which pip finds packages:
    those of the system below a virtual environment, Debian's, and PYTHONPATH's."""
    import sysconfig

    own = {os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    for place in sys.path:
        if not place or os.path.realpath(place) in own:
            continue
        try:
            names = folders.names(place)
        except OSError:
            continue  # A file, or nothing: no package is found there.
        if any(name.endswith((".dist-info", ".egg-info")) and not name.startswith(_BYSTANDERS) for name in names):
            yield place
