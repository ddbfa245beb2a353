"""Finds what is wrong with a job before anything is made for it: missing paths, options that have no effect."""

from pathlib import Path

from toolkit.errors import UserError
from toolkit.jobfile.spec import Spec
from toolkit.rules import document

WHERE = "toolkit run"


def check(spec: Spec) -> None:
    """Raise a UserError for the first path of *spec* that is not there, or word that could have no effect."""
    _check_backend(spec)
    _check_processes(spec)
    _check_script(spec.script)
    if spec.requirements and not spec.requirements.is_file():
        found = f"expected a requirements file, found {_found(spec.requirements)}"
        raise UserError(found, where=str(spec.requirements))
    _check_rules(spec)
    for channel in spec.channels:
        if not channel.path.exists():
            found = f"expected a file or folder for channel {channel.name}, found nothing"
            raise UserError(found, where=str(channel.path))


def _check_backend(spec: Spec) -> None:
    if spec.backend == "docker" and not spec.image:
        hint = "Name one that has the toolkit (docs/images.md)."
        raise UserError("expected --image with --backend docker, found none", where=WHERE, hint=hint)
    if spec.backend is None and spec.image:
        hint = "Add --backend docker, or --backend process to leave the image aside."
        raise UserError("--image has no effect: the hosts are processes of this machine", where=WHERE, hint=hint)
    if spec.backend != "docker" and (spec.memory_bytes or spec.shm_bytes):
        hint = "Only containers have limits of their own: --backend docker --image IMAGE."
        raise UserError("--memory and --shm-size need --backend docker", where=WHERE, hint=hint)


def _check_processes(spec: Spec) -> None:
    count = spec.processes_per_host or 1
    if count > 1 and not spec.starts_ranks:
        message = f"--processes-per-host {count} has no effect: the distribution starts one process on each host"
        hint = "Add --distribution torchrun (or ddp, mpi, smddp, ...), or leave it out."
        raise UserError(message, where=WHERE, hint=hint)


def _check_script(script: Path) -> None:
    if not script.is_file():
        raise UserError(f"expected a script, found {_found(script)}", where=str(script))
    if script.suffix == ".ipynb":
        hint = f"Make one of it: jupyter nbconvert --to script {script.name}"
        raise UserError("expected a script, found a notebook", where=str(script), hint=hint)


def _check_rules(spec: Spec) -> None:
    if spec.rules is None:
        return
    try:
        document.read(spec.rules.read_bytes(), str(spec.rules))
    except OSError:
        raise UserError(
            f"expected a document of log rules, found {_found(spec.rules)}", where=str(spec.rules)
        ) from None
    there = spec.source / spec.rules_in_source
    if there != spec.rules and there.exists():
        message = f"expected a name that the source folder does not have, found another {there.name} in it"
        raise UserError(message, where=str(spec.rules), hint="Name that one, or give this one another name.")


def _found(path: Path) -> str:
    return "a folder" if path.is_dir() else "nothing"
