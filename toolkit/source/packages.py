"""A folder for the packages of a requirements.txt where the image's own cannot be written: an unprivileged user, a
read-only root.

pip installs into a virtual environment of the job's that sees the image's packages: it takes those for installed, puts
only what is missing or wanted in another version beside them, and never tries to remove them. The others' ways were
tried or read up: `--target` installs every dependency anew (torch, again), `--prefix` tries to uninstall what it
upgrades, `--user` is refused in virtual environments and needs a home.

The script keeps its own interpreter: the environment's packages precede the image's by PYTHONPATH, in every Python
that is started, and its commands follow the image's on PATH. TOOLKIT_PACKAGES has sitecustomize read the folder's .pth
files, which Python reads in no folder of PYTHONPATH (packages installed with -e, old namespace packages).
"""

import os
from pathlib import Path

import msgspec

from toolkit.errors import PlatformError
from toolkit.job.job import Job
from toolkit.log import Log

# Who says where pip is to install has said it.
CHOSEN = ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT")


def chosen(job: Job) -> Path | None:
    """Return the environment to make for the job's packages, None where pip can install beside its interpreter."""
    if any(job.environ.get(name) for name in CHOSEN) or _is_writable():
        return None
    return job.folders.scratch / "packages"


def make(folder: Path, log: Log) -> None:
    """Make the environment *folder*, unless it is there.

    Raises:
        PlatformError: it cannot be made.
    """
    try:
        if not (folder / "bin/python").exists():
            _make(folder)
        is_noexec = bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
    except OSError as error:
        raise PlatformError(
            f"expected a folder for the job's packages, cannot make it ({error.strerror})",
            where=str(error.filename or folder),
            hint="Set TMPDIR to a folder with room that this user can write to.",
        ) from None
    log.info(f"user {os.getuid()} cannot write to the image's packages: requirements are installed in {folder}")
    if is_noexec:
        log.warning(
            f"{folder} is mounted noexec: packages with compiled parts and commands will not load. Set TMPDIR to a"
            " folder without noexec (docker run --tmpfs /tmp:exec)."
        )


def with_packages(job: Job, folder: Path) -> Job:
    """Return *job* with the packages and commands in *folder* on its paths."""
    site = str(site_of(folder))
    paths = {
        "PYTHONPATH": os.pathsep.join(filter(None, (site, job.environ.get("PYTHONPATH", "")))),
        "PATH": os.pathsep.join(filter(None, (job.environ.get("PATH", os.defpath), str(folder / "bin")))),
        "TOOLKIT_PACKAGES": site,
    }
    return msgspec.structs.replace(job, packages=folder, environ={**job.environ, **paths})


def is_there(module: str, job: Job) -> bool:
    """True if *module*, a name without dots, can be imported in *job*'s interpreter."""
    import importlib.machinery
    import importlib.util

    importlib.invalidate_caches()
    more = [] if job.packages is None else [str(site_of(job.packages))]
    return (
        importlib.machinery.PathFinder.find_spec(module, more) is not None
        or importlib.util.find_spec(module) is not None
    )


def _make(folder: Path) -> None:
    import sys
    import venv

    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    image = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    # As the image's Python does at its own start: with their .pth files.
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in image)
    (site_of(folder) / "image.pth").write_text(lines, "utf-8")


def site_of(folder: Path) -> Path:
    """Return where the packages of the environment *folder* lie."""
    import sys

    return folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def _is_writable() -> bool:
    """True if pip can write to all places that it installs to for this interpreter."""
    import sysconfig

    places = (Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "scripts"))
    nearest = (next(path for path in (place, *place.parents) if path.exists()) for place in places)
    return all(os.access(path, os.W_OK | os.X_OK) for path in nearest)
