"""Spot interruptions: what an interrupted start of a job leaves, and the seconds of all its starts.

JOBDIR/interrupted/1/    the first start, once another follows: a job folder itself, which `toolkit report` reads
    job.json             how it ended
    logs/  hosts/        as in JOBDIR, without what the platform gave the hosts: channels, code, packages

The next start gets new folders, as on new machines. Only the folder of --checkpoints outlives a start.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from stat import S_ISREG

from msgspec.structs import replace

from toolkit.commands.jobs.folders import INTERRUPTED
from toolkit.commands.simulate.collect import below, write_json
from toolkit.commands.simulate.report import moment
from toolkit.commands.simulate.stage import StagedHost, remove
from toolkit.exit_codes import STOPPED
from toolkit.job.file.job_file import JobFile
from toolkit.job.report import REPORT, HostReport, Interruption, JobReport

CHECKPOINT_URI = "TOOLKIT_CHECKPOINT_URI"
PLATFORM_FOLDERS = (
    "python",
    "channels",
    "opt/ml/input/data",
    "opt/ml/code",
    "opt/ml/checkpoints",
)  # Nothing of it is a result.


class JobStarts:
    """The starts of one job and their times. *started_s*: since the epoch, *began_s*: monotonic, of the first start.

    Times of day are derived from monotonic ones: the wall clock may be set while the job runs.
    """

    def __init__(self, job_file: JobFile, *, started_s: float, began_s: float) -> None:
        self.interruptions: tuple[Interruption, ...] = ()
        self.trained_s = 0.0  # Seconds for which hosts ran, in the starts that have ended.
        self.waited_s = 0.0  # Seconds between the starts.
        self.first_s = began_s
        self.began_s = began_s  # Of the current start.
        self.ended_s = began_s  # Of the last start that ended.
        self._job_file = job_file
        self._ahead_s = started_s - began_s

    def passed_s(self, now_s: float) -> float:
        """Return the seconds since the job began."""
        return now_s - self.first_s

    def moment(self, at_s: float) -> str:
        """Return the monotonic time *at_s* as a time of day."""
        return moment(at_s + self._ahead_s)

    def ended(self, now_s: float) -> None:
        """Note that the hosts of the current start have ended."""
        self.ended_s = now_s
        self.trained_s += now_s - self.began_s

    def interrupted(self, stopped_s: float, hosts: Mapping[str, HostReport]) -> None:
        """Note that the start that has ended was told to stop at *stopped_s*, and how its *hosts* ended."""
        changed_s = newest_checkpoint(self._job_file.checkpoints, since_s=self.began_s + self._ahead_s)
        interruption = Interruption(
            time=self.moment(stopped_s),
            end_time=self.moment(self.ended_s),
            training_seconds=round(self.ended_s - self.began_s, 3),
            checkpoint_time="" if changed_s is None else moment(changed_s),
            hosts=dict(hosts),
        )
        self.interruptions = (*self.interruptions, interruption)

    def put_aside(self) -> None:
        """Move what the interrupted start left to its own job folder.

        Raises:
            OSError: it cannot be moved.
        """
        last = self.interruptions[-1]
        name = f"{INTERRUPTED}/{len(self.interruptions)}"
        job_dir = self._job_file.run.job_dir
        folder = job_dir / name
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir()
        for part in ("logs", "hosts"):
            (job_dir / part).rename(folder / part)
        for host in self._job_file.hosts:
            for folder_name in PLATFORM_FOLDERS:
                remove(folder / "hosts" / host / folder_name)
        report = JobReport(
            name=self._job_file.name,
            status="Stopped",
            secondary_status="Interrupted",
            exit_code=STOPPED,
            hosts=last.hosts,
            start_time=self.moment(self.began_s),
            end_time=last.end_time,
            training_seconds=last.training_seconds,
            billable_seconds=round(last.training_seconds * len(last.hosts), 3),
            artifacts={"logs": "logs/"},
            managed_spot=True,
            checkpoint_time=last.checkpoint_time,
        )
        write_json(folder / REPORT, report)
        self.interruptions = (*self.interruptions[:-1], replace(last, folder=name))

    def resumed(self, now_s: float) -> None:
        """Note that the next start begins."""
        *earlier, last = self.interruptions
        self.interruptions = (*earlier, replace(last, resumed_time=self.moment(now_s)))
        self.waited(now_s)
        self.began_s = now_s

    def waited(self, now_s: float) -> None:
        """Note that the wait for new hosts is over, because the next start begins or the job ends."""
        self.waited_s += now_s - self.ended_s

    def missed(self) -> tuple[str, ...]:
        """Return a note for the interruptions that did not happen."""
        interrupts = self._job_file.run.interrupts
        late = ", ".join(f"{interrupt.after_s:g} s" for interrupt in interrupts if interrupt.after_s > self.trained_s)
        notes = [f"not interrupted at {late}: the job ended after {self.trained_s:.1f} s of training"] if late else []
        early = sum(interrupt.after_s <= self.trained_s for interrupt in interrupts) - len(self.interruptions)
        if early > 0:
            notes.append(
                f"no start followed {early} of the interruptions: another one, or a limit, was ending the hosts already"
            )
        return tuple(notes)


def outlives(job_file: JobFile, staged: Sequence[StagedHost]) -> bool:
    """True if the checkpoints of a start are there for the next one: in the person's folder, or in storage."""
    environ = job_file.environment if job_file.run.backend == "docker" else staged[0].environ
    return job_file.checkpoints is not None or bool(environ.get(CHECKPOINT_URI))


def newest_checkpoint(folder: Path | None, *, since_s: float) -> float | None:
    """Return when the newest file of the checkpoints in *folder* was written, if that was after *since_s*. Times:
    seconds since the epoch.

    What `train` has brought to storage is not looked at: a host's own files may be newer than that.
    """
    newest_s = None
    for path in below(folder, lambda _: None) if folder is not None else ():  # An unreadable part has no known time.
        try:
            status = path.stat()
        except OSError:
            continue  # Another job may share the folder.
        if S_ISREG(status.st_mode) and status.st_mtime >= since_s:
            newest_s = max(newest_s or 0.0, status.st_mtime)
    return newest_s
