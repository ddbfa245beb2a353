"""The values that a job and its hosts have after their folders were read."""

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
    """One host of a job."""

    name: str
    """Its name in the job."""
    output: Path
    """Its output folder (/opt/ml/output)."""
    status: HostStatus
    """The way in which it ended."""
    exit_code: int | None = None
    """The exit code of its `train`."""
    cause: str = ""
    """The event on this host, which need not be the cause of the job's failure."""
    outcome: Outcome | None = None
    """Its outcome.json."""
    failure: str = ""
    """The text of its file `failure`, masked."""
    logs: tuple[Path, ...] = ()
    """Its output: one file for the whole host, or one for each rank; empty: none was kept."""

    @property
    def outcome_file(self) -> Path:
        """The file of its outcome, which `train` writes at its end."""
        return self.output / "outcome.json"

    @property
    def manifest(self) -> Path:
        """The file that says what ran, which need not exist."""
        return self.output / "manifest.json"

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
    """A job, as its folder has it. Times are seconds since the epoch. None: not known."""

    name: str
    """Its name; that of its folder, if no report of the platform has one."""
    folder: Path
    """Its folder."""
    status: JobStatus
    """The way in which it ended, or that it runs."""
    hosts: tuple[HostData, ...]
    """Its hosts; after a spot interruption those of the last start."""
    exit_code: int | None = None
    """The exit code of the job."""
    reason: str = ""
    """The platform's reason of the failure, or the first host's file `failure`."""
    failed_host: str = ""
    """The host of the cause of the failure."""
    stopped_by: str = ""
    """The platform's secondary status of a job that it stopped."""
    outcome: Outcome | None = None
    """The outcome of the host of the cause."""
    start_s: float | None = None
    """When it began."""
    end_s: float | None = None
    """When it ended; None also while it runs."""
    billable_s: float | None = None
    """Hosts times seconds, as the platform reported them; None: no such report, `billable` derives them."""
    notes: tuple[str, ...] = ()
    """One sentence for each file that could not be used, and the platform's own notes."""
    managed_spot: bool = False
    """True: spot interruptions were asked for."""
    interruptions: tuple[Interruption, ...] = ()
    """The spot interruptions, oldest first."""
    earlier: tuple["JobData", ...] = ()
    """The starts that interruptions ended, each as a job itself."""
    checkpoint_s: float | None = None
    """The last change of the checkpoints of a start that an interruption ended."""
    waited_s: float = 0.0
    """Seconds between the starts."""
    waits_since_s: float | None = None
    """Since when the job waits for its next start."""
    max_run_s: float | None = None
    """The seconds of training after which the platform stops it; None: it has no such limit."""
    mask: Callable[[str], str] = mask_text
    """Masks the job's secrets in a text; apply it to all that scripts have printed."""

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """The restarts of the ranks, with the failure before each."""
        return self.outcome.restarts if self.outcome else ()

    def trained_s(self, now_s: float) -> float | None:
        """Return the seconds for which its hosts have run at *now_s*, without those between the starts; None: when it
        began is not known."""
        if self.start_s is None:
            return None
        waits_s = 0.0 if self.waits_since_s is None else max(now_s - self.waits_since_s, 0.0)
        return max(now_s - self.start_s - self.waited_s - waits_s, 0.0)

    def limit_left_s(self, now_s: float) -> float | None:
        """Return the seconds until max-run stops it, None if it has no such limit."""
        trained_s = self.trained_s(now_s)
        return None if self.max_run_s is None or trained_s is None else max(self.max_run_s - trained_s, 0.0)

    def billable(self, now_s: float) -> float | None:
        """Return the seconds that are paid for, all hosts together; *now_s* is the end of a job that still runs."""
        if self.billable_s is not None:
            return self.billable_s
        end_s = now_s if self.status == "running" else self.end_s
        trained_s = None if end_s is None else self.trained_s(end_s)
        return None if trained_s is None else trained_s * len(self.hosts)

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
