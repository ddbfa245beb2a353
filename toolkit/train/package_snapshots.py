"""Keeps what requirements.txt installed in storage, so that later starts need neither the time nor an index.

A snapshot never changes how a job ends: what cannot be used or stored gets a line, and the installer runs.
"""

from toolkit.errors import ToolkitError, UserError, prefix_place
from toolkit.job.job import Job
from toolkit.job.plan import Phase
from toolkit.log import Log
from toolkit.storage.uri import parse
from toolkit.train.source import snapshot_key
from toolkit.train.source.install import list_requirement_lines
from toolkit.train.supervise.supervisor import Supervisor

SETTING = "TOOLKIT_PACKAGES_URI"
OFF = "off"
# Below TOOLKIT_CHECKPOINT_URI: what is under hosts/ counts as no checkpoint (storage/manifest.py).
BESIDE_CHECKPOINTS = "hosts/packages"


class PackageSnapshot:
    """The stored set of what *installing* installs, below *uri*."""

    def __init__(self, job: Job, installing: Phase, uri: str, key: str, supervisor: Supervisor, log: Log) -> None:
        self._job, self._uri, self._key, self._supervisor, self._log = job, uri, key, supervisor, log
        self._installer = installing.main.name
        self._python = find_python(job)
        self._may_store = False

    def restore(self) -> bool:
        """Unpack the set; return False if there is none, if it cannot be used, or if a stop came.

        Raises:
            UserError: the URI is refused, or obstore is missing.
        """
        from toolkit.train import transfers

        try:
            with prefix_place(SETTING):
                reply = transfers.restore_packages(self._job, self._python, self._uri, self._key, self._supervisor)
        except ToolkitError as error:
            if isinstance(error, UserError):
                raise
            self._log.warning(f"{error} {self._installer} installs the packages, and they are not stored")
            return False
        if reply is None:
            return False  # A stop came.
        if reply.path is not None:
            self._log.info(f"{reply.log_line}. To have them installed anew, remove that object")
            return True
        self._may_store = True
        if reply.log_line:
            self._log.warning(
                f"{reply.log_line}. {self._installer} installs the packages instead, maybe in other versions"
            )
        else:
            self._log.info(f"{self._uri} has no snapshot of these packages yet: {self._installer} installs them")
        return False

    def store(self) -> None:
        """Store what was installed since `restore`. If it cannot be, a line says why."""
        from toolkit.train import transfers

        if not self._may_store:
            return
        try:
            reply = transfers.store_packages(self._job, self._python, self._uri, self._installer, self._supervisor)
        except ToolkitError as error:
            self._log.warning(f"the packages could not be stored for later starts: {error}")
            return
        if reply is not None and reply.log_line:
            self._log.info(reply.log_line)


def find_uri(job: Job) -> str:
    """Return the place of *job*'s snapshots, "" if none are kept.

    Raises:
        UserError: TOOLKIT_PACKAGES_URI is no URI of storage.
    """
    chosen = job.settings.packages_uri
    if chosen == OFF:
        return ""
    if chosen:
        return str(parse(chosen, SETTING))
    beside = job.settings.checkpoint_uri
    return str(parse(beside, "TOOLKIT_CHECKPOINT_URI").below(BESIDE_CHECKPOINTS)) if beside else ""


def find_python(job: Job) -> str:
    """Return the interpreter for which *job*'s packages are installed."""
    return job.interpreter if job.packages is None else str(job.packages / "bin/python")


def prepare(job: Job, installing: Phase, uri: str, supervisor: Supervisor, log: Log) -> PackageSnapshot | None:
    """Return the snapshot below *uri* of what *installing* installs; None, and a line, if no such set is kept.

    Raises:
        UserError: pip's configuration cannot be read.
    """
    assert job.script is not None
    try:
        with supervisor.signals.interrupting():
            lines = list_requirement_lines(job.script.folder)
            key = snapshot_key.make(job, installing.main.name, find_python(job), lines)
    except snapshot_key.UnfitError as error:
        log.info(f"no snapshot of these packages is kept in {uri}: {error}")
        return None
    return PackageSnapshot(job, installing, uri, key, supervisor, log)
