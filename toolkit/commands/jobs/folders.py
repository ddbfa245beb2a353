"""Finds the output folders of a job's hosts in a folder that a person names."""

import fcntl
from collections.abc import Iterator
from pathlib import Path

from toolkit import files, folders
from toolkit.errors import UserError
from toolkit.job.report import REPORT
from toolkit.records import Record
from toolkit.series import debugger_names

# What `train`, the monitor and a profiler leave in an output folder.
MARKS = ("outcome.json", "success", "failure", "metrics.jsonl", "monitor", "profiler")
RUN_MARK = ".toolkit-job"  # Marks a job folder of `toolkit run`, which holds a lock on it while the job runs.
INTERRUPTED = "interrupted"  # Holds a job folder for each start of the job that a spot interruption ended.
EXPECTED = (
    "expected a job folder of `toolkit run`, an /opt/ml or /opt/ml/output folder, one with several hosts, or SageMaker "
    "Debugger's profiler-output"
)


class Place(Record, frozen=True, kw_only=True):
    """The output folder of one host. `name`: as far as the folders' names tell it, else ""."""

    output: Path
    name: str = ""


def places(folder: Path, unreadable: folders.Unreadable = folders.named_elsewhere) -> tuple[Place, ...]:
    """Return the hosts' output folders in *folder*, by name. *unreadable* gets the error of each that cannot be looked
    at.

    Raises:
        UserError: there are none.
        OSError: *folder* cannot be read, or of those in it none can.
    """
    if not folders.is_dir(folder):
        kind = "a file" if folders.exists(folder) else "nothing"
        raise UserError(f"{EXPECTED}, found {kind}", where=str(folder), hint="Name the folder of a job.")
    errors: list[OSError] = []
    if folders.is_file(folder / REPORT, errors.append) or folders.is_dir(folder / "hosts", errors.append):
        host_places = tuple(_find_simulated(folder, errors.append))
    elif (output := output_in(folder, errors.append)) is not None:
        host_places = (Place(output=output),)
    else:
        host_places = tuple(_find_several(folder, errors.append)) or tuple(
            Place(output=folder, name=node) for node in sorted(debugger_names.files_of(folder), key=in_order)
        )
        if not host_places and errors:
            raise errors[0]
        if not host_places:
            hint = "Name the folder that --job-dir named, or the container's /opt/ml."
            raise UserError(f"{EXPECTED}, found no {REPORT} and no output folder", where=str(folder), hint=hint)
    for error in errors:
        unreadable(error)
    return host_places


def is_locked(job_dir: Path) -> bool:
    """True if a `toolkit run` holds the lock of *job_dir*, or if its mark cannot be read."""
    try:
        with files.opened(job_dir / RUN_MARK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return False


def interrupted(job_dir: Path) -> tuple[Path, ...]:
    """Return the job folders of the starts that spot interruptions ended, the first one first."""
    folder = job_dir / INTERRUPTED
    starts = [folder / name for name in folders.names(folder) if name.isdecimal()]
    return tuple(sorted(starts, key=lambda start: int(start.name)))


def earlier_metrics(job_dir: Path) -> tuple[Path, ...]:
    """Return the files of metrics of these starts."""
    return tuple(
        host / "opt" / "ml" / "output" / "metrics.jsonl"
        for start in interrupted(job_dir)
        for host in folders.matching(start / "hosts", "*", folders.named_elsewhere)
    )


def output_in(folder: Path, unreadable: folders.Unreadable = folders.named_elsewhere) -> Path | None:
    """Return the output folder that *folder* is or holds, None if it is no host's; *unreadable* then gets the first
    error, if any."""
    errors: list[OSError] = []
    for inner in ("opt/ml/output", "ml/output", "output"):
        output = folder / inner
        if not folders.is_dir(output, errors.append):
            continue
        if _is_output(output, errors.append) or folders.is_dir(output.parent / "input" / "config", errors.append):
            return output
    if _is_output(folder, errors.append):
        return folder
    for error in errors[:1]:
        unreadable(error)
    return None


def in_order(name: str) -> tuple[str, int]:
    """Return a key that sorts algo-2 before algo-10."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or -1)


def _is_output(folder: Path, unreadable: folders.Unreadable) -> bool:
    return any(folders.exists(folder / mark, unreadable) for mark in MARKS)


def _find_several(folder: Path, unreadable: folders.Unreadable) -> Iterator[Place]:
    for path in map(folder.joinpath, sorted(folders.names(folder), key=in_order)):
        if folders.is_file(path / REPORT, folders.as_absent):
            continue  # A job of its own, rather than a host.
        if folders.is_dir(path, unreadable) and (output := output_in(path, unreadable)) is not None:
            yield Place(output=output, name=path.name)


def _find_simulated(folder: Path, unreadable: folders.Unreadable) -> Iterator[Place]:
    hosts = folder / "hosts"
    for host in map(hosts.joinpath, sorted(folders.names(hosts), key=in_order)):
        output = host / "opt" / "ml" / "output"
        if folders.is_dir(output, unreadable):
            yield Place(output=output, name=host.name)
