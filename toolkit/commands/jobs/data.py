"""What is known of a job and its hosts after their folders were read."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from toolkit import folders
from toolkit.job.outcome import Outcome
from toolkit.job.report import Interruption, seconds_of
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
    def is_monitored(self) -> bool:
        """True if the monitor measured it. `notes` of the job name a folder that cannot be looked at."""
        return folders.is_dir(self.monitor, folders.named_elsewhere)

    @property
    def is_measured(self) -> bool:
        """True if it has captured metrics, or was monitored."""
        return self.is_monitored or folders.is_file(self.metrics, folders.named_elsewhere)

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

    `managed_spot`: spot interruptions were asked for. `earlier`: the starts that they ended, each as a job itself, with
    `checkpoint_s`, the last change of its checkpoints; hosts, outcome and logs are those of the last start. `waited_s`:
    between the starts; `waits_since_s`: since when the job waits for its next start.
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
    managed_spot: bool = False
    interruptions: tuple[Interruption, ...] = ()
    earlier: tuple["JobData", ...] = ()
    checkpoint_s: float | None = None
    waited_s: float = 0.0
    waits_since_s: float | None = None
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
        waited_s = self.waited_s + (0.0 if self.waits_since_s is None else max(end_s - self.waits_since_s, 0.0))
        return max(end_s - self.start_s - waited_s, 0.0) * len(self.hosts)

    @property
    def was_interrupted(self) -> bool:
        """True for a start of a job that a spot interruption ended."""
        return self.status == "stopped" and self.stopped_by == "Interrupted"

    def starts(self) -> tuple["JobData", ...]:
        """Return each start of the job as a job that began with it: itself, unless it was interrupted."""
        if not self.interruptions:
            return (self,)
        last = self.interruptions[-1]
        times = (seconds_of(interruption.resumed_time) for interruption in self.interruptions)
        begun_s = max((at_s for at_s in times if at_s is not None), default=self.start_s)
        billed_s = sum(start.billable_s or 0.0 for start in self.earlier)
        own_s = None if self.billable_s is None else max(self.billable_s - billed_s, 0.0)
        last_start = replace(self, start_s=begun_s, billable_s=own_s, interruptions=(), earlier=(), waited_s=0.0)
        if not last.resumed_time:  # It was the last start, or the next one has not begun.
            last_start = replace(
                last_start,
                status="stopped",
                stopped_by="Interrupted",
                end_s=seconds_of(last.end_time),
                checkpoint_s=seconds_of(last.checkpoint_time),
                waits_since_s=None,
            )
        return (*self.earlier, last_start)
