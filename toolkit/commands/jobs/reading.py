"""Reads a job from its folder. A damaged or missing file leaves its facts out, and a note names it."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolkit import files, folders
from toolkit.commands.jobs import secrets
from toolkit.commands.jobs.data import HostData, HostStatus, JobData, JobStatus
from toolkit.commands.jobs.ending import has_unreadable_outcome
from toolkit.commands.jobs.folders import Place, in_order, interrupted, is_locked, places
from toolkit.commands.jobs.times import last_written_s, span
from toolkit.errors import ContractError
from toolkit.exit_codes import TEMPORARY_FAILURE
from toolkit.job.outcome import Outcome, from_document
from toolkit.job.report import REPORT, HostReport, JobReport, seconds_of, waits_since_s
from toolkit.log import Log
from toolkit.masking.digests import Digests
from toolkit.metrics.file import read as read_samples
from toolkit.records import decode
from toolkit.series import debugger_names

MOST_NOTES = 8  # Of one folder.
# Of names that are files of records: a folder of such a name stands in the place of one.
RECORD_SUFFIXES = (".json", ".jsonl", ".gz", ".samples", ".steps", ".log")
QUIET_S = 90.0  # A job without an outcome that has not written for so long no longer runs.
STATUSES: dict[str, JobStatus] = {"Completed": "succeeded", "Failed": "failed", "Stopped": "stopped"}


def read(folder: str | os.PathLike[str], *, now_s: float | None = None) -> JobData:
    """Return the job in *folder*: a job folder of `toolkit run`, any /opt/ml or /opt/ml/output, or several hosts'.

    *now_s*: the time, seconds since the epoch, by which a job without an outcome and without a platform's report is
    taken to run still, if it wrote in the last 90 s; None: it is taken to have ended.

    Raises:
        UserError: *folder* holds no job.
    """
    job_dir = Path(folder).absolute()
    notes: list[str] = []
    host_places = places(job_dir, lambda error: notes.append(_describe_unusable(Path(str(error.filename)), error)))
    log, all_digests = Log(), list[Digests]()
    for place in host_places:
        log.hide(_read_hyperparameters(place.output.parent / "input" / "config" / "hyperparameters.json"))
        digests = secrets.read(place.output.parents[2])
        if digests is not None and digests not in all_digests:
            all_digests.append(digests)
            log.hide_digests(digests)
    report = _read_report(job_dir / REPORT, notes)
    hosts = [_read_host(place, number, report, job_dir, log.mask, notes) for number, place in enumerate(host_places, 1)]
    if report is not None:
        hosts += [
            _make_missing_host(name, host_report, job_dir)
            for name, host_report in report.hosts.items()
            if name not in _names(hosts)
        ]
    runs = _is_running(job_dir, report, hosts, now_s)
    status = _decide_status(report, hosts, runs)
    outcome = _choose_outcome(report, hosts)
    start_s, end_s = _find_times(report, hosts)
    return JobData(
        name=report.name if report else job_dir.name,
        folder=job_dir,
        status=status,
        hosts=tuple(msgspec.structs.replace(host, status=_settle_status(host.status, runs)) for host in hosts),
        exit_code=report.exit_code
        if report and report.exit_code is not None
        else outcome.exit_code
        if outcome
        else None,
        reason=log.mask(report.failure_reason if report else _find_first(host.failure for host in hosts)),
        failed_host=_find_blamed_host(report, outcome, status),
        stopped_by=report.secondary_status if report and status == "stopped" else "",
        outcome=outcome,
        start_s=start_s,
        end_s=None if status == "running" else end_s,
        billable_s=report.billable_seconds if report and report.end_time else None,
        notes=(*notes, *(report.notes if report else ())),
        managed_spot=report is not None and report.managed_spot,
        interruptions=report.interruptions if report else (),
        earlier=tuple(read(start) for start in interrupted(job_dir)) if report and report.interruptions else (),
        checkpoint_s=seconds_of(report.checkpoint_time) if report else None,
        waited_s=report.waited_seconds if report else 0.0,
        waits_since_s=waits_since_s(report) if report else None,
        max_run_s=report.max_run_seconds if report else None,
        mask=log.mask,
    )


def _read_hyperparameters(path: Path) -> dict[str, Any]:
    """Return the hyperparameters in *path*, whose secrets must not be shown; none if it cannot be read."""
    try:
        hyperparameters = msgspec.json.decode(files.read(path))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return hyperparameters if isinstance(hyperparameters, dict) else {}


def _read_report(path: Path, notes: list[str]) -> JobReport | None:
    try:
        return decode(files.read(path), JobReport, str(path))
    except FileNotFoundError:
        return None  # No job of `toolkit run`.
    except (OSError, ContractError) as error:
        notes.append(_describe_unusable(path, error))
        return None


def _read_host(
    place: Place, number: int, report: JobReport | None, job_dir: Path, mask: Callable[[str], str], notes: list[str]
) -> HostData:
    output = place.output
    outcome = _read_outcome(output / "outcome.json", notes)
    failure = _read_text(output / "failure", notes)
    name = place.name or _find_host_name(output) or f"host {number}"
    host_report = report.hosts.get(name) if report else None
    host_log = job_dir / "logs" / f"{name}.log"
    logs = folders.matching(output / "data" / "logs", "*.log", folders.named_elsewhere)
    ranks = sorted(logs, key=lambda path: in_order(path.stem))
    unreadable = _note_errors(notes)
    _name_unreadable(output, notes)
    _try_open(host_log, unreadable)
    status: HostStatus = "unfinished"
    if host_report is not None and host_report.status == "vanished":
        status = "vanished"
    elif outcome is not None:
        status = outcome.status
    elif failure or folders.exists(output / "success", unreadable):
        status = "failed" if failure else "succeeded"
    elif host_report is not None and host_report.exit_code is not None:
        status = "failed" if host_report.exit_code else "succeeded"
    return HostData(
        name=name,
        output=output,
        status=status,
        exit_code=host_report.exit_code if host_report else outcome.exit_code if outcome else None,
        cause=mask(host_report.cause) if host_report else "",
        outcome=outcome,
        failure=mask(failure),
        logs=(host_log,) if folders.is_file(host_log, unreadable) else tuple(ranks),
    )


def _make_missing_host(name: str, host_report: HostReport, job_dir: Path) -> HostData:
    """Return a host that the platform's report has, and whose folder is gone."""
    status: HostStatus = (
        "vanished" if host_report.status == "vanished" else "failed" if host_report.exit_code else "unfinished"
    )
    host_log = job_dir / "logs" / f"{name}.log"
    return HostData(
        name=name,
        output=job_dir / "hosts" / name / "opt" / "ml" / "output",
        status=status,
        exit_code=host_report.exit_code,
        cause=host_report.cause,
        logs=(host_log,) if folders.is_file(host_log, folders.named_elsewhere) else (),
    )


def _read_outcome(path: Path, notes: list[str]) -> Outcome | None:
    try:
        return from_document(files.read(path), str(path))
    except FileNotFoundError:
        return None
    except (OSError, ContractError) as error:
        notes.append(_describe_unusable(path, error))
        return None


def _name_unreadable(output: Path, notes: list[str]) -> None:
    """Add a note for each file and folder of measurements, traces and logs that cannot be read: its readers pass over
    it."""
    unreadable = _note_errors(notes)
    _try_open(output / "metrics.jsonl", unreadable)
    for name in ("monitor", "profiler", "profiler-output", "system", "data/logs"):
        errors: list[OSError] = []
        for entry in folders.walk(output / name, errors.append):
            _try_open(Path(entry.path), errors.append)
        for error in errors[:MOST_NOTES]:
            unreadable(error)
        if len(errors) > MOST_NOTES:
            notes.append(f"{output / name}: {len(errors) - MOST_NOTES} more files and folders cannot be read.")


def _try_open(path: Path, unreadable: folders.Unreadable) -> None:
    try:
        files.opened(path).close()
    except FileNotFoundError:
        pass  # Gone meanwhile.
    except IsADirectoryError as error:
        if path.suffix in RECORD_SUFFIXES:
            unreadable(error)
    except OSError as error:
        unreadable(error)


def _note_errors(notes: list[str]) -> folders.Unreadable:
    return lambda error: notes.append(_describe_unusable(Path(str(error.filename)), error))


def _read_text(path: Path, notes: list[str]) -> str:
    try:
        return files.read(path).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        notes.append(_describe_unusable(path, error))
        return ""


def _describe_unusable(path: Path, error: OSError | ContractError) -> str:
    if isinstance(error, ContractError):
        return f"{path} is damaged ({error.message}); what it says is missing here."
    return f"{path} cannot be read ({error.strerror}); what it says is missing here."


def _find_host_name(output: Path) -> str:
    """Return the host's name from the files below *output*, "" if none has it."""
    try:
        document = msgspec.json.decode(files.read(output / "monitor" / "monitor.json"))
        if isinstance(document, dict) and isinstance(document.get("host"), str) and document["host"]:
            return str(document["host"])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # Another file may have it.
    try:
        return next((sample.host for sample in read_samples(output / "metrics.jsonl")), "")
    except OSError:
        nodes = debugger_names.files_of(output)
        return next(iter(nodes)) if len(nodes) == 1 else ""


def _names(hosts: Sequence[HostData]) -> set[str]:
    return {host.name for host in hosts}


def _is_running(job_dir: Path, report: JobReport | None, hosts: Sequence[HostData], now_s: float | None) -> bool:
    if report is not None:
        return report.status == "InProgress" and is_locked(job_dir)
    if now_s is None or any(host.status != "unfinished" or has_unreadable_outcome(host) for host in hosts):
        return False
    return max((last_written_s(host.output) for host in hosts), default=0.0) > now_s - QUIET_S


def _decide_status(report: JobReport | None, hosts: Sequence[HostData], runs: bool) -> JobStatus:
    if runs:
        return "running"
    if report is not None and report.status in STATUSES:
        return STATUSES[report.status]
    statuses = {host.status for host in hosts}
    for status in ("failed", "stopped"):
        if status in statuses:
            return status
    return "succeeded" if statuses == {"succeeded"} else "unfinished"


def _settle_status(status: HostStatus, runs: bool) -> HostStatus:
    return "running" if runs and status == "unfinished" else status


def _choose_outcome(report: JobReport | None, hosts: Sequence[HostData]) -> Outcome | None:
    """Return the outcome of the host that failed first: the platform's choice, else the one that blames itself."""
    outcomes = {host.name: host.outcome for host in hosts if host.outcome is not None}
    if report is not None and report.failed_host in outcomes:
        return outcomes[report.failed_host]
    failed = [(name, outcome) for name, outcome in outcomes.items() if outcome.status == "failed"]
    self_blamed = [outcome for name, outcome in failed if outcome.cause_host == name]
    own_faults = [outcome for _, outcome in failed if outcome.exit_code != TEMPORARY_FAILURE]
    stopped = [outcome for outcome in outcomes.values() if outcome.status == "stopped"]
    return next(
        iter((*self_blamed, *own_faults, *(outcome for _, outcome in failed), *stopped, *outcomes.values())), None
    )


def _find_blamed_host(report: JobReport | None, outcome: Outcome | None, status: JobStatus) -> str:
    if status != "failed":
        return ""
    return report.failed_host if report is not None else outcome.cause_host if outcome else ""


def _find_times(report: JobReport | None, hosts: Sequence[HostData]) -> tuple[float | None, float | None]:
    """Return the start and the end as the platform reported them, else as the hosts' files show them."""
    start_s, end_s = span(hosts)
    if report is not None:
        return seconds_of(report.start_time) or start_s, seconds_of(report.end_time) or end_s
    return start_s, end_s


def _find_first(texts: Iterable[str]) -> str:
    return next((text for text in texts if text), "")
