"""Makes a folder for the packages of requirements.txt if the image's own folders are not writable (an unprivileged
user, a read-only root).

pip installs into a virtual environment of the job that sees the image's packages. So pip installs only packages that
are missing or wanted in another version, and never tries to remove the image's. The alternatives are worse (tried, or
by their documentation): `--target` installs every dependency again, torch too; `--prefix` tries to uninstall packages
that it upgrades; `--user` does not work in virtual environments and needs a home folder.

The script keeps its own interpreter. PYTHONPATH puts the environment's packages before the image's in every Python that
the job starts; the environment's commands come after the image's on PATH. TOOLKIT_PACKAGES makes sitecustomize read the
folder's .pth files (of packages installed with -e and old namespace packages), which Python does not read in folders of
PYTHONPATH.
"""

import os
from pathlib import Path

import msgspec

from toolkit import folders
from toolkit.errors import PlatformError
from toolkit.job.job import Job
from toolkit.log import Log

# The user chooses pip's target by one of these variables; we then change nothing.
CHOSEN = ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT")


def chosen(job: Job) -> Path | None:
    """Return the folder of the environment to make, None if pip can install beside the interpreter."""
    if any(job.environ.get(name) for name in CHOSEN) or _is_writable():
        return None
    return job.folders.scratch / "packages"


def make(folder: Path, log: Log) -> None:
    """Make the environment *folder*, unless it exists.

    Raises:
        PlatformError: it cannot be made.
    """
    try:
        if not folders.exists(folder / "bin/python"):
            _make(folder)
        is_noexec = bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
    except OSError as error:
        raise PlatformError(
            f"expected a folder for the job's packages, cannot create it ({error.strerror})",
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
    """True if *module*, a name without dots, can be imported in *job*'s interpreter, or this is another one."""
    import importlib.machinery
    import importlib.util
    import sys

    if job.interpreter != sys.executable:
        return True

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
    # addsitedir also reads their .pth files, as the image's Python does at its start.
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in image)
    (site_of(folder) / "image.pth").write_text(lines, "utf-8")


def site_of(folder: Path) -> Path:
    """Return the folder of packages in the environment *folder*."""
    import sys

    return folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def _is_writable() -> bool:
    """True if pip can write to all folders that it installs into for this interpreter."""
    import sysconfig

    places = (Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "scripts"))
    return all(os.access(folders.nearest(place), os.W_OK | os.X_OK) for place in places)
