"""Collects the results of a job of `toolkit run` after all hosts have ended: archives and metrics."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from toolkit import files, folders
from toolkit.commands.jobs.folders import earlier_metrics
from toolkit.commands.simulate.documents import HostSetup
from toolkit.commands.simulate.report import last_values
from toolkit.commands.simulate.reserve import is_full
from toolkit.commands.simulate.stage import StagedHost
from toolkit.errors import ContractError, PlatformError
from toolkit.job.outcome import Outcome, from_document
from toolkit.log import Log
from toolkit.metrics.definition import compile
from toolkit.metrics.file import SampleFile, by_time
from toolkit.metrics.guard import MatchGuard
from toolkit.metrics.sample import Sample
from toolkit.metrics.warn import warnings
from toolkit.records import Record, encode
from toolkit.train.artifacts.members import Origin
from toolkit.train.artifacts.pack import Packed, pack

LAST_BYTES = 4096
SHOWN_FAULTS = 10
BATCH = 1000  # Samples in memory at a time: a long job has millions.


class Collected(Record, frozen=True, kw_only=True):
    """The results in the job's folder: archives by name, each metric's last sample, and notes for the summary."""

    artifacts: dict[str, str]
    last: dict[str, Sample]
    notes: tuple[str, ...]
    is_disk_full: bool = False  # One of them could not be written for want of space.


def outcomes(staged: Sequence[StagedHost]) -> dict[str, Outcome]:
    """Return each host's outcome (output/outcome.json), without the hosts that wrote none."""
    outcomes = {}
    for host in staged:
        path = host.setup.base / "output" / "outcome.json"
        try:
            outcomes[host.setup.host] = from_document(files.read(path), str(path))
        except (OSError, ContractError):
            pass  # The host was killed before it could write one; the report then has its exit code only.
    return outcomes


def failure_text(staged: Sequence[StagedHost], name: str) -> str:
    """Return the failure file of the host called *name*, "" if there is none."""
    for host in staged:
        if host.setup.host == name:
            try:
                return files.read(host.setup.base / "output" / "failure").decode("utf-8", "replace")
            except OSError:
                return ""
    return ""


def _end(log: Path) -> bytes:
    with files.opened(log) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
        return file.read(LAST_BYTES)


def last_words(staged: Sequence[StagedHost], name: str) -> str:
    """Return the last line in the log of the host called *name*, which is the engine's or the kernel's message; "" if
    there is none."""
    for host in staged:
        if host.setup.host == name:
            try:
                lines = _end(host.log).decode("utf-8", "replace").splitlines()
            except OSError:
                return ""
            return next((line.strip() for line in reversed(lines) if line.strip() and "--help" not in line), "")
    return ""


def collect(job_dir: Path, staged: Sequence[StagedHost], log: Log, *, checkpoints: Path | None = None) -> Collected:
    """Pack model.tar.gz and output.tar.gz and merge all hosts' metrics. An error becomes a note and changes no
    status. *checkpoints*: the folder that a container has at /opt/ml/checkpoints."""
    notes: list[str] = []
    full = False
    artifacts = {"logs": "logs/"}
    for name, folder in (("model", "model"), ("output", "output/data")):
        archive = job_dir / f"{name}.tar.gz"
        origins = [_origin(host.setup, folder, checkpoints) for host in staged]
        try:
            packed = pack(origins, archive, log)
        except PlatformError as error:
            full = full or is_full(error)
            notes.append(str(error))
            continue
        notes += _notes(archive.name, packed)
        artifacts[name] = archive.name
    last: dict[str, Sample] = {}
    part = job_dir / ".metrics.jsonl.part"
    lost: list[str] = []
    file = SampleFile(part, warn=lost.append)
    samples = gather(job_dir, staged)
    while batch := list(islice(samples, BATCH)):
        file.append(batch)
        last = last_values(batch, last)
    file.close()
    if lost:
        part.unlink(missing_ok=True)
        notes.append("metrics.jsonl could not be written whole, so it is not there; each host's own is in hosts/")
    elif file.written:
        part.replace(job_dir / "metrics.jsonl")
        artifacts["metrics"] = "metrics.jsonl"
    return Collected(artifacts=artifacts, last=last, notes=tuple(notes), is_disk_full=full)


def misread(definitions: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the names of the metrics among *definitions* whose regex reads some numbers wrong, or misses them."""
    with MatchGuard() as watch:
        return tuple(
            definition.name for definition in compile(definitions, "metric definitions") if warnings(definition, watch)
        )


def gather(job_dir: Path, staged: Sequence[StagedHost]) -> Iterator[Sample]:
    """Yield the samples of all hosts and starts, ordered by time; each host's own order is kept."""
    own_files = (host.setup.base / "output" / "metrics.jsonl" for host in staged)
    return by_time((*earlier_metrics(job_dir), *own_files))


def _origin(setup: HostSetup, folder: str, checkpoints: Path | None) -> Origin:
    contained = setup.contained
    return Origin(
        folder=setup.base / folder,
        host=setup.host,
        base=setup.base,
        checkpoints=checkpoints if contained else None,
        contained=contained,
    )


def _notes(archive: str, packed: Packed) -> list[str]:
    """Return notes for the summary on what is not in *archive* as it was in the hosts' folders.

    If two hosts have a file of the same name, the archive has the first host's; a note names the other unless their
    content is equal.
    """
    notes = [
        f"{archive}: {_listed(names)} of {host} left out: {owner or 'another host'} wrote the same names"
        for (owner, host), names in packed.lost.items()
    ]
    notes += packed.faults[:SHOWN_FAULTS]
    unlisted = len(packed.faults[SHOWN_FAULTS:]) + packed.more_faults
    if unlisted:
        notes.append(f"{archive}: the same of {unlisted:,} more files or folders; the log above names them")
    return notes


def below(folder: Path, unreadable: folders.Unreadable) -> list[Path]:
    """Return everything below *folder*, folders before their content; an empty list if *folder* does not exist."""
    return [Path(entry.path) for entry in folders.walk(folder, unreadable)]


def write_json(path: Path, value: Record) -> None:
    """Write *value* to *path* by a rename, so that a reader never sees half of it."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(msgspec.json.format(encode(value), indent=2) + b"\n")
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def _listed(names: Sequence[str]) -> str:
    unlisted = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + unlisted
