"""job.json: what the simulated platform reports of a job. `toolkit run` writes it, `toolkit report` reads it."""

from datetime import datetime
from typing import Literal

from toolkit.records import Record

REPORT = "job.json"


class HostReport(Record, frozen=True, kw_only=True):
    """The end of one host. `exit_code`: of its `train` (128 + number if a signal killed it). `cause`: what happened on
    this host, which need not be the cause of the job's failure."""

    exit_code: int | None
    status: str = ""
    cause: str = ""


class Interruption(Record, frozen=True, kw_only=True):
    """A spot interruption: the platform took all hosts, to start the job again on new ones. Times are UTC."""

    time: str
    """The time of SIGTERM."""
    end_time: str
    """The end of the last host."""
    resumed_time: str = ""
    """The next start; "" if there was none."""
    training_seconds: float = 0.0
    """Seconds for which the hosts of the interrupted start ran."""
    checkpoint_time: str = ""
    """The last change that the start made in the folder of --checkpoints; "" if it made none."""
    hosts: dict[str, HostReport] = {}
    """The end of each host."""
    folder: str = ""
    """The folder of the start's hosts and logs, a job folder itself, relative to the job's; "" if no start followed."""


class JobReport(Record, frozen=True, kw_only=True):
    """The content of job.json. Times are UTC."""

    name: str
    status: Literal["InProgress", "Completed", "Failed", "Stopped"]
    secondary_status: str = ""
    failure_reason: str = ""
    failed_host: str = ""
    """The host whose failure is the cause."""
    exit_code: int | None = None
    hosts: dict[str, HostReport] = {}
    """The end of each host."""
    start_time: str = ""
    end_time: str = ""
    training_seconds: float = 0.0
    """Seconds from the first start to the end."""
    billable_seconds: float = 0.0
    """Hosts x the seconds for which they ran, which is `training_seconds` without `waited_seconds`."""
    metrics: dict[str, float | str] = {}
    """The last value of each metric."""
    misread: tuple[str, ...] = ()
    """The metrics whose regex reads some numbers wrong."""
    artifacts: dict[str, str] = {}
    """Paths relative to the job folder."""
    notes: tuple[str, ...] = ()
    max_run_seconds: float | None = None
    """The seconds of training after which the job is stopped; None: it has no such limit."""
    managed_spot: bool = False
    """Interruptions were asked for."""
    waited_seconds: float = 0.0
    """Seconds between an interruption and the next start."""
    interruptions: tuple[Interruption, ...] = ()
    checkpoint_time: str = ""
    """Of the job folder of an interrupted start alone, as in Interruption."""


def seconds_of(time: str) -> float | None:
    """Return a time of job.json in seconds since the epoch, None if it is none."""
    try:
        return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def waits_since_s(report: JobReport) -> float | None:
    """Return since when the job waits for new hosts, None if it does not."""
    if report.secondary_status != "Interrupted" or not report.interruptions or report.interruptions[-1].resumed_time:
        return None
    return seconds_of(report.interruptions[-1].end_time)


def interruption_text(interruption: Interruption, *, job_ended: bool = True) -> str:
    """Return what *interruption* meant in a sentence without its end. *job_ended*: the whole job has ended."""
    ended_s, saved_s, resumed_s = map(
        seconds_of, (interruption.end_time, interruption.checkpoint_time, interruption.resumed_time)
    )
    text = f"interrupted after {interruption.training_seconds:g} s of training"
    if saved_s is None or ended_s is None:
        text += ", no checkpoint seen"
    else:
        text += f", its last checkpoint {max(ended_s - saved_s, 0.0):.1f} s old"
    if resumed_s is None or ended_s is None:
        return f"{text}; {'not started again' if job_ended else 'it waits for new hosts'}"
    return f"{text}; started again after {max(resumed_s - ended_s, 0.0):.1f} s"


def spot_words(training_s: float, billable_s: float) -> tuple[str, ...]:
    """Return the seconds of all hosts and what the interruptions saved, in the words of SageMaker's SDK."""
    lines = (f"Training seconds: {training_s:g}", f"Billable seconds: {billable_s:g}")
    if training_s <= 0:
        return lines
    return (*lines, f"Managed Spot Training savings: {(1 - billable_s / training_s) * 100:.1f}%")
