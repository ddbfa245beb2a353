"""Finds what is wrong with a job before anything is made for it: missing paths, options that have no effect."""

import os
from pathlib import Path

from toolkit.errors import UserError, at, did_you_mean
from toolkit.jobfile.spec import MODES, SHARDED, Spec
from toolkit.rules import document
from toolkit.source.classify import check_says_how
from toolkit.source.files import kind_of

WHERE = "toolkit run"
# What a host's `train` takes at least, without its script (Pss_Anon in /proc/PID/smaps_rollup: 8.7 MB, 2026-11).
HOST_BYTES = 8 << 20


def check(spec: Spec) -> None:
    """Raise a UserError for the first path of *spec* that is not there, or word that could have no effect."""
    _check_backend(spec)
    _check_room(spec)
    _check_processes(spec)
    _check_script(spec.script, spec.source)
    if spec.requirements and not spec.requirements.is_file():
        found = f"expected a requirements file, found {kind_of(spec.requirements)}"
        raise UserError(found, where=str(spec.requirements))
    _check_rules(spec)
    for channel in spec.channels:
        if not channel.path.exists():
            found = f"expected a file or folder for channel {channel.name}, found {kind_of(channel.path)}"
            raise UserError(found, where=str(channel.path), hint=_of_mode(channel.path))


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


def _check_room(spec: Spec) -> None:
    """Refuse hosts whose `train` processes alone would need more than this machine's memory."""
    needed, there = len(spec.hosts) * HOST_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        message = (
            f"expected at most {there // HOST_BYTES:,} hosts, as this machine has {there >> 30} GiB of memory and"
            f" {len(spec.hosts):,} hosts need {needed >> 30:,} GiB for `train` alone"
        )
        raise UserError(message, where=WHERE, hint="Give fewer --hosts.")


def _of_mode(path: Path) -> str:
    """Return what to do where a channel's *path*, which is not there, ends like a mistyped mode."""
    front, colon, word = str(path).rpartition(":")
    if not colon or "/" in word or not (Path(front).exists() or _of_mode(Path(front))):
        return ""
    known = (*MODES, SHARDED)
    return f"{word!r} is none of {', '.join(known)}. {did_you_mean(word, known)}".rstrip()


def _check_processes(spec: Spec) -> None:
    count = spec.processes_per_host or 1
    if count > 1 and not spec.starts_ranks:
        message = f"--processes-per-host {count} has no effect: the distribution starts one process on each host"
        hint = "Add --distribution torchrun (or ddp, mpi, smddp, ...), or leave it out."
        raise UserError(message, where=WHERE, hint=hint)


def _check_script(script: Path, source: Path) -> None:
    if script.is_relative_to("/dev") or script.is_relative_to("/proc"):
        raise UserError("expected the path of a script in its folder, found a device", where=str(script))
    for folder in (source, script.parent):
        if not folder.is_dir():
            raise UserError(f"expected the folder of the script, found {kind_of(folder)}", where=str(folder))
    if not script.is_file():
        near = did_you_mean(script.name, (path.name for path in script.parent.iterdir() if path.is_file()))
        raise UserError(f"expected a script, found {kind_of(script)}", where=str(script), hint=near)
    if script.suffix.lower() == ".ipynb":
        hint = f"Make one of it: jupyter nbconvert --to script {script.name}"
        raise UserError("expected a script, found a notebook", where=str(script), hint=hint)
    if script.suffix not in (".py", ".sh"):
        with at(str(script)):
            check_says_how(script)


def _check_rules(spec: Spec) -> None:
    if spec.rules is None:
        return
    try:
        document.read(spec.rules.read_bytes(), str(spec.rules))
    except OSError:
        raise UserError(
            f"expected a document of log rules, found {kind_of(spec.rules)}", where=str(spec.rules)
        ) from None
    there = spec.source / spec.rules_in_source
    if there != spec.rules and there.exists():
        message = f"expected a name that the source folder does not have, found another {there.name} in it"
        raise UserError(message, where=str(spec.rules), hint="Name that one, or give this one another name.")
