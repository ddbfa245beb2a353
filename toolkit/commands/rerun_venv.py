"""Makes a virtual environment with the packages of a job that ran, in the versions that it had."""

import sys
import venv
from pathlib import Path

import toolkit
from toolkit import folders
from toolkit.errors import PlatformError, UserError
from toolkit.job.file.job_file import JobFile
from toolkit.job.manifest import RunManifest
from toolkit.log import Log
from toolkit.train.probe.ask import ProgramOutput, ask

OWN = "container-training-toolkit"
WITHIN_S = 3600.0
SHOWN_LINES = 3


def make_venv(manifest: RunManifest, job_file: JobFile, log: Log) -> tuple[Path, list[str]]:
    """Make the environment JOBDIR-venv; return its interpreter, and a sentence for each package that it lacks.

    Raises:
        UserError: something is at that place, or the hosts are containers.
        PlatformError: nothing can be installed.
    """
    folder = job_file.run.job_dir.with_name(f"{job_file.run.job_dir.name}-venv")
    if job_file.run.backend == "docker":
        raise UserError(
            "expected hosts that are processes, found containers, whose packages are the image's", where="--venv"
        )
    if job_file.run.replace and folders.is_file(folder / "pyvenv.cfg"):
        folders.remove(folder)
    if folders.exists(folder):
        hint = "Remove it, or give another --name, or --replace."
        raise UserError("expected nothing, found a folder", where=str(folder), hint=hint)
    if "(all)" in manifest.packages:
        raise UserError("expected the names of packages, found their digest alone: there were too many", where="--venv")
    log.info(f"making {folder} with {len(manifest.packages)} packages")
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    interpreter = folder / "bin" / "python"
    _link_toolkit(folder)
    lines, troubles = _list_requirements(manifest)
    answer = _install(interpreter, lines)
    if answer.trouble:
        log.warning(f"pip {answer.trouble}: {_last_lines(answer)}; now each package by itself")
        refused = [line for line in lines if _install(interpreter, [line]).trouble]
        if len(refused) == len(lines):
            raise PlatformError(
                f"pip installs none of the {len(lines)} packages: {_last_lines(answer)}", where=str(folder)
            )
        troubles += [f"package {line} cannot be installed from this index" for line in refused]
    return interpreter, troubles


def _list_requirements(manifest: RunManifest) -> tuple[list[str], list[str]]:
    """Return what pip shall install, and a sentence for each package that no index has."""
    lines, troubles = [], []
    for name, text in manifest.packages.items():
        version, place = text.partition(" ")[0], manifest.package_places.get(name, "")
        if name == OWN:
            continue
        if place.startswith("file:"):
            troubles.append(f"package {name} was installed from {place}, which is left out")
        elif place:
            lines.append(f"{name} @ {'git+' if '.git' in place else ''}{place}")
        else:
            # An index may have the release without the local label ("2.13.0+cpu"), which == then takes.
            lines.append(f"{name}=={version.partition('+')[0]}")
    return lines, troubles


def _link_toolkit(folder: Path) -> None:
    """Let the environment have the toolkit that runs this, which need not be on an index."""
    site = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    package = Path(toolkit.__file__).parent
    (site / "toolkit").symlink_to(package, target_is_directory=True)


def _install(interpreter: Path, lines: list[str]) -> ProgramOutput:
    options = ("--no-deps", "--disable-pip-version-check", "--no-input", "--quiet")
    command = (sys.executable, "-m", "pip", "--python", str(interpreter), "install", *options, *lines)
    return ask(command, within_s=WITHIN_S)


def _last_lines(answer: ProgramOutput) -> str:
    lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
    return " ".join(lines[-SHOWN_LINES:])[:400]
