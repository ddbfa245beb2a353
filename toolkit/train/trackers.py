"""`train`'s side of the exporters: their configuration, and the last processes, which send trackers the job's end.

The exporters of an attempt end with its ranks. What they have not sent by then, the next attempt's send, and after the
last attempt a process for each tracker, which also sends how the job ended. A server that does not answer costs the
job's end LAST_S and a line, and never changes how the job ended.
"""

import os
import select
import signal
import subprocess
import time
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.job.exports import LAST_NAME, LATEST, NAME, ExportsConfig
from toolkit.job.job import Job
from toolkit.job.outcome import Outcome, dated
from toolkit.log import Log
from toolkit.own_module import own_module
from toolkit.records import decode, encode
from toolkit.train.fit_environment import MARKER
from toolkit.train.platforms.outcome_files import masked
from toolkit.train.supervise.supervisor import Supervisor
from toolkit.train.transfers import REPORT_S

# The most by which trackers delay the end of a job, and that of one that was stopped: its platform kills soon.
LAST_S = 20.0
STOPPED_S = 5.0
# From SIGTERM, at which a process says what did not arrive, to SIGKILL.
WORD_S = 1.0
OUTCOME_NAME = "exports-outcome.json"


def write_config(job: Job, run_folder: Path, attempt: int, outcome: Path | None = None) -> Path:
    """Write what the exporters of *attempt* need to know; return the file. *outcome*: for the last processes.

    Raises:
        OSError: it cannot be written.
    """
    path = run_folder / (NAME if outcome is None else LAST_NAME)
    metrics = job.folders.output / "metrics.jsonl"
    config = ExportsConfig(
        exports=job.exports,
        job=job.spec.name,
        host=job.cluster.current,
        is_leader=job.cluster.is_leader,
        hosts=len(job.cluster.hosts),  # Also those outside of the distribution, or of a job without one.
        has_job_ranks=job.spec.strategy.name != "script",
        run=job.exports.run or job.spec.name or _nameless(job, run_folder),
        attempt=attempt,
        metrics=metrics,
        output=job.folders.output,
        state=run_folder,
        latest=run_folder / LATEST if job.monitor is not None else None,
        skip_bytes=_skip_bytes(run_folder, metrics),
        outcome=outcome,
    )
    path.touch(0o600)  # A URI may hold a password.
    path.write_bytes(encode(config))
    return path


def _nameless(job: Job, run_folder: Path) -> str:
    """Return an ID for the run of a job without a name: another each time, on several hosts that of the hosts."""
    return run_folder.name if len(job.cluster.hosts) == 1 else "-".join(job.cluster.hosts)


def _skip_bytes(run_folder: Path, metrics: Path) -> int:
    """Return the length that the file of *metrics* had before the first attempt of this run."""
    earlier = run_folder / NAME
    try:
        return decode(earlier.read_bytes(), ExportsConfig, str(earlier)).skip_bytes
    except (OSError, ToolkitError):
        pass  # This is the first attempt.
    try:
        return metrics.stat().st_size
    except OSError:
        return 0


def finish(job: Job, outcome: Outcome, attempt: int, supervisor: Supervisor, log: Log) -> None:
    """Send each tracker of *job* what is left, and *outcome*; wait until that is done, but not for long."""
    folder = supervisor.run_folder
    document = folder / OUTCOME_NAME
    try:
        document.touch(0o600)
        document.write_bytes(encode(masked(dated(outcome, time.time_ns() - time.monotonic_ns()), log)))
        config = write_config(job, folder, attempt, document)
        last = [_Last(job, folder, config, name) for name in job.exports.trackers()]
    except OSError as error:
        log.warning(f"{folder}: {error.strerror}; trackers do not get how the job ended")
        return
    _attend(last, _ends_s(job, outcome, supervisor), supervisor, log)
    for process in last:
        process.send(signal.SIGTERM)
    _attend(last, time.monotonic() + WORD_S, supervisor, log)
    for process in last:
        process.close()


def _ends_s(job: Job, outcome: Outcome, supervisor: Supervisor) -> float:
    """Return when the time of the last processes is up, on the monotonic clock. After a stop, that is REPORT_S before
    the platform kills."""
    if outcome.status != "stopped":
        return time.monotonic() + LAST_S
    stopped_at_ns = supervisor.machine.job.stopped_at_ns
    killed_s = float("inf") if stopped_at_ns is None else stopped_at_ns / 1e9 + job.stop_within_s
    return min(time.monotonic() + STOPPED_S, killed_s - min(job.stop_within_s / 10, REPORT_S) - WORD_S)


class _Last:
    """The last process of a tracker."""

    def __init__(self, job: Job, folder: Path, config: Path, name: str) -> None:
        """Start it.

        Raises:
            OSError: there is no memory or descriptor left for it.
        """
        argv = (*own_module(job.interpreter, "toolkit.monitor.exporters"), str(config), name)
        environ = {**job.environ, MARKER: folder.name}
        self._process = subprocess.Popen(
            argv, env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert self._process.stderr is not None
        self._lines = self._process.stderr
        os.set_blocking(self.fd, False)
        self._rest = b""
        self.ended = False

    @property
    def fd(self) -> int:
        return self._lines.fileno()

    def read(self, log: Log) -> None:
        """Log the lines that it has written; note its end."""
        try:
            content = os.read(self.fd, 65_536)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            log.info(line.decode(errors="replace"))
        self.ended = not content

    def send(self, number: int) -> None:
        """Send it the signal *number* if it lives."""
        if not self.ended:
            self._process.send_signal(number)

    def close(self) -> None:
        """Kill it if it lives."""
        if not self.ended:
            self._process.kill()
        self._process.wait()
        self._lines.close()


def _attend(processes: list[_Last], ends_s: float, supervisor: Supervisor, log: Log) -> None:
    """Log what *processes* say until all have ended, *ends_s* has come, or somebody has insisted on a stop."""
    while living := [process for process in processes if not process.ended]:
        left_s = ends_s - time.monotonic()
        if left_s <= 0 or supervisor.machine.job.insisted:
            return
        ready = select.select([*(process.fd for process in living), supervisor.signals.fd], [], [], min(left_s, 0.2))[0]
        for process in living:
            if process.fd in ready:
                process.read(log)
        supervisor.notice()
