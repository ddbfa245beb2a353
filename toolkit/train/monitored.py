"""`train`'s side of the system monitor: its configuration, the ranks that it measures, and what it found."""

from pathlib import Path
from typing import Literal

from toolkit import files
from toolkit.folders import as_absent, exists
from toolkit.job.exports import LATEST
from toolkit.job.job import Job
from toolkit.job.monitor import Monitor
from toolkit.job.monitor_config import NAME, RANKS, MonitorConfig
from toolkit.log import Log
from toolkit.records import encode
from toolkit.series import findings
from toolkit.train.own_module import own_module
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
        metrics_bytes=_size(job.folders.output / "metrics.jsonl"),
        compares=_compares(job),
        latest=run_folder / LATEST if job.exports.names(leader=job.cluster.is_leader) else None,
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


def _compares(job: Job) -> Literal["host", "job", "none"]:
    if len(job.cluster.hosts) == 1 or job.settings.link != "on":
        return "host"
    return "job" if job.cluster.is_leader else "none"


class Monitored:
    """Lists ranks for the monitor as they start, and logs what it finds. An error here never disturbs the job.

    `stop_rule`: the first rule with the action "stop" that found something, "" if none did.
    """

    def __init__(self, job: Job, run_folder: Path, log: Log) -> None:
        self._log = log
        self._ranks = run_folder / RANKS
        self._findings = job.folders.output / "monitor" / findings.NAME
        self._looked_s = 0.0
        self.stop_rule = ""
        try:
            self._read_bytes = self._findings.stat().st_size  # Of an earlier run.
        except OSError:
            self._read_bytes = 0

    def again(self) -> None:
        """Begin another attempt: its monitor must not measure the ranks of the last one, whose findings concern it no
        more: a rule that found something as those ended does not stop it."""
        self.last_look()
        self.stop_rule = ""
        try:
            self._ranks.unlink(missing_ok=True)
        except OSError as error:
            self._log.warning(f"{self._ranks}: {error.strerror}")

    def started(self, rank: int, local_rank: int | None, pid: int) -> None:
        """List a rank that runs as *pid*."""
        try:
            with self._ranks.open("ab", buffering=0) as file:
                file.write(f"{rank} {-1 if local_rank is None else local_rank} {pid} {process_started(pid)}\n".encode())
        except OSError:
            pass  # A full disk: the monitor measures the host without this rank.

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until `look` is due."""
        return max(self._looked_s + EVERY_S - now_s, 0.0)

    def look(self, now_s: float) -> None:
        """Log what the monitor has found since the last look, a line each, if a look is due."""
        if self.due_in_s(now_s) > 0:
            return
        self._looked_s = now_s
        self.last_look()

    def last_look(self) -> None:
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
            if finding.action == "stop":
                self.stop_rule = self.stop_rule or finding.rule
