"""Holds the job and its files for the sections; each file is opened once, and only if a section asks for it."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import folders
from toolkit.commands.jobs.data import HostData, JobData
from toolkit.commands.jobs.logs import tail
from toolkit.commands.jobs.records import samples
from toolkit.commands.report.sections import diagnosed, traced
from toolkit.commands.report.sections.traced import TracedJob
from toolkit.metrics.sample import Sample
from toolkit.series.arrays import has_numpy
from toolkit.series.finding import Finding

if TYPE_CHECKING:
    from toolkit.series.sample_reader import Samples
    from toolkit.series.step_records import StepTable

NO_NUMPY = (
    "The measurements of this job cannot be read without numpy. Install it: "
    "pip install 'container-training-toolkit[report]'."
)
NO_MONITOR = (
    "Nothing was measured: the system monitor was off, or the job ended before its first sample. `toolkit run` has it "
    "on; elsewhere set TOOLKIT_MONITOR=1 or give the job a profilerconfig.json (docs/monitor.md)."
)

UNREADABLE = (
    "The monitor's files hold nothing that can be read: the job ended before its first sample, or they are damaged,"
    " which the notes of the job then say."
)


class Material:
    """A job and its open files. *now_s*: the time, seconds since the epoch. *price*: of one host for an hour."""

    def __init__(self, job: JobData, *, now_s: float, price: float | None = None) -> None:
        self.job = job
        self.now_s = now_s
        self.price = price

    @property
    def start_s(self) -> float | None:
        """The start of the job."""
        return self.job.start_s

    @property
    def end_s(self) -> float | None:
        """The end of the job; the time *now_s* if it still runs."""
        return self.now_s if self.job.status == "running" else self.job.end_s

    @property
    def failed_s(self) -> float | None:
        """The time of the first failure, None if nothing failed or no time was recorded."""
        outcome = self.job.outcome
        if outcome is None or outcome.status != "failed":
            return None
        return outcome.cause.failed_ns / 1e9 if outcome.cause.failed_ns else None

    @property
    def blamed(self) -> HostData | None:
        """The host of the cause, None if there is no failure or no single host."""
        return next((host for host in self.job.hosts if host.name == self.job.failed_host), None)

    @cached_property
    def metrics(self) -> dict[str, list[Sample]]:
        """All captured values by metric, by time."""
        by_name: dict[str, list[Sample]] = {}
        for sample in samples(self.job.folder):
            by_name.setdefault(sample.name, []).append(sample)
        return by_name

    @cached_property
    def samples(self) -> "dict[str, Samples]":
        """The samples of each host that has any, by the host's name."""
        if not self._has_numpy:
            return {}
        from toolkit.series import measured

        by_host = {host.name: measured.of_host(host.monitor, host.name) for host in self.job.hosts}
        return {name: samples for name, samples in by_host.items() if samples.span() is not None}

    @cached_property
    def steps(self) -> "dict[str, StepTable]":
        """The steps of each host that has any, by the host's name."""
        if not self._has_numpy:
            return {}
        from toolkit.series import step_records as files

        by_host = {host.name: files.read(host.monitor / "steps") for host in self.job.hosts}
        return {name: table for name, table in by_host.items() if len(table)}

    @cached_property
    def ranks(self) -> "dict[int, tuple[str, StepTable]]":
        """The host and the steps of each rank that has any, by the rank."""
        return {rank: (host, table.of(rank)) for host, table in self.steps.items() for rank in table.ranks}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings by time; while the job runs, the monitor's alone."""
        return self.diagnosis.findings

    @cached_property
    def diagnosis(self) -> diagnosed.DiagnosedJob:
        """The findings and the rules that could not judge; while the job runs, the monitor's findings alone."""
        if self.job.status == "running" or not self._has_numpy:
            return diagnosed.DiagnosedJob(findings=diagnosed.read_live_findings(self.job))
        return diagnosed.diagnose_job(self.job)

    @property
    def why_unmeasured(self) -> str:
        """A sentence on why there are no samples or steps, and how to get them."""
        if not self._has_numpy and any(host.is_monitored for host in self.job.hosts):
            return NO_NUMPY
        kept = (host.monitor / kind for host in self.job.hosts for kind in ("samples", "steps"))
        if any(folders.matching(folder, "*", folders.named_elsewhere) for folder in kept):
            return UNREADABLE
        return NO_MONITOR

    @cached_property
    def _has_numpy(self) -> bool:
        return has_numpy()

    @cached_property
    def traced(self) -> TracedJob:
        """The traces of the profiler."""
        return traced.read_traces(self.job)

    def log_file(self, host: HostData) -> Path | None:
        """Return the file of what *host* printed; of rank files, that of the rank of the cause or of the first."""
        rank = self.job.outcome.cause.rank if self.job.outcome else None
        rank_files = (path for path in host.logs if rank is not None and path.stem.endswith(f"-rank-{rank}"))
        return next(rank_files, host.logs[0] if host.logs else None)

    def log_of(self, host: HostData, lines: int) -> tuple[str, ...]:
        """Return the last *lines* lines of that file, masked."""
        path = self.log_file(host)
        if path is None:
            return ()
        try:
            return tail(path, lines, self.job.mask)
        except OSError as error:
            return (f"({path.name} cannot be read: {error.strerror})",)
