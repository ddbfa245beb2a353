"""Reads the facts of a job of `toolkit run`, running or not: those of SageMaker's DescribeTrainingJob."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit import folders
from toolkit.commands.simulate import runner
from toolkit.commands.simulate.report import last_values, moment, value_text
from toolkit.commands.simulate.runner import JobRunner, RunnerState
from toolkit.errors import ContractError
from toolkit.files import read as read_document
from toolkit.job.report import REPORT, Interruption, JobReport, interruption_text, seconds_of, spot_words, waits_since_s
from toolkit.metrics.file import read as read_samples
from toolkit.metrics.sample import Sample, json_value
from toolkit.records import Record, decode

CONSOLE = "console.log"
RUNNER_DIED = "Interrupted"  # SageMaker's secondary status of a job that lost its machine.


class JobFacts(Record, frozen=True, kw_only=True):
    """A job. Times: ISO 8601, UTC, "" if not known."""

    name: str  # The job's name.
    folder: Path  # The job's folder.
    status: str  # As SageMaker's TrainingJobStatus.
    secondary_status: str  # As SageMaker's SecondaryStatus.
    failure_reason: str = ""  # "" if the job has not failed.
    exit_code: int | None = None  # None while it runs.
    hosts: int = 0  # The number of hosts.
    start_time: str = ""
    end_time: str = ""
    training_s: float = 0.0  # Until now if it runs, until its last output if its runner was killed.
    billable_s: float = 0.0  # As training_s, of all hosts, without waiting for hosts.
    metrics: tuple[Sample, ...] = ()  # The last value of each metric.
    artifacts: dict[str, str] = {}  # The results: file or folder below the job's folder, by name.
    notes: tuple[str, ...] = ()  # As in job.json.
    runner: JobRunner | None = None  # The process that runs or ran it, None if not known.
    managed_spot: bool = False  # The job may be interrupted.
    interruptions: tuple[Interruption, ...] = ()  # The spot interruptions so far.

    @property
    def ended(self) -> bool:
        """True if the job does not run."""
        return self.status in ("Completed", "Failed", "Stopped")


def read_facts(folder: Path, now_s: float, *, metrics: bool = True) -> JobFacts:
    """Return the facts of the job in *folder* at *now_s*, seconds since the epoch. *metrics*: read its metrics, too."""
    state = runner.state(folder)  # Before the report: a runner that ends meanwhile has written it.
    owner = runner.of(folder)
    report = _report(folder)
    if report is None or (report.status == "InProgress" and not report.start_time):
        return _unreported(folder, state, owner)
    last = tuple(last_values(_samples(folder)).values()) if metrics else ()
    hosts = len(report.hosts) or len(folders.matching(folder / "hosts", "*", folders.named_elsewhere))
    if report.status != "InProgress":
        return JobFacts(
            name=report.name,
            folder=folder,
            status=report.status,
            secondary_status=report.secondary_status,
            failure_reason=report.failure_reason,
            exit_code=report.exit_code,
            hosts=hosts,
            start_time=report.start_time,
            end_time=report.end_time,
            training_s=report.training_seconds,
            billable_s=report.billable_seconds,
            metrics=tuple(sample for sample in last if sample.name in report.metrics or not report.metrics),
            artifacts=report.artifacts,
            notes=report.notes,
            runner=owner,
            managed_spot=report.managed_spot,
            interruptions=report.interruptions,
        )
    lives = state != "gone"
    began_s = seconds_of(report.start_time) or now_s
    until_s = now_s if lives else max(_last_output_s(folder), began_s)
    training_s = round(max(0.0, until_s - began_s), 3)
    return JobFacts(
        name=report.name,
        folder=folder,
        status=("Stopping" if report.secondary_status == "Stopping" else "InProgress") if lives else "Failed",
        secondary_status=(report.secondary_status or "Training") if lives else RUNNER_DIED,
        failure_reason="" if lives else _reason_died(owner),
        hosts=hosts,
        start_time=report.start_time,
        end_time="" if lives else moment(until_s),
        training_s=training_s,
        billable_s=round(max(training_s - _waited_s(report, until_s), 0.0) * hosts, 3),
        metrics=last,
        runner=owner,
        managed_spot=report.managed_spot,
        interruptions=report.interruptions,
    )


def _waited_s(report: JobReport, now_s: float) -> float:
    """Return the seconds at *now_s* in which the job waited for new hosts."""
    since_s = waits_since_s(report)
    return report.waited_seconds + (0.0 if since_s is None else max(now_s - since_s, 0.0))


def document(job: JobFacts) -> dict[str, Any]:
    """Return *job* as DescribeTrainingJob's response has it, with keys of our own: JobFolder, ExitCode, Notes."""
    artifacts = {name: str(job.folder / path) for name, path in job.artifacts.items()}
    return {
        "TrainingJobName": job.name,
        "TrainingJobStatus": job.status,
        "SecondaryStatus": job.secondary_status,
        "FailureReason": job.failure_reason,
        "TrainingStartTime": job.start_time,
        "TrainingEndTime": job.end_time,
        "TrainingTimeInSeconds": job.training_s,
        "BillableTimeInSeconds": round(job.billable_s / max(job.hosts, 1), 3),
        "EnableManagedSpotTraining": job.managed_spot,
        "ResourceConfig": {"InstanceCount": job.hosts},
        "ModelArtifacts": {"S3ModelArtifacts": artifacts.pop("model", "")},
        "FinalMetricDataList": [
            {"MetricName": sample.name, "Value": json_value(sample.value), "Timestamp": moment(sample.time_s)}
            for sample in job.metrics
        ],
        "ExitCode": job.exit_code,
        "JobFolder": str(job.folder),
        "Artifacts": artifacts,
        "Notes": list(job.notes),
    }


def text(job: JobFacts) -> str:
    """Return *job* for a terminal."""
    status = job.status if job.secondary_status in ("", job.status) else f"{job.status} ({job.secondary_status})"
    rows = {
        "status": status,
        "exit code": "" if job.exit_code is None else str(job.exit_code),
        "started": job.start_time,
        "ended": job.end_time,
        "training": f"{job.training_s:g} s",
        "billable": f"{job.billable_s:g} s ({job.hosts} {'host' if job.hosts == 1 else 'hosts'})",
        "folder": str(job.folder),
        **{name: str(job.folder / path) for name, path in job.artifacts.items()},
    }
    if not job.ended and job.runner is not None:
        rows["runner"] = f"pid {job.runner.pid} on {job.runner.machine}"
    lines = [job.name, *(f"  {name:<11} {value}" for name, value in rows.items() if value)]
    lines += [f"  {sample.name:<23} {value_text(sample.value)}" for sample in job.metrics]
    lines += [f"  note: {note}" for note in job.notes]
    if job.managed_spot:
        lines += [f"  {interruption_text(interruption, job_ended=job.ended)}" for interruption in job.interruptions]
        lines += [f"  {words}" for words in spot_words(round(job.training_s * max(job.hosts, 1), 3), job.billable_s)]
    if job.failure_reason:
        lines += ["", job.failure_reason]
    return "\n".join(lines)


def table(jobs: tuple[JobFacts, ...], *, relative_to: Path) -> str:
    """Return *jobs* as a table with a head, the folders relative to *relative_to* where they are below it."""
    head = ("NAME", "STATUS", "STARTED (UTC)", "DURATION", "EXIT", "FOLDER")
    rows = [head, *(_row(job, relative_to) for job in jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head) - 1)]
    return "\n".join(
        "  ".join((*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1])) for row in rows
    )


def _row(job: JobFacts, relative_to: Path) -> tuple[str, ...]:
    folder = job.folder.relative_to(relative_to) if job.folder.is_relative_to(relative_to) else job.folder
    status = job.status
    if job.secondary_status == RUNNER_DIED and job.status == "Failed":
        status = "Failed (runner died)"
    elif job.secondary_status == "MaxRuntimeExceeded":
        status = "Stopped (max runtime)"
    elif job.secondary_status == "MaxWaitTimeExceeded":
        status = "Stopped (max wait)"
    elif job.secondary_status == "Interrupted":
        status = f"{job.status} (interrupted)"
    started = job.start_time[:19].replace("T", " ")
    code = "" if job.exit_code is None else str(job.exit_code)
    return job.name, status, started, clock(job.training_s), code, str(folder)


def clock(seconds: float) -> str:
    """Return a duration as 4.2 s, 3:07 or 1:02:07."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"


def _unreported(folder: Path, state: RunnerState, owner: JobRunner | None) -> JobFacts:
    lives = state != "gone"
    return JobFacts(
        name=folder.name,
        folder=folder,
        status="InProgress" if lives else "Failed",
        secondary_status="Starting" if lives else RUNNER_DIED,
        failure_reason="" if lives else _reason_unread(folder),
        runner=owner,
    )


def _reason_unread(folder: Path) -> str:
    try:
        read_document(folder / REPORT)
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"InternalServerError: {folder / REPORT} cannot be read ({error.strerror})"
    return f"ClientError: the job did not start, or {REPORT} is gone or damaged"


def _reason_died(owner: JobRunner | None) -> str:
    who = f"`toolkit run` (pid {owner.pid} on {owner.machine})" if owner is not None else "`toolkit run`"
    return f"InternalServerError: {who} ended before the job did: it was killed, or the machine was"


def _report(folder: Path) -> JobReport | None:
    try:
        return decode(read_document(folder / REPORT), JobReport, str(folder / REPORT))
    except (OSError, ContractError):
        return None


def _samples(folder: Path) -> Iterator[Sample]:
    """Yield the job's samples: of all hosts by time, or, before the job has ended, of one host after another."""
    merged = folder / "metrics.jsonl"
    hosts = folders.matching(folder / "hosts", "*", folders.named_elsewhere)
    of_hosts = [host / "opt" / "ml" / "output" / "metrics.jsonl" for host in hosts]
    files = [merged] if folders.is_file(merged, folders.as_absent) else of_hosts
    for path in files:
        try:
            yield from read_samples(path)
        except OSError:
            continue  # This host has captured nothing.


def _last_output_s(folder: Path) -> float:
    """Return when a line of the job was last written, seconds since the epoch, 0 if there is none."""
    times_s = [0.0]
    for path in ((folder / CONSOLE), *folders.matching(folder / "logs", "*.log", folders.named_elsewhere)):
        try:
            times_s.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times_s)
