"""What is known of a job and its hosts after their folders were read."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from toolkit.job.outcome import Outcome
from toolkit.job.restart import Restart
from toolkit.masking.text import mask as mask_text
from toolkit.records import Record

# "unfinished": it left no outcome and no longer writes; the container, the machine or `toolkit run` was killed.
JobStatus = Literal["succeeded", "failed", "stopped", "running", "unfinished"]
HostStatus = Literal["succeeded", "failed", "stopped", "running", "unfinished", "vanished"]


class HostData(Record, frozen=True, kw_only=True):
    """One host of a job. `output`: its output folder (/opt/ml/output).

    `exit_code`: of its `train`. `cause`: what happened on this host, which need not be the cause of the job's failure.
    `logs`: what it printed: the whole host's log, or one file for each rank; empty: none was kept.
    """

    name: str
    output: Path
    status: HostStatus
    exit_code: int | None = None
    cause: str = ""
    outcome: Outcome | None = None
    failure: str = ""
    logs: tuple[Path, ...] = ()

    @property
    def metrics(self) -> Path:
        """The file of its captured metrics, which need not exist."""
        return self.output / "metrics.jsonl"

    @property
    def monitor(self) -> Path:
        """The folder of what the monitor measured, which need not exist."""
        return self.output / "monitor"

    @property
    def traces(self) -> Path:
        """The folder of profiler traces, which need not exist."""
        return self.output / "profiler" / "framework"


class JobData(Record, frozen=True, kw_only=True):
    """A job, as its folder has it. Times: seconds since the epoch; None: not known.

    `outcome`: the job's, from the host of the cause. `end_s`: None also while the job runs. `billable_s`: hosts times
    seconds, as the platform reported them; None: no such report, `billable` then derives it. `metrics`: the last value
    of each, as the platform reported it. `notes`: one sentence for each file that could not be used, and the
    platform's own notes. `mask`: masks the job's secrets in a text; apply it to all that scripts have said.
    """

    name: str
    folder: Path
    status: JobStatus
    hosts: tuple[HostData, ...]
    exit_code: int | None = None
    reason: str = ""
    failed_host: str = ""
    stopped_by: str = ""
    outcome: Outcome | None = None
    start_s: float | None = None
    end_s: float | None = None
    billable_s: float | None = None
    notes: tuple[str, ...] = ()
    mask: Callable[[str], str] = mask_text

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """The restarts of the ranks, with the failure before each."""
        return self.outcome.restarts if self.outcome else ()

    def billable(self, now_s: float) -> float | None:
        """Return the seconds that are paid for, all hosts together; *now_s* is the end of a job that still runs."""
        if self.billable_s is not None:
            return self.billable_s
        end_s = now_s if self.status == "running" else self.end_s
        if self.start_s is None or end_s is None:
            return None
        return max(end_s - self.start_s, 0.0) * len(self.hosts)
