"""Checks a job of `toolkit run` before any folder is made: finds missing paths and options without effect."""

import os
from pathlib import Path

from toolkit import files, folders
from toolkit.commands.jobs.folders import is_locked
from toolkit.commands.simulate import earlier
from toolkit.commands.simulate.stage import RESULTS
from toolkit.errors import PlatformError, UserError, did_you_mean, may_pass, name_place
from toolkit.job.file.job_file import FILE_SYSTEM, MODES, SHARDED, JobFile
from toolkit.job.strategy import STRATEGIES
from toolkit.storage.uri import parse
from toolkit.train.log_rules import document
from toolkit.train.source.classify import check_says_how, validate_entry_point
from toolkit.train.source.files import is_file, is_folder, kind_of

WHERE = "toolkit run"
# The least memory of a host's `train` without its script (Pss_Anon in /proc/PID/smaps_rollup: 8.7 MB, 2026-11).
HOST_BYTES = 8 << 20


def check(job_file: JobFile) -> None:
    """Raise a UserError for the first path of *job_file* that does not exist or option that has no effect."""
    if folders.exists(job_file.run.job_dir) and is_locked(job_file.run.job_dir):
        raise UserError("a job is running there", where=str(job_file.run.job_dir), hint="Give another --job-dir.")
    earlier.refuse(job_file.run.job_dir, replace=job_file.run.replace)
    _check_backend(job_file)
    _check_memory(job_file)
    _check_processes(job_file)
    _check_script(job_file.script, job_file.source)
    if job_file.requirements and not is_file(job_file.requirements):
        message = f"expected a requirements file, found {kind_of(job_file.requirements)}"
        raise UserError(message, where=str(job_file.requirements))
    _check_rules(job_file)
    if job_file.profiler_rules is not None:
        from toolkit.diagnosis import configuration

        configuration.read(job_file.profiler_rules, "job file: $.profiler-rules")
    checkpoints = job_file.checkpoints
    if checkpoints is not None and (
        checkpoints.resolve() == job_file.run.job_dir.resolve() or _is_replaced(checkpoints, job_file.run.job_dir)
    ):
        message = "expected a folder for checkpoints, found one of the job's results, which the next run there replaces"
        raise UserError(
            message, where=str(checkpoints), hint="Copy it to a folder beside the job's own, and give that."
        )
    for channel in job_file.channels:
        if channel.uri:
            parse(channel.uri, f"channel {channel.name}")
        elif kind_of(channel.folder) not in ("a file", "a folder"):
            message = f"expected a file or folder for channel {channel.name}, found {kind_of(channel.folder)}"
            raise UserError(message, where=str(channel.folder), hint=_of_mode(channel.folder))
        elif channel.file_system and not is_folder(channel.folder):
            message = f"expected the folder of a file system for channel {channel.name}, found a file"
            raise UserError(message, where=str(channel.folder))
        elif _is_replaced(channel.folder, job_file.run.job_dir):
            message = (
                f"expected data for channel {channel.name}, found a result of an earlier job that this run replaces"
            )
            raise UserError(message, where=str(channel.folder), hint="Give another --job-dir.")


def _is_replaced(path: Path, job_dir: Path) -> bool:
    """True if *path* is among an earlier job's results in *job_dir*."""
    path, job_dir = path.resolve(), job_dir.resolve()
    return path.is_relative_to(job_dir) and path.relative_to(job_dir).parts[:1] in {(name,) for name in RESULTS}


def _check_backend(job_file: JobFile) -> None:
    if job_file.run.backend == "docker" and not job_file.run.image:
        hint = "Name one that has the toolkit (docs/images.md)."
        raise UserError("expected --image with --backend docker, found none", where=WHERE, hint=hint)
    if job_file.run.backend is None and job_file.run.image:
        hint = "Add --backend docker, or --backend process to leave the image aside."
        raise UserError("--image has no effect: the hosts are processes of this machine", where=WHERE, hint=hint)
    if job_file.run.backend != "docker" and (job_file.run.memory_bytes or job_file.run.shm_bytes):
        hint = "Only containers have limits of their own: --backend docker --image IMAGE."
        raise UserError("--memory and --shm-size need --backend docker", where=WHERE, hint=hint)


def _check_memory(job_file: JobFile) -> None:
    """Refuse hosts whose `train` processes alone would need more than this machine's memory."""
    needed, available = len(job_file.hosts) * HOST_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > available:
        message = (
            f"expected at most {available // HOST_BYTES:,} hosts, as this machine has {available >> 30} GiB of memory"
            f" and {len(job_file.hosts):,} hosts need {needed >> 30:,} GiB for `train` alone"
        )
        raise UserError(message, where=WHERE, hint="Give fewer --hosts.")


def _of_mode(path: Path) -> str:
    """Return a hint if *path*, a channel's path that does not exist, ends like a mistyped mode."""
    front, colon, word = str(path).rpartition(":")
    if not colon or "/" in word or not (folders.exists(front, folders.as_absent) or _of_mode(Path(front))):
        return ""
    words = (*MODES, SHARDED, FILE_SYSTEM)
    return f"{word!r} is none of {', '.join(words)}. {did_you_mean(word, words)}".rstrip()


def _check_processes(job_file: JobFile) -> None:
    count = job_file.processes_per_host or 1
    if count > 1 and STRATEGIES[job_file.strategy.name].one_per_host:
        message = f"--processes-per-host {count} has no effect: the distribution starts one process on each host"
        hint = "Add --distribution torchrun (or ddp, mpi, smddp, ...), or leave it out."
        raise UserError(message, where=WHERE, hint=hint)


def _check_script(script: Path, source: Path) -> None:
    if script.is_relative_to("/dev") or script.is_relative_to("/proc"):
        raise UserError("expected the path of a script in its folder, found a device", where=str(script))
    for folder in (source, script.parent):
        if not is_folder(folder):
            raise UserError(f"expected the folder of the script, found {kind_of(folder)}", where=str(folder))
    if not is_file(script):
        near = "" if is_folder(script) else did_you_mean(script.name, folders.names(script.parent))
        raise UserError(f"expected a script, found {kind_of(script)}", where=str(script), hint=near)
    with name_place(str(script)):
        validate_entry_point(script.relative_to(source).as_posix())
    if script.suffix.lower() == ".ipynb":
        hint = f"Make one of it: jupyter nbconvert --to script {script.name}"
        raise UserError("expected a script, found a notebook", where=str(script), hint=hint)
    if script.suffix not in (".py", ".sh"):
        with name_place(str(script)):
            check_says_how(script)


def _check_rules(job_file: JobFile) -> None:
    if job_file.rules is None:
        return
    try:
        document.read(files.read(job_file.rules), str(job_file.rules))
    except OSError as error:
        found = kind_of(job_file.rules)
        found = f"one that cannot be read ({error.strerror})" if found == "a file" else found
        kind = PlatformError if may_pass(error) else UserError
        raise kind(f"expected a document of log rules, found {found}", where=str(job_file.rules)) from None
    target = job_file.source / job_file.rules_in_source
    if target != job_file.rules and folders.exists(target):
        message = f"expected a name that the source folder does not have, found another {target.name} in it"
        raise UserError(message, where=str(job_file.rules), hint="Name that one, or give this one another name.")
