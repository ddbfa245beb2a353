"""The process that runs a job: `toolkit run` writes who it is into the job folder's mark, where other commands find it.

A pid alone may belong to another process later, so the mark also has the process's start time, the machine's boot and
the pid namespace. While the job runs, the mark is locked as well (flock), which a container with another pid namespace
can tell too.
"""

import os
import signal
import socket
from pathlib import Path
from typing import Literal

import msgspec

from toolkit.commands.jobs.folders import RUN_MARK, is_locked
from toolkit.files import read as read_document
from toolkit.records import Record, encode
from toolkit.train.supervise.kernel import read_process

BOOT = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE = Path("/proc/self/ns/pid")

# "here": the runner lives and can be signalled. "elsewhere": the folder is locked, by a process that is not visible
# from here (another container). "gone": the job has ended, or its runner was killed.
RunnerState = Literal["here", "elsewhere", "gone"]


class JobRunner(Record, frozen=True, kw_only=True):
    """A process of `toolkit run`."""

    pid: int  # In its pid namespace.
    start_ticks: int  # Its start, in clock ticks since boot (proc_pid_stat(5), field 22).
    boot: str  # The id of the machine's boot.
    pid_namespace: str  # As /proc/self/ns/pid links to it.
    machine: str  # The machine's host name.
    detached: bool = False  # Its console is JOBDIR/console.log.


def write(mark_fd: int, job_dir: Path, *, detached: bool) -> None:
    """Write who runs the job in *job_dir*, this process, into the mark's open file.

    Raises:
        OSError: it cannot be written; `filename` is set.
    """
    pid = os.getpid()
    process = read_process(pid)
    runner = JobRunner(
        pid=pid,
        start_ticks=process.start if process else 0,
        boot=_boot(),
        pid_namespace=_namespace(),
        machine=socket.gethostname(),
        detached=detached,
    )
    document = encode(runner) + b"\n"
    try:
        os.pwrite(mark_fd, document, 0)  # One call: a reader sees the old or the new text.
        os.ftruncate(mark_fd, len(document))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(job_dir / RUN_MARK)) from None


def of(job_dir: Path) -> JobRunner | None:
    """Return who runs or ran the job in *job_dir*, None if that is not known."""
    try:
        return msgspec.json.decode(read_document(job_dir / RUN_MARK), type=JobRunner)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def state(job_dir: Path) -> RunnerState:
    """Return whether the runner of the job in *job_dir* lives."""
    runner = of(job_dir)
    if runner is not None and _is_visible(runner):
        return "here" if _lives(runner) else "gone"
    return "elsewhere" if is_locked(job_dir) else "gone"


def send(runner: JobRunner, number: signal.Signals) -> bool:
    """Send signal *number* to *runner*; False if it does not live.

    A pidfd names one process for ever, so a process that gets the pid meanwhile receives nothing.

    Raises:
        PermissionError: the runner belongs to another user.
    """
    try:
        pidfd = os.pidfd_open(runner.pid)
    except ProcessLookupError:
        return False
    try:
        if not _lives(runner):
            return False
        signal.pidfd_send_signal(pidfd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)


def _is_visible(runner: JobRunner) -> bool:
    return (runner.boot, runner.pid_namespace) == (_boot(), _namespace())


def _lives(runner: JobRunner) -> bool:
    process = read_process(runner.pid)
    return process is not None and process.start == runner.start_ticks


def _boot() -> str:
    try:
        return BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(NAMESPACE.readlink())
    except OSError:
        return ""
