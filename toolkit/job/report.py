"""job.json: what the simulated platform reports of a job. `toolkit run` writes it, `toolkit report` reads it."""

from typing import Literal

from toolkit.records import Record

REPORT = "job.json"


class HostReport(Record, frozen=True, kw_only=True):
    """How one host ended. `exit_code`: of its `train` (128 + number if a signal killed it). `cause`: what happened on
    this host, which need not be the cause of the job's failure."""

    exit_code: int | None
    status: str = ""
    cause: str = ""


class JobReport(Record, frozen=True, kw_only=True):
    """The content of job.json. Times are UTC; `billable_seconds` is hosts x `training_seconds`."""

    name: str
    status: Literal["InProgress", "Completed", "Failed", "Stopped"]
    secondary_status: str = ""
    failure_reason: str = ""
    failed_host: str = ""
    exit_code: int | None = None
    hosts: dict[str, HostReport] = {}
    start_time: str = ""
    end_time: str = ""
    training_seconds: float = 0.0
    billable_seconds: float = 0.0
    metrics: dict[str, float | str] = {}
    artifacts: dict[str, str] = {}
    notes: tuple[str, ...] = ()
