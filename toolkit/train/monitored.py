"""`train`'s side of the system monitor: its configuration, the ranks that it measures, and what it found."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from toolkit import files
from toolkit.folders import as_absent, exists
from toolkit.job.exports import LATEST
from toolkit.job.job import Job
from toolkit.job.monitor import Monitor
from toolkit.job.monitor_config import NAME, RANKS, MonitorConfig
from toolkit.log import Log
from toolkit.own_module import own_module
from toolkit.records import encode
from toolkit.series import findings
from toolkit.series.start_up import HostStart
from toolkit.train.launchers.environment import on_one_machine
from toolkit.train.supervise.stop_request import STATUS_FOLDER

EVERY_S = 1.0


def write_config(job: Job, monitor: Monitor, run_folder: Path, attempt: int) -> Path:
    """Write what the monitor of this attempt needs to know; return the file.

    Raises:
        OSError: it cannot be written.
    """
    has_gpus = job.machine.accelerator == "nvidia" or exists("/dev/nvidiactl", as_absent)
    config = MonitorConfig(
        monitor=monitor,
        host=job.cluster.current,
        attempt=attempt,
        output=job.folders.output,
        ranks=run_folder / RANKS,
        status=run_folder / STATUS_FOLDER,
        cores=job.machine.cpus,
        has_neighbours=on_one_machine(job),
        metrics_bytes=_size(job.folders.output / "metrics.jsonl"),
        start=HostStart(train_s=_started_s(os.getpid()), preparations=job.preparations),
        compares=_compares(job),
        latest=run_folder / LATEST if job.exports.names() else None,
        gpus=own_module(job.interpreter, "toolkit.monitor.gpu.child") if has_gpus else (),
    )
    path = run_folder / NAME
    path.touch(0o600)
    path.write_bytes(encode(config))
    return path


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def process_started(pid: int) -> int:
    """Return when process *pid* started, in ticks since the boot (proc_pid_stat(5)); 0: it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        return int(text[text.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _started_s(pid: int) -> float:
    """Return when process *pid* started, in seconds since the epoch; 0: it cannot be read."""
    ticks = process_started(pid)
    if not ticks:
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _compares(job: Job) -> Literal["host", "job", "none"]:
    if len(job.cluster.hosts) == 1 or job.settings.link != "on":
        return "host"
    return "job" if job.cluster.is_leader else "none"


class Monitored:
    """Lists ranks for the monitor as they start, and logs what it finds. An error here never disturbs the job.

    *on_finding*: called with each finding whose action is "notify".
    `stop_rule`: the first rule with the action "stop" that found something, "" if none did.
    """

    def __init__(
        self, job: Job, run_folder: Path, log: Log, on_finding: Callable[[findings.Finding], None] = lambda _: None
    ) -> None:
        self._log = log
        self._on_finding = on_finding
        self._ranks = run_folder / RANKS
        self._findings = job.folders.output / "monitor" / findings.NAME
        self._looked_s = 0.0
        self.stop_rule = ""
        try:
            self._read_bytes = self._findings.stat().st_size  # Of an earlier run.
        except OSError:
            self._read_bytes = 0

    def begin_attempt(self) -> None:
        """Begin another attempt: its monitor must not measure the ranks of the last one, whose findings concern it no
        more: a rule that found something as those ended does not stop it."""
        self.read_last_findings()
        self.stop_rule = ""
        try:
            self._ranks.unlink(missing_ok=True)
        except OSError as error:
            self._log.warning(f"{self._ranks}: {error.strerror}")

    def note_rank(self, rank: int, local_rank: int | None, pid: int) -> None:
        """List a rank that runs as *pid*."""
        try:
            with self._ranks.open("ab", buffering=0) as file:
                file.write(f"{rank} {-1 if local_rank is None else local_rank} {pid} {process_started(pid)}\n".encode())
        except OSError:
            pass  # A full disk: the monitor measures the host without this rank.

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until `read_findings` is due."""
        return max(self._looked_s + EVERY_S - now_s, 0.0)

    def read_findings(self, now_s: float) -> None:
        """Log what the monitor has found since the last look, a line each, if a look is due."""
        if self.due_in_s(now_s) > 0:
            return
        self._looked_s = now_s
        self.read_last_findings()

    def read_last_findings(self) -> None:
        """Log what the monitor has found since the last look."""
        try:
            if self._findings.stat().st_size <= self._read_bytes:
                return
            with files.opened(self._findings) as file:
                file.seek(self._read_bytes)
                text = file.read()
        except OSError:
            return  # It has found nothing yet.
        lines = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(lines)
        for finding in findings.decoded(lines):
            if finding.action != "record":
                self._log.warning(f"finding {finding.rule}: {finding.text}")
            if finding.action == "notify":
                self._on_finding(finding)
            if finding.action == "stop":
                self.stop_rule = self.stop_rule or finding.rule
