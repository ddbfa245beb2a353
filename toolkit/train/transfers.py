"""`train`'s side of storage: what is fetched before the script, uploaded beside it, and uploaded at its end.

All of it happens in processes of `toolkit.storage`, so that `train` keeps serving signals, the console and other hosts.
What cannot be fetched ends the job with 75 or 78 before the script starts; what cannot be uploaded never changes how
the job ended: a line says it, and outcome.json notes it.
"""

import os
import select
import subprocess
import time
from pathlib import Path

import msgspec

from toolkit import files
from toolkit.errors import InternalError, PlatformError, ToolkitError, UserError, name_place, prefix_place
from toolkit.folders import exists, make
from toolkit.job.channel import Channel, fetched_mark
from toolkit.job.job import Job
from toolkit.job.outcome import Outcome
from toolkit.job.plan import ProcessSpec, StopPolicy
from toolkit.log import Log
from toolkit.own_module import own_module
from toolkit.records import decode, encode
from toolkit.storage.config import Task, TransferReply, TransferTask
from toolkit.storage.uri import check_outside, is_remote, parse
from toolkit.train.fit_environment import MARKER
from toolkit.train.source.fetch import channel_archive
from toolkit.train.supervise.supervisor import Supervisor

STATE = "storage"
_ERRORS: dict[int, type[ToolkitError]] = {UserError.exit_code: UserError, PlatformError.exit_code: PlatformError}
# A transfer without progress is given up this much after the time that a single request may take.
MORE_S = 30.0
# What stays of the platform's time for the report, after the last upload; a tenth if that is less.
REPORT_S = 3.0


class _LateError(Exception):
    """A transfer made no progress, or its time was up."""


def are_asked(job: Job) -> bool:
    """True if this host has a folder to keep in storage."""
    return bool(job.settings.checkpoint_uri or job.spec.intermediate_uri)


def is_remote_source(job: Job) -> bool:
    """True if the job's source has to be fetched: neither a plug-in fetches it, nor is it in the channel `code`."""
    return is_remote(job.spec.source or "") and not job.spec.plugin and channel_archive(job) is None


def with_source(job: Job, supervisor: Supervisor, log: Log) -> Job:
    """Return *job* with its source on this host; it is fetched if it is in storage.

    Raises:
        UserError: the URI is wrong, or obstore is missing.
        PlatformError: the storage cannot be reached.
    """
    if not is_remote_source(job):
        return job
    with name_place(f"{job.spec.source_from}={job.spec.source}"):
        parse(job.spec.source or "")
        folder = supervisor.run_folder / STATE / "source"
        answer = _fetched(
            job, _transfer(job, supervisor.run_folder, "fetch", uri=job.spec.source, folder=folder), supervisor
        )
    if answer is None:
        return job  # A stop came.
    log.info(answer.log_line)
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, source=str(answer.path)))


def fetch_channels(job: Job, supervisor: Supervisor, log: Log) -> None:
    """Fetch the channels that are in storage into their folders. After a stop the rest is left out.

    A mark beside each folder tells a later run of this container that `train` has filled it, and from where.

    Raises:
        UserError: a URI is wrong or leads to nothing, or obstore is missing.
        PlatformError: the storage cannot be reached, or the folder cannot be written.
    """
    for channel in job.spec.channels:
        if not channel.uri:
            continue
        with prefix_place(f"channel {channel.name}"):
            parse(channel.uri)
            _marked(channel)
            log.info(f"channel {channel.name}: fetching {channel.uri}")
            folder = channel.folder
            transfer = _transfer(
                job, supervisor.run_folder, "fetch", uri=channel.uri, folder=folder, reports_progress=True
            )
            answer = _fetched(job, transfer, supervisor)
        if answer is None:
            return  # A stop came.
        log.info(f"channel {channel.name}: {answer.log_line}")


def _marked(channel: Channel) -> None:
    """Mark the channel's folder as one that `train` fills; files that it fetched from elsewhere are removed.

    Raises:
        PlatformError: the folder cannot be written.
    """
    import shutil  # 5 ms, and only where a channel is fetched

    mark = fetched_mark(channel.folder)
    try:
        if exists(mark) and files.read(mark) != channel.uri.encode():
            shutil.rmtree(channel.folder)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_bytes(channel.uri.encode())
    except OSError as error:
        place = str(error.filename or channel.folder)
        raise PlatformError(f"cannot be written ({error.strerror})", where=place, hint="Check the disk.") from None


def restore(job: Job, supervisor: Supervisor, log: Log) -> None:
    """Restore the checkpoint folder from TOOLKIT_CHECKPOINT_URI, if that is set.

    Raises:
        UserError: the URI is wrong, or obstore is missing.
        PlatformError: the storage cannot be reached.
    """
    if not job.settings.checkpoint_uri:
        return
    uri = parse(job.settings.checkpoint_uri, "TOOLKIT_CHECKPOINT_URI")
    check_outside(uri, job.folders.checkpoints, f"TOOLKIT_CHECKPOINT_URI={job.settings.checkpoint_uri}")
    answer = _fetched(job, _transfer(job, supervisor.run_folder, "restore"), supervisor)
    if answer is not None:
        log.info(answer.log_line)


def restore_packages(job: Job, python: str, uri: str, key: str, supervisor: Supervisor) -> TransferReply | None:
    """Unpack the snapshot below *uri* of the packages with *key* into the environment of *python*; None if a stop came.
    The reply has a path if there was one.

    Raises:
        UserError: it cannot be used, or obstore is missing.
        PlatformError: the storage cannot be reached, or the disk is full.
    """
    transfer = _transfer(job, supervisor.run_folder, "restore-packages", uri=uri, key=key)
    return _fetched(msgspec.structs.replace(job, interpreter=python), transfer, supervisor)


def store_packages(job: Job, python: str, uri: str, installer: str, supervisor: Supervisor) -> TransferReply | None:
    """Store below *uri* what *installer* has installed for *python* since `restore_packages`; None if a stop came.

    Raises:
        UserError: the packages cannot be told from the image's.
        PlatformError: the storage cannot be reached.
    """
    transfer = _transfer(job, supervisor.run_folder, "store-packages", uri=uri, installer=installer)
    return _fetched(msgspec.structs.replace(job, interpreter=python), transfer, supervisor)


def service(job: Job, run_folder: Path) -> ProcessSpec:
    """Return the process that uploads beside the script.

    Raises:
        OSError: its configuration cannot be written.
    """
    if job.spec.intermediate_uri:
        make(job.folders.intermediate)
    config = _written(_transfer(job, run_folder, "watch", began_s=time.time()), run_folder)
    return ProcessSpec(
        name="storage",
        argv=(*own_module(job.interpreter, "toolkit.storage"), str(config)),
        environ=job.environ,
        cwd=run_folder,
        stop=StopPolicy(),
        optional=True,
        gives="uploads before the end",
    )


def finish(job: Job, outcome: Outcome, supervisor: Supervisor, log: Log) -> Outcome:
    """Upload what is left after the script; return *outcome*, with a note if that failed."""
    ended_ns = max((exit.ended_ns for exit in outcome.exits), default=0)
    if not ended_ns:
        return outcome  # The script never ran.
    ago_s = (time.monotonic_ns() - ended_ns) / 1e9
    clean = outcome.status == "succeeded" or (
        outcome.status == "stopped" and all(exit.signal is None for exit in outcome.exits)
    )
    times = {"began_s": _began_s(supervisor.run_folder), "ended_s": time.time() - ago_s}
    transfer = _transfer(job, supervisor.run_folder, "finish", clean=clean, **times)
    note = ""
    try:
        answer = _run(job, transfer, supervisor, last=True)
        note = "" if answer is None else answer.log_line
    except _LateError as late:
        note = f"the last upload to {_places(job)} was given up: {late}"
    except ToolkitError as error:
        note = f"the last upload failed: {error}"
    except OSError as error:
        note = f"the last upload to {_places(job)} could not be started: {error.strerror}"
    if not note:
        return outcome
    log.warning(note)
    return msgspec.structs.replace(outcome, notes=(*outcome.notes, log.mask(note)))


def _fetched(job: Job, transfer: TransferTask, supervisor: Supervisor) -> TransferReply | None:
    try:
        return _run(job, transfer, supervisor)
    except _LateError as late:
        place = transfer.uri or transfer.checkpoint_uri
        verb = "stored" if transfer.task == "store-packages" else "fetched"
        raise PlatformError(f"cannot be {verb}: {late}", where=place, hint="Check the network and the disk.") from None


def _places(job: Job) -> str:
    return " and ".join(filter(None, (job.settings.checkpoint_uri, job.spec.intermediate_uri)))


def _transfer(job: Job, run_folder: Path, task: Task, **more: object) -> TransferTask:
    checkpoints, intermediate = job.settings.checkpoint_uri, job.spec.intermediate_uri
    transfer = TransferTask(
        task=task,
        answer=run_folder / f"storage-{task}-answer.json",
        state=run_folder / STATE,
        timeout_s=job.settings.storage_timeout_s,
        checkpoint_uri=checkpoints,
        checkpoints=job.folders.checkpoints if checkpoints else None,
        checkpoint_layout=job.settings.checkpoint_layout,
        intermediate_uri=intermediate,
        intermediate=job.folders.intermediate if intermediate else None,
        rank=job.cluster.rank,
        host=job.cluster.current,
    )
    return msgspec.structs.replace(transfer, **more)


def _began_s(run_folder: Path) -> float:
    """Return when the script's last attempt began, 0.0 if that is not known."""
    path = _config(run_folder, "watch")
    try:
        return decode(path.read_bytes(), TransferTask, str(path)).began_s
    except (OSError, ToolkitError):
        return 0.0


def _config(run_folder: Path, task: Task) -> Path:
    return run_folder / f"storage-{task}.json"


def _written(transfer: TransferTask, run_folder: Path) -> Path:
    transfer.state.mkdir(exist_ok=True)
    path = _config(run_folder, transfer.task)
    path.write_bytes(encode(transfer))
    return path


def _run(job: Job, transfer: TransferTask, supervisor: Supervisor, *, last: bool = False) -> TransferReply | None:
    """Run *transfer* to its end. A stop ends it; then return None. *last*: it belongs to the end of the job, and runs
    after a stop too; only a second stop, or the end of the platform's time, ends it.

    Raises:
        UserError, PlatformError: as the transfer ended.
        _LateError: it made no progress, or its time was up.
    """
    if not last and supervisor.machine.job.ends:
        return None
    config = _written(transfer, supervisor.run_folder)
    argv = (*own_module(job.interpreter, "toolkit.storage"), str(config))
    environ = {**job.environ, MARKER: supervisor.run_folder.name}
    process = subprocess.Popen(
        argv, env=environ, cwd=supervisor.run_folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout as output:
        os.set_blocking(output.fileno(), False)
        progress = _Progress(output.fileno(), job, supervisor, transfer.timeout_s + MORE_S)
        try:
            if last:
                _attend_end(progress, supervisor)
            else:
                supervisor.attend(lambda: progress.is_over() or supervisor.machine.job.ends, output.fileno())
        finally:
            if not progress.ended:
                process.kill()
            process.wait()
    if progress.ended:
        return _answered(transfer, process.returncode)
    if last or progress.late:
        raise _LateError(progress.late or "another stop signal came")
    return None


class _Progress:
    """Reads from *fd* a byte for each piece that a transfer has moved, and its end. `late`: why it must end."""

    def __init__(self, fd: int, job: Job, supervisor: Supervisor, limit_s: float) -> None:
        self.fd, self._job, self._state, self._limit_s = fd, job, supervisor.machine.job, limit_s
        self._told_s = time.monotonic()
        self.ended = False
        self.late = ""

    def is_over(self) -> bool:
        """Read what came; return True if the process has closed its output or is late."""
        try:
            while not self.ended and (content := os.read(self.fd, 65_536)) is not None:
                self.ended = not content
                self._told_s = time.monotonic()
        except BlockingIOError:
            pass
        if time.monotonic() > self._told_s + self._limit_s:
            self.late = f"it made no progress for {self._limit_s:g} s"
        return self.ended or bool(self.late)

    def is_too_late(self) -> bool:
        """True if a stop's time is up, or a second stop came."""
        at_ns, within_s = self._state.stopped_at_ns, self._job.stop_within_s
        if at_ns is not None and time.monotonic() > at_ns / 1e9 + within_s - min(within_s / 10, REPORT_S):
            self.late = f"the {within_s:g} s from the stop to SIGKILL are over"
        return bool(self.late) or self._state.insisted


def _attend_end(progress: _Progress, supervisor: Supervisor) -> None:
    """Wait until *progress* is over or too late, and take signals. The link may be closed already, so nothing waits for
    it."""
    while not progress.is_over() and not progress.is_too_late():
        select.select([progress.fd, supervisor.signals.fd], [], [], 0.2)
        supervisor.notice()


def _answered(transfer: TransferTask, code: int) -> TransferReply:
    """Return the answer of a process that has ended with *code*, negative for a signal.

    Raises:
        UserError, PlatformError, InternalError: as it says.
    """
    try:
        answer = decode(transfer.answer.read_bytes(), TransferReply, str(transfer.answer))
    except (OSError, ToolkitError):
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code} and without an answer"
        raise PlatformError(f"the process of this transfer ({transfer.task}) {how}") from None
    if answer.message:
        kind = _ERRORS.get(answer.exit_code, InternalError)
        raise kind(answer.message, where=answer.place, hint=answer.hint)
    return answer
