"""Finds the records of a job that are damaged: each reader takes what it can, and here is said what that leaves out."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from toolkit import files, folders
from toolkit.commands.jobs.data import HostData, JobData
from toolkit.metrics import file as metrics_file
from toolkit.series import blocks, findings, monitor_document, step_records

MOST_NOTES = 8  # Of the binary files of one folder.


def find_damage(job: JobData) -> tuple[str, ...]:
    """Return a sentence for each damaged record of *job*, with the file and what is lost.

    Files that cannot be opened are in the notes of *job* already.
    """
    return tuple(note for host in job.hosts for note in _check_host(host))


def _check_host(host: HostData) -> Iterator[str]:
    yield from _check_lines(host.metrics, _count_metrics, "captured values")
    yield from _check_lines(host.monitor / findings.NAME, _count_findings, "findings of the running job")
    yield from _check_monitor_document(host.monitor / monitor_document.NAME)
    for folder, lost in (("samples", "samples"), ("steps", "steps")):
        yield from _check_series(host.monitor / folder, lost)


def _check_lines(path: Path, count_good: Callable[[Iterable[bytes]], int], lost: str) -> Iterator[str]:
    try:
        with files.opened(path) as file:
            lines = sum(1 for line in file if line.strip())
            file.seek(0)
            good = count_good(line for line in file if line.strip())
    except OSError:
        return  # It is not there, or a note of the job says that it cannot be read.
    if good < lines:
        yield f"{path} is damaged: {lines - good:,} of its {lines:,} lines cannot be read; their {lost} are missing."


def _count_metrics(lines: Iterable[bytes]) -> int:
    return sum(1 for _ in metrics_file.decoded(lines))


def _count_findings(lines: Iterable[bytes]) -> int:
    return sum(len(findings.decoded(line)) for line in lines)


def _check_monitor_document(path: Path) -> Iterator[str]:
    try:
        files.opened(path).close()
    except OSError:
        return
    if monitor_document.read(path) is None:
        yield f"{path} is damaged: the host's hardware and the rules of the job are missing."


def _check_series(folder: Path, lost: str) -> Iterator[str]:
    notes = []
    for path in folders.matching(folder, f"*.{lost}", folders.named_elsewhere):
        try:
            damage = blocks.describe_damage(path)
            difference = step_records.describe_other_layout(path) if lost == "steps" else ""
        except OSError:
            continue
        if damage:
            notes.append(f"{path} is damaged: {damage}; {lost} are missing there.")
        if difference:
            notes.append(
                f"{path} was written by another version of the toolkit: {difference}; {lost} are missing there. Read"
                " the job with that version."
            )
    yield from notes[:MOST_NOTES]
    if len(notes) > MOST_NOTES:
        yield f"{folder}: {len(notes) - MOST_NOTES} more files of {lost} are damaged."
